"""``python -m tests.kernels``: real hangs on Debian's kernels in small virtual machines, and a table of what was said.

Takes minutes for each kernel on a machine that is free: the processor of the guests is emulated. Kernels are downloaded
once, into ~/.cache/hangtrace-kernels or the folder that $HANGTRACE_KERNELS names.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.kernels import guest, uml
from tests.kernels.board import results, table
from tests.kernels.packages import SUITES, NoPackages, Suite, busybox, cache_folder, kernel_of

SCENES = [
    "pipe-write",
    "unix-stream-read",
    "flock",
    "freezer-unified",
    "sigstop",
    "cpu-throttled",
    "vfork",
    "epoll",
    "sysv-semop",
    "mq-send",
    "lease-break",
    "userfaultfd",
    "sleep-relative",
    "unix-connect-backlog",
    "fifo-open-read",
    "tcp-read",
    "signalfd-read",
    "fcntl-ofd",
    "io-uring",
    "wait4",
    "timerfd-disarmed",
    "map-lock-held",
]
HANGS = [
    "mutex-cycle",
    "mutex-cycle-python",
    "gil-mutex",
    "timed-mutex-keep",
    "file-cycle-alone",
    "full-pipe",
    "stopped-child",
    "well-serving",
]
MEMORY = "oom_kill or books or too_small or first_read"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kernels", description=__doc__)
    parser.add_argument("--kernel", action="append", metavar="X.Y", help="only these")
    parser.add_argument("--cgroups", choices=("v1", "v2"), default="v2", help="what the guest mounts")
    parser.add_argument("--timeout", type=float, default=3600.0, metavar="SECONDS", help="for each kernel")
    parser.add_argument("--whole", action="store_true", help="also a look and a recording with bcc (minutes)")
    parser.add_argument(
        "--memory", action="store_true", help="tests of memory on user-mode Linux instead, which is fast"
    )
    parser.add_argument("-o", "--output", type=Path, help="keep what the guests left in this folder")
    options = parser.parse_args()
    if why := guest.why_none():
        print(f"skipped: {why}")
        return 0
    out = options.output or Path(tempfile.mkdtemp(prefix="hangtrace-kernels-"))
    all_right = True
    for suite in uml.SUITES if options.memory else SUITES:
        if options.kernel and suite.kernel not in options.kernel:
            continue
        here = (out / suite.kernel).absolute()
        try:
            if options.memory:
                all_right &= memory_tests(suite, here, timeout=options.timeout)
            else:
                all_right &= hangs(
                    suite, here, cgroups=options.cgroups, whole=options.whole, timeout=options.timeout
                )
        except NoPackages as missing:
            print(f"{suite.kernel}: skipped: {missing}", flush=True)
    return 0 if all_right else 1


def hangs(suite: Suite, out: Path, *, cgroups: str, whole: bool, timeout: float) -> bool:
    """The rows in a virtual machine; whether all were right."""
    command = [sys.executable, "-m", "tests.kernels.work", "--scenes", *SCENES, "--hangs", *HANGS]
    command += ["--whole", "mutex-cycle-python"] if whole else []
    (out / "results").unlink(missing_ok=True)
    cache = cache_folder()
    guest.run(
        kernel_of(suite, cache=cache),
        command,
        busybox=busybox(cache=cache),
        out=out,
        cgroups=cgroups,
        timeout=timeout,
    )
    rows = results(out / "results")
    print(*table({suite.kernel: rows}), "", sep="\n", flush=True)
    return bool(rows) and all(row.outcome in ("right", "skipped", "known limit") for row in rows)


def memory_tests(suite: Suite, out: Path, *, timeout: float) -> bool:
    """The tests of memory on a user-mode Linux; whether they passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=300"]
    command += ["--basetemp=/mnt/disk/pytest", "tests/integration/test_memory.py", "-k", MEMORY]
    ran = uml.run(uml.kernel_program(suite, cache=cache_folder()), command, out=out, timeout=timeout)
    print(f"{suite.kernel}: pytest ended with {ran.status}, its words are in {out}/output", flush=True)
    return ran.status == 0


if __name__ == "__main__":
    sys.exit(main())
