"""Looks at processes as a program does that has only just started: `fresh.py REPEATS PID...`, in a process of its own.

Prints one JSON object: wall and CPU seconds of the engine's first call and of each later one, peak resident memory in
bytes, and what was seen.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from pyhangtrace import _native


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_memory() -> int:
    # Not ru_maxrss, which begins at what the process that started us had.
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def main(repeats: int, pids: list[int]) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # as the tool's reader does
    looks = []
    engine = None
    seen: list[_native.ProcessCapture] = []
    for _ in range(1 + repeats):
        began, began_cpu = time.perf_counter(), cpu_s()
        if engine is None:
            engine = _native.Engine()
        seen = engine.capture(pids, python=True)
        looks.append((time.perf_counter() - began, cpu_s() - began_cpu))
    threads = [thread for process in seen for thread in process["threads"]]
    result = {
        "first": looks[0],
        "repeats": looks[1:],
        "memory": peak_memory(),
        "threads": len(threads),
        "complete": sum(thread["complete"] for thread in threads),
        "moved": sum(thread["moved"] for thread in threads),
        "frames": sum(len(thread["frames"]) for thread in threads),
        "merged": sum(thread["ident"] is not None and not thread["unmerged_python"] for thread in threads),
        "python": sum(thread["ident"] is not None for thread in threads),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(word) for word in sys.argv[2:]])
