"""Whether memory of a process can be read at all: somebody may hold its mmap lock, and then every reader hangs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyhangtrace.collect.guarded import MMAP_LOCK_HELD, GuardedReader, HelperState, Progress
from pyhangtrace.collect.procfs import PROC, numbers
from pyhangtrace.collect.threads import lock_keeper, read_thread

MMAP_LOCK_TASK = "mmap_lock"
WRITERS_TASK = "mmap_lock_writers"
_MOST_THREADS = 1024
_ANYBODY = 0


def mmap_lock_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: (why memory cannot be read, the thread because of which) of each; (None, None) if it can.

    Told from the kernel functions in which the threads sleep, without touching memory.
    """
    from pyhangtrace import _native

    engine = _native.Engine(state.proc_root)
    for pid in pids:
        progress(pid)
        (seen,) = engine.capture([pid], python=False, stacks=False, bpf=False)
        yield pid, (seen["error"], seen["error_tid"])


def writers_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: for `_ANYBODY`, the thread that the kernel says has the lock of each process to change its map."""
    from pyhangtrace import _native

    yield _ANYBODY, _native.mmap_lock_writers() if state.proc_root == PROC else {}


def locked(reader: GuardedReader, pids: Sequence[int], *, deadline_s: float) -> dict[int, int | None]:
    """Those whose memory map is locked, and the thread that has the lock: by the kernel's word where it can be had,
    else the one that sleeps as who has it does, or waits for it.
    """
    answers = reader.run(MMAP_LOCK_TASK, pids, deadline_s=deadline_s)
    found: dict[int, int | None] = {
        pid: tid for pid, (why, tid) in answers.values.items() if why == MMAP_LOCK_HELD
    }
    # The reader has come to the lock before, and will not go there again: the states of the threads still tell.
    found.update({pid: _keeper(pid) for pid, why in answers.problems.items() if why == MMAP_LOCK_HELD})
    found.update(writers(reader, list(found), deadline_s=deadline_s))
    return found


def writers(reader: GuardedReader, pids: Sequence[int], *, deadline_s: float) -> dict[int, int]:
    """The thread that the kernel records as having the lock of each for writing; nothing where it does not say."""
    if not pids:
        return {}
    # Those at whose lock the reader has been stuck are no longer asked for anything by their own number.
    told = reader.run(WRITERS_TASK, [_ANYBODY], deadline_s=deadline_s).values.get(_ANYBODY, {})
    return {pid: told[pid] for pid in pids if pid in told}


def _keeper(pid: int, proc_root: str = PROC) -> int | None:
    threads = [read_thread(pid, tid, proc_root) for tid in numbers(f"{proc_root}/{pid}/task")[:_MOST_THREADS]]
    return lock_keeper([thread for thread in threads if thread is not None])
