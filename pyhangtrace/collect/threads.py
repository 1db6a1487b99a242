"""Threads from /proc alone: for a process whose memory must not be touched."""

from __future__ import annotations

import platform
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from pyhangtrace.collect.procfs import PROC, numbers, printable, read_text, wait_channel
from pyhangtrace.model import syscalls
from pyhangtrace.model.kinds import FrameKind
from pyhangtrace.model.process_table import parse_stat
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import ThreadSample

_CHANGE_THE_MAP = frozenset({"mmap", "munmap", "mprotect", "mremap", "brk"})


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
    syscall, arguments, running = parse_syscall(read_text(f"{folder}/syscall"))
    run_ns, slices = parse_schedstat(read_text(f"{folder}/schedstat"))
    return ThreadSample(
        pid=pid,
        tid=tid,
        comm=printable(stat.comm),
        state=stat.state,
        wchan=wait_channel(folder),
        syscall=syscall,
        args=arguments,
        run_ns=run_ns,
        slices=slices,
        utime_ticks=stat.utime_ticks,
        stime_ticks=stat.stime_ticks,
        minor_faults=stat.minor_faults,
        major_faults=stat.major_faults,
        running=running,
        frames=kernel_stack(folder) if stat.state == "D" else (),
    )


def with_later_moves(samples: Iterable[ThreadSample], proc_root: str = PROC) -> tuple[ThreadSample, ...]:
    """The same threads, those marked that ran since: what else was read meanwhile tells of a later wait.

    Only threads that wait on descriptors are asked, whose locks and other ends are read after the stacks: who was
    handed a lock in between would else stand as waiting for himself.
    """
    samples = tuple(samples)
    return with_moves_of(samples, {(each.pid, each.tid) for each in samples if each.io_fds}, proc_root)


def with_moves_of(
    samples: Iterable[ThreadSample], asked: Collection[tuple[int, int]], proc_root: str = PROC
) -> tuple[ThreadSample, ...]:
    """The same threads; of those asked for (pid, tid), marked that ran since."""
    return tuple(
        _with_later_move(sample, proc_root) if (sample.pid, sample.tid) in asked else sample
        for sample in samples
    )


def _with_later_move(sample: ThreadSample, proc_root: str) -> ThreadSample:
    run_ns, slices = parse_schedstat(read_text(f"{proc_root}/{sample.pid}/task/{sample.tid}/schedstat"))
    if run_ns is None or sample.run_ns is None or (run_ns, slices) == (sample.run_ns, sample.slices):
        return sample
    return replace(sample, run_ns=run_ns, slices=slices, moved=True, asleep_for_s=None)


def kernel_stack(folder: str) -> tuple[Frame, ...]:
    """Kernel frames of a thread, innermost first; () where only root may see them."""
    lines = (read_text(f"{folder}/stack") or "").splitlines()
    functions = (line.partition("] ")[2].partition("+")[0] for line in lines)
    return tuple(Frame(kind=FrameKind.KERNEL, function=printable(name)) for name in functions if name)


def lock_keeper(threads: Sequence[ThreadSample]) -> int | None:
    """Of a process whose memory map is locked: the thread that sleeps in the kernel with the lock.

    Those in `rwsem_down_*` queue for it; if all do, the one that came first cannot be told, and any is named. Of the
    others the ones in calls that change the map come first: who sleeps in a page fault has a lock of one mapping only.
    """
    asleep = [thread for thread in threads if thread.state == "D"]
    keepers = [thread for thread in asleep if not (thread.wchan or "").startswith(("rwsem_down", "down_"))]
    calls = syscalls.names(platform.machine())
    changing = [thread for thread in keepers if calls.get(thread.syscall or -1) in _CHANGE_THE_MAP]
    return next((thread.tid for thread in (*changing, *keepers, *asleep)), None)


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
