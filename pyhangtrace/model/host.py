"""The machine, its memory pressure and limits, and the files that the job maps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedFile:
    """A file (or shared segment) mapped by members of the job; `resident` is what the page cache holds of
    it.
    """

    path: str
    device: int
    inode: int
    size: int | None
    resident: int | None
    mappers: tuple[int, ...]
    kind: str = "file"  # file, shmem, hugetlb


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupFacts:
    """The memory cgroup of the job (the nearest with a limit) and its CPU quota, as far as visible from
    here.
    """

    version: int
    path: str
    limit: int | None = None
    usage: int | None = None
    oom_kills: int | None = None
    cache: int | None = None
    anon: int | None = None
    nr_throttled: int | None = None
    throttled_s: float | None = None
    frozen: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureFacts:
    """Pressure stall information: share of time in percent over 10 s."""

    memory_some: float | None = None
    memory_full: float | None = None
    io_some: float | None = None
    io_full: float | None = None
    cpu_some: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OomKill:
    """One OOM kill known from the kernel log."""

    pid: int
    comm: str
    text: str
    age_s: float | None = None  # before the evidence was taken
    constraint: str | None = (
        None  # "CONSTRAINT_MEMCG": a group's limit, "CONSTRAINT_NONE": all of the machine's memory
    )
    limit_of: str | None = None  # the control group whose limit was met
    cgroup: str | None = None  # that of the process


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The machine at the time of the evidence."""

    name: str
    kernel: str = ""
    machine: str = ""  # x86_64, aarch64
    cpus: int = 0
    page_size: int = 4096
    ticks_per_s: int = 100
    uptime_s: float | None = None
    memory_total: int | None = None
    memory_available: int | None = None
    memory_mapped: int | None = None
    memory_shmem: int | None = None
    memory_cached: int | None = None
    swap_total: int | None = None
    swap_free: int | None = None
    shm_size: int | None = None
    shm_free: int | None = None
    pressure: PressureFacts | None = None
    oom_kills: int | None = None  # since boot, vmstat oom_kill
    oom_log: tuple[OomKill, ...] = ()
    xids: tuple[str, ...] = ()
