"""A launcher and two ranks that work in small steps, until the launcher is told otherwise, a line a word:

    hang     each rank waits for the file lock that the other one has
    restart  the ranks end, and others take their place, which work
    kill     the same with ranks that do not hear any more
    end      all of them end

Prints `ranks PID PID` when new ranks work, and `hanging` when both are about to wait.
"""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
from pathlib import Path

STEP_S = 0.02


def rank(number: int, folder: Path, orders: int) -> None:
    mine = (folder / f"lock-{number}").open("wb")
    other = (folder / f"lock-{1 - number}").open("wb")
    fcntl.flock(mine, fcntl.LOCK_EX)
    batch = bytes(1 << 20)
    with open(os.devnull, "wb", buffering=0) as nowhere:
        say("ready")
        while not select.select([orders], [], [], STEP_S)[0]:
            nowhere.write(batch)
    if os.read(orders, 1) == b"h":
        say("hanging")
        fcntl.flock(other, fcntl.LOCK_EX)


# Nobody listens there: it tells this job from another one that runs beside it.
PORT = str(1024 + os.getpid() % 60000)


def say(word: str) -> None:
    print(word, flush=True)


class Ranks:
    def __init__(self, folder: Path) -> None:
        self.pipes = [os.pipe() for _ in range(2)]
        self.processes = [
            subprocess.Popen(
                [sys.executable, __file__, str(folder), str(number), str(reader)],
                env={**os.environ, "RANK": str(number), "WORLD_SIZE": "2"}
                | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": PORT},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=[reader],
                text=True,
            )
            for number, (reader, _) in enumerate(self.pipes)
        ]
        self.await_all("ready")
        say("ranks " + " ".join(str(process.pid) for process in self.processes))

    def await_all(self, word: str) -> None:
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == word

    def order(self, letter: bytes) -> None:
        for _, writer in self.pipes:
            os.write(writer, letter)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        self.end()

    def end(self) -> None:
        self.order(b"q")
        for process in self.processes:
            process.wait()
        for ends in self.pipes:
            for end in ends:
                os.close(end)


def main() -> None:
    folder = Path(sys.argv[1])
    if len(sys.argv) > 2:
        rank(int(sys.argv[2]), folder, int(sys.argv[3]))
        return
    ranks = Ranks(folder)
    for line in sys.stdin:
        word = line.strip()
        if word == "hang":
            ranks.order(b"h")
            ranks.await_all("hanging")
            say("hanging")
        elif word == "restart":
            ranks.end()
            ranks = Ranks(folder)
        elif word == "kill":
            ranks.kill()
            ranks = Ranks(folder)
        elif word == "end":
            ranks.end()
            return


if __name__ == "__main__":
    main()
