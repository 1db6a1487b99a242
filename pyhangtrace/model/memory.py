"""What was seen of memory over the window: counters at its begin and end, what limits the job, exact page walks.

Sizes are bytes, counters count since boot or since the process began; what could not be read is None.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyhangtrace.model.kinds import MemoryMode


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCounters:
    """One process. `read_bytes` came from disk, `read_chars` through system calls."""

    pid: int
    major_faults: int | None = None
    read_bytes: int | None = None
    read_chars: int | None = None
    rss: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PagingCounters:
    """Of the machine, or of a control group. `refaulted` are pages of files that were read in again after they had been
    dropped to make room, `refaulted_anon` the same of anonymous ones.
    """

    major_faults: int | None = None
    refaulted: int | None = None
    refaulted_anon: int | None = None
    swapped_in: int | None = None
    swapped_out: int | None = None
    oom_kills: int | None = None
    limit_hits: int | None = None  # v1: times an allocation met the limit; v2: memory.events max


@dataclass(frozen=True, slots=True, kw_only=True)
class StallCounters:
    """Pressure stall information: seconds so far in which some, or all, who could run waited."""

    memory_some_s: float | None = None
    memory_full_s: float | None = None
    io_some_s: float | None = None
    io_full_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCounters:
    """All counters at one moment; `at_s` counts from the first one."""

    at_s: float
    host: PagingCounters = field(default_factory=PagingCounters)
    cgroup: PagingCounters | None = None  # of the group that limits the job
    stalls: StallCounters = field(default_factory=StallCounters)
    cgroup_stalls: StallCounters | None = None  # only the second version of control groups has them
    processes: tuple[ProcessCounters, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupMemory:
    """What a control group is charged with, itself and those below it. `processes` counts them, those of others too."""

    usage: int | None = None
    peak: int | None = None
    anon: int | None = None
    file: int | None = None  # page cache, tmpfs and shared memory included
    shmem: int | None = None
    mapped_file: int | None = None
    dirty: int | None = None
    kernel: int | None = None
    page_tables: int | None = None
    slab: int | None = None
    swap: int | None = None
    swap_cached: int | None = None
    hugetlb: int | None = None  # usage of the hugetlb controller, which counts apart
    hugetlb_counted: bool = (
        False  # hugetlb pages are part of `usage` (mount option memory_hugetlb_accounting)
    )
    processes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShmSpace:
    """A file system in memory (tmpfs) as processes see it: their /dev/shm, of which containers have one of their own,
    usually of 64 MB, and any other that they write to. `refused` are those whose log tells that it had no room.
    """

    device: int
    size: int
    free: int
    pids: tuple[int, ...]
    point: str = "/dev/shm"
    refused: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFile:
    """A big file that a process reads or maps, at the begin and at the end of the window.

    `positions` are those of descriptors: (pid, before, after). `cached` is what the page cache holds of it, None where
    that is not known.
    """

    path: str
    device: int
    inode: int
    size: int
    readers: tuple[int, ...] = ()
    mappers: tuple[int, ...] = ()
    positions: tuple[tuple[int, int, int], ...] = ()
    cached_before: int | None = None
    cached_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileShare:
    """What one process has in memory of one file: its part in RSS and in PSS."""

    device: int
    inode: int
    path: str
    rss: int
    pss: int
    hugetlb: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactProcess:
    """One process by its page tables. `unique` are pages that no other member has; `driver` is the size of mappings of
    device memory, which RSS does not count. `problem`: why it is missing, or not whole.
    """

    pid: int
    rss: int | None = None
    pss: int | None = None
    uss: int | None = None
    swap_pss: int | None = None
    anon_huge: int | None = None
    hugetlb: int | None = None
    driver: int | None = None
    unique: int | None = None
    mappings: int | None = None
    files: tuple[FileShare, ...] = ()
    problem: str | None = None
    problem_tid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactMemory:
    """A walk over the page tables of all members. `frames` is the physical memory that they have mapped, each page
    counted once, `hugetlb_frames` of that huge pages from the pool, `unique` what a single member has; None without the
    right to see page frames, or if not all were seen.
    """

    mode: MemoryMode
    processes: tuple[ExactProcess, ...]
    frames: int | None = None
    hugetlb_frames: int | None = None
    unique: int | None = None
    complete: bool = True
    took_s: float = 0.0
    workers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """Everything about memory that is not in the facts of a process or of the machine."""

    counters: tuple[MemoryCounters, ...] = ()
    cgroup: CgroupMemory | None = None
    shm: tuple[ShmSpace, ...] = ()
    loaded: tuple[LoadedFile, ...] = ()
    loaded_s: float | None = None  # between the two looks at those; None: the whole window
    mapped: tuple[tuple[int, int, int, int], ...] = ()  # device, inode, pid, bytes mapped
    # pid, bytes of files that it maps more than once; of those alone whose mappings were read.
    mapped_twice: tuple[tuple[int, int], ...] = ()
    unlisted: int | None = None  # what all may have mapped of files that are not in `Evidence.mapped_files`
    driver: tuple[tuple[int, int], ...] = ()  # pid, bytes mapped of devices, by name
    exact: ExactMemory | None = None
    hugetlb_in_use: int | None = None
    # Of pages that are alike KSM keeps one. Bytes that this saves on the machine, None where it does nothing; and pid,
    # bytes of its anonymous memory that are such pages.
    merged_saves: int | None = None
    merged: tuple[tuple[int, int], ...] = ()
