"""Eight ranks of 200 threads each that work: the main thread in small steps, some threads wake up now and then, the
rest waits. Prints `ready PID` once all are there; ends with its standard input.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time

RANKS = 8
THREADS = 200
AWAKE = 10  # of the threads, ten times a second each
STEP_S = 0.05


def wake_up_now_and_then() -> None:
    while True:
        time.sleep(0.1)


def rank() -> None:
    never = threading.Event()
    for number in range(THREADS - 1):
        work = wake_up_now_and_then if number < AWAKE else never.wait
        threading.Thread(target=work, daemon=True).start()
    batch = bytes(1 << 20)
    with open(os.devnull, "wb", buffering=0) as nowhere:
        print("ready", flush=True)
        while not select.select([0], [], [], STEP_S)[0]:
            nowhere.write(batch)
    os._exit(0)


def main() -> None:
    if len(sys.argv) > 1:
        rank()
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(number)],
            env={**os.environ, "RANK": str(number), "WORLD_SIZE": str(RANKS)}
            # Nobody listens there: it tells this job from another one that runs beside it.
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(1024 + os.getpid() % 60000)},
            stdout=subprocess.PIPE,
        )
        for number in range(RANKS)
    ]
    for each in ranks:
        assert each.stdout is not None
        each.stdout.readline()
    print(f"ready {ranks[0].pid}", flush=True)
    sys.stdin.read()
    for each in ranks:
        each.wait()


if __name__ == "__main__":
    main()
