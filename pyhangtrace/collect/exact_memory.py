"""What a group of processes holds, by walking their page tables: asked for by name, once, never polled.

smaps gives shares and files of each process, pagemap the page frames, of which the union over all is what is really
there. A walk costs the kernel 50 to 90 ns a page, and while it is in a mapping the target can map and unmap nothing: so
the biggest process comes first, as many walks run at a time as there are CPUs (they share no lock), and a process that
would not be done in time is left out and said to be.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.procfs import printable
from pyhangtrace.collect.smaps import walk_cost_s
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import MemoryMode, SourceState
from pyhangtrace.model.memory import ExactMemory, ExactProcess, FileShare
from pyhangtrace.model.processes import ProcessMemory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyhangtrace import _native

EXACT_TASK = "exact_memory"

_SMALLEST_FILE = 1 << 20
_MOST_FILES = 64
# So few of a mapping's pages are there that the rest is better skipped by a search.
_SPARSE = 8
# The kernel cuts each mapping's PSS to whole kilobytes. Where that may be more than a thousandth, the sum over all
# mappings that it makes itself is read, too.
_PSS_LOST = 1024
_PSS_TOLERANCE = 1000


@dataclass(frozen=True, slots=True)
class _Totals:
    """Pages of all members together; zeros without the right to see frames."""

    frames: int
    hugetlb_frames: int
    unique: int


def exact_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: (process by its page tables, totals of all) of each, at the end, when it is known who shares what.

    `argument`: (bytes resident by pid, seconds, how many walks at a time).
    """
    resident, budget_s, workers = argument
    walk = _Walk(state.proc_root, resident, time.monotonic() + budget_s, progress)
    found = walk.run(pids, 1 if state.one_at_a_time else workers)
    totals = walk.totals()
    for pid, process in found.items():
        yield pid, (walk.with_unique(process), totals)


class _Walk:
    """All walks of one request. Pages that are mapped by several members are told apart from the others in the end."""

    def __init__(self, proc_root: str, resident: Mapping[int, int], until: float, progress: Progress) -> None:
        from pyhangtrace import _native

        self._root = proc_root
        self._resident = resident
        self._until = until
        self._progress = progress
        self._turn = threading.Lock()
        self._pages = _native.PageUnion()
        self._huge = _native.PageUnion()
        self._page = os.sysconf("SC_PAGE_SIZE")

    def run(self, pids: Sequence[int], workers: int) -> dict[int, ExactProcess]:
        """The biggest first: what is left over when time ends is small, and no worker ends long after the others."""
        queue = sorted(pids, key=lambda pid: (self._resident.get(pid, 0), pid))
        found: dict[int, ExactProcess] = {}
        errors: list[Exception] = []

        def work() -> None:
            while True:
                with self._turn:
                    if not queue:
                        return
                    pid = queue.pop()
                    self._progress(pid)
                try:
                    found[pid] = self._process(pid)
                except Exception as error:  # noqa: BLE001 (raised again below, by the thread that may)
                    errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(min(workers, len(queue)) - 1)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return found

    def totals(self) -> _Totals:
        """After all walks."""
        return _Totals(
            frames=(self._pages.frames + self._huge.frames) * self._page,
            hugetlb_frames=self._huge.frames * self._page,
            unique=(self._pages.unique + self._huge.unique) * self._page,
        )

    def with_unique(self, process: ExactProcess) -> ExactProcess:
        """After all walks: with what no other member has."""
        parts = [union.unique_of(process.pid) for union in (self._pages, self._huge)]
        known = [part for part in parts if part is not None]
        if self._pages.frames == 0 or parts[0] is None:
            return process
        return replace(process, unique=sum(known) * self._page)

    def _process(self, pid: int) -> ExactProcess:
        from pyhangtrace import _native

        if self._late(pid):
            return ExactProcess(pid=pid, problem="no_time")
        try:
            records, paths = _native.smaps(pid, self._root)
        except OSError as error:
            return ExactProcess(pid=pid, problem=_problem(error))
        if len(records) == 0:
            return ExactProcess(pid=pid, problem="gone")
        process = shares(pid, records, paths)
        if process.pss is not None and len(records) * _PSS_LOST * _PSS_TOLERANCE > process.pss:
            process = self._with_rollup(process)
        if self._late(pid):
            return replace(process, problem="no_time")
        try:
            whole = self._add(self._pages, pid, ranges(records, huge=False))
            whole &= self._add(self._huge, pid, ranges(records, huge=True))
        except OSError as error:
            return replace(process, problem=_problem(error))
        return process if whole else replace(process, problem="no_time")

    def _add(self, union: _native.PageUnion, pid: int, wanted: NDArray[np.uint64]) -> bool:
        left = max(0.0, self._until - time.monotonic())
        return union.add(pid, wanted, budget_s=left, proc_root=self._root)

    def _with_rollup(self, process: ExactProcess) -> ExactProcess:
        from pyhangtrace import _native

        found = _native.rollup_records([process.pid], self._root)
        # Gone, or before Linux 4.14: the sum of whole kilobytes will do.
        return replace(process, pss=int(found["pss"][0])) if len(found) else process

    def _late(self, pid: int) -> bool:
        """Whether one more walk would not be over in time: once begun it cannot be called off."""
        cost = walk_cost_s(ProcessMemory(rss=self._resident.get(pid, 0)))
        return time.monotonic() + cost > self._until


