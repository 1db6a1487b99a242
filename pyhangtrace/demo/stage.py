"""``python -m pyhangtrace.demo.stage``: the launcher process of a demo, and the other job beside it.

Every member that is about to block sends itself over the connection whose file descriptor is the last
argument. The one who receives them looks then whether they really blocked.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from pyhangtrace.demo.parts import Blocked, Weights, announce, die_with_parent
from pyhangtrace.demo.scenes import Stage, find_scene, lock_path


def _hold_lock(folder: Path, say: Connection) -> None:
    fd = os.open(lock_path(folder), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    announce(say, "lock holder", blocked=Blocked.SLEEP)
    time.sleep(3600)


def main(arguments: list[str]) -> None:
    """Play one part: ``play NAME FOLDER WEIGHTS SIZE MAPPINGS FD`` or ``hold-lock FOLDER FD``."""
    die_with_parent()
    match arguments:
        case ["play", name, folder, weights, size, mappings, fd]:
            say = Connection(int(fd), readable=False)
            mapped = Weights(Path(weights), int(size), int(mappings))
            find_scene(name).run(Stage(Path(folder), mapped, say))
        case ["hold-lock", folder, fd]:
            _hold_lock(Path(folder), Connection(int(fd), readable=False))
        case _:
            raise SystemExit("this module is started by hangtrace demo")


if __name__ == "__main__":
    main(sys.argv[1:])
