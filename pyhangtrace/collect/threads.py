"""Threads from /proc alone: for a process whose memory must not be touched."""

from __future__ import annotations

from pyhangtrace.collect.procfs import PROC, numbers, printable, read_text
from pyhangtrace.model.evidence import ThreadSample
from pyhangtrace.model.process_table import parse_stat


def thread_ids(pid: int, proc_root: str = PROC) -> list[int]:
    """Threads of a process, () if it is gone."""
    return numbers(f"{proc_root}/{pid}/task")


def read_thread(pid: int, tid: int, proc_root: str = PROC) -> ThreadSample | None:
    """One thread's state, counters and system call; `None` if it is gone."""
    folder = f"{proc_root}/{pid}/task/{tid}"
    text = read_text(f"{folder}/stat")
    stat = parse_stat(text) if text is not None else None
    if stat is None:
        return None
    wchan = read_text(f"{folder}/wchan")
    syscall, arguments, running = parse_syscall(read_text(f"{folder}/syscall"))
    run_ns, slices = parse_schedstat(read_text(f"{folder}/schedstat"))
    return ThreadSample(
        pid=pid,
        tid=tid,
        comm=printable(stat.comm),
        state=stat.state,
        wchan=wchan.strip() if wchan and wchan.strip() != "0" else None,
        syscall=syscall,
        args=arguments,
        run_ns=run_ns,
        slices=slices,
        utime_ticks=stat.utime_ticks,
        stime_ticks=stat.stime_ticks,
        minor_faults=stat.minor_faults,
        major_faults=stat.major_faults,
        running=running,
    )


def parse_syscall(text: str | None) -> tuple[int | None, tuple[int, ...], bool]:
    """(number, six arguments, whether it runs). -1 is a thread blocked outside of a system call."""
    words = (text or "").split()
    if not words or words[0] == "running":
        return None, (), bool(words)
    try:
        number = int(words[0])
        return number, tuple(int(word, 16) for word in words[1:7]) if number >= 0 else (), False
    except ValueError:
        return None, (), False


def parse_schedstat(text: str | None) -> tuple[int | None, int | None]:
    """(nanoseconds on a CPU, time slices)."""
    words = (text or "").split()
    try:
        return int(words[0]), int(words[2])
    except (ValueError, IndexError):
        return None, None