def shares(pid: int, records: Any, paths: Sequence[str]) -> ExactProcess:
    """What the records of smaps of one process add up to."""
    from pyhangtrace import _native

    def total(*names: str) -> int:
        return sum(int(records[name].sum()) for name in names)

    of_devices = (records["flags"] & (_native.FLAG_PFNMAP | _native.FLAG_IO)) != 0
    named = [not path.startswith("[") for path in paths]  # the kernel's own: [vvar]
    driver = sum(
        int(record["end"] - record["start"]) for record in records[of_devices] if named[int(record["path"])]
    )
    return ExactProcess(
        pid=pid,
        rss=total("rss"),
        pss=total("pss"),
        uss=total("private_clean", "private_dirty"),
        swap_pss=total("swap_pss"),
        anon_huge=total("anon_huge_pages"),
        hugetlb=total("shared_hugetlb", "private_hugetlb"),
        driver=driver,
        mappings=len(records),
        files=_files(records, paths),
    )


def _files(records: Any, paths: Sequence[str]) -> tuple[FileShare, ...]:
    sums: dict[tuple[int, int], list[int]] = {}
    huge = records["shared_hugetlb"] + records["private_hugetlb"]
    backed = records["inode"] != 0
    for record, of_pool in zip(records[backed], huge[backed], strict=True):
        entry = sums.setdefault((int(record["device"]), int(record["inode"])), [int(record["path"]), 0, 0, 0])
        entry[1] += int(record["rss"])
        entry[2] += int(record["pss"])
        entry[3] += int(of_pool)
    found = [
        FileShare(device=device, inode=inode, path=printable(paths[path]), rss=rss, pss=pss, hugetlb=of_pool)
        for (device, inode), (path, rss, pss, of_pool) in sums.items()
        if rss + of_pool >= _SMALLEST_FILE
    ]
    found.sort(key=lambda file: (-file.rss - file.hugetlb, file.device, file.inode))
    return tuple(found[:_MOST_FILES])


def ranges(records: NDArray[np.void], *, huge: bool) -> NDArray[np.uint64]:
    """Rows of start, end and whether hardly anything is there. Where there is something to see: huge pages of the pool,
    or everything else. Memory of devices is neither.
    """
    import numpy as np

    from pyhangtrace import _native

    pool = records["shared_hugetlb"] + records["private_hugetlb"]
    if huge:
        chosen = pool > 0
    else:
        chosen = (pool == 0) & (records["rss"] > 0) & ((records["flags"] & _native.FLAG_PFNMAP) == 0)
    start, end = records["start"][chosen], records["end"][chosen]
    sparse = (records["rss"] + pool)[chosen] * _SPARSE < end - start
    return np.stack((start, end, sparse.astype(np.uint64)), axis=1)


def _problem(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "not_permitted"
    return "gone" if isinstance(error, (FileNotFoundError, ProcessLookupError)) else f"unreadable: {error}"


def collect(
    reader: GuardedReader,
    memories: Mapping[int, ProcessMemory],
    locked: Mapping[int, int | None],
    *,
    budget_s: float,
    workers: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[ExactMemory, SourceStatus]:
    """Walks all but those whose memory map is `locked` (by which thread), and says what became of it."""
    began = clock()
    workers = workers or len(os.sched_getaffinity(0))
    resident = {pid: memory.rss or 0 for pid, memory in memories.items()}
    wanted = [pid for pid in memories if pid not in locked]
    # The task ends by itself when its budget is over; the rest is for the last walk that was begun.
    answers = reader.run(EXACT_TASK, wanted, (resident, budget_s, workers), deadline_s=2 * budget_s + 1.0)
    processes = [
        ExactProcess(pid=pid, problem="mmap_lock_held", problem_tid=tid) for pid, tid in locked.items()
    ]
    totals = _Totals(0, 0, 0)
    for process, of_all in answers.values.values():
        processes.append(process)
        totals = of_all
    processes += [ExactProcess(pid=pid, problem=why) for pid, why in answers.problems.items()]
    missing = [process for process in processes if process.problem is not None]
    # Who has ended meanwhile holds nothing.
    complete = not any(process.problem != "gone" for process in missing)
    union = totals.frames > 0
    exact = ExactMemory(
        mode=MemoryMode.PFN_UNION if union else MemoryMode.ROLLUP,
        processes=tuple(sorted(processes, key=lambda process: process.pid)),
        frames=totals.frames if union else None,
        hugetlb_frames=totals.hugetlb_frames if union else None,
        unique=totals.unique if union else None,
        complete=complete,
        took_s=round(clock() - began, 3),
        workers=min(workers, max(1, len(wanted))),
    )
    return exact, _status(exact, missing)


def _status(exact: ExactMemory, missing: Sequence[ExactProcess]) -> SourceStatus:
    counted: dict[str, int] = {}
    for process in missing:
        counted[process.problem or ""] = counted.get(process.problem or "", 0) + 1
    words = {
        "no_time": "not within the time given",
        "not_permitted": "not permitted",
        "mmap_lock_held": "memory map locked",
    }
    reasons = [f"{number} processes: {words.get(why, why)}" for why, number in sorted(counted.items())]
    if exact.mode is MemoryMode.ROLLUP:
        reasons.append("page frames need CAP_SYS_ADMIN: shares of pages (PSS) instead of their union")
    state = SourceState.USED
    if not exact.complete:
        state = SourceState.TIMED_OUT if counted.keys() - {"not_permitted"} else SourceState.REFUSED
    fix = ""
    if "not_permitted" in counted or exact.mode is MemoryMode.ROLLUP:
        fix = "run with sudo"
    elif "no_time" in counted:
        fix = "--budget with more seconds"
    return SourceStatus(source="page tables", state=state, reason="; ".join(reasons), fix=fix)
