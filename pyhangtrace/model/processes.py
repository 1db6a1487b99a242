"""What a process is: who it belongs to, its rank by each source, its memory and its interpreter."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyhangtrace.model.kinds import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClaim:
    """One source's word on who a process is; claims are compared, never trusted alone."""

    source: str  # "environ RANK", "program environ RANK", "title", "start order", …
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    coords: tuple[tuple[str, int], ...] = ()  # (("tp", 0), ("pp", 1))
    framework: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Memory of one process in bytes; from status (cheap) and, where read, smaps."""

    rss: int | None = None
    anon: int | None = None
    file: int | None = None
    shmem: int | None = None
    swap: int | None = None
    hugetlb: int | None = None
    page_tables: int | None = None
    pss: int | None = None
    uss: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFacts:
    """The interpreter inside a process."""

    version: str
    layout_from: str
    free_threaded: bool = False
    gil_address: int | None = None
    gil_locked: bool | None = None
    gil_holder_tid: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PosixTimer:
    """A timer that a process has made (timer_create). Whether it is set, and when it is over, the kernel does not show.

    `signal` is what it sends, None if it sends none; `clock` the number of its clock, as in clock_gettime(2).
    """

    signal: int | None
    clock: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """One process: a member of the job, or an outsider that a wait leads to (`role` outsider).

    `problem` says why nothing more could be read ("mmap_lock_held", "not_permitted", "gone", "zombie",
    "kernel_thread", "32bit"; "timed_out", "no_time": not this time); `problem_tid` the thread that causes it, where
    known. `exit_code` is the wait status of a zombie as /proc shows it to those who may see it.
    """

    pid: int
    ppid: int = 0
    role: Role = Role.OTHER
    comm: str = ""
    title: str = ""
    exe: str = ""
    uid: int | None = None
    state: str = "?"
    started_s_ago: float | None = None
    start_ticks: int = 0
    stack_start: int | None = None  # execve places it by chance, fork leaves it where it is
    pgid: int | None = None
    sid: int | None = None
    tracer_pid: int | None = None
    signals_caught: tuple[int, ...] | None = None  # numbers of the signals it has handlers for
    timers: tuple[PosixTimer, ...] = ()
    alarm_s: float | None = None  # seconds until its alarm (alarm, setitimer), where asked for and set
    map_lock_tid: int | None = (
        None  # the thread that has its memory map's lock to change it (kernel's record)
    )
    lock_sharers: tuple[int, ...] | None = (
        None  # all who have mapped memory with a lock that its threads want, itself included, where asked for
    )
    same_memory: tuple[int, ...] = ()  # parents and children that run in its memory (clone with CLONE_VM)
    exit_code: int | None = None
    python: PythonFacts | None = None
    modules: tuple[str, ...] = ()  # frameworks seen loaded: torch, vllm, sglang, ray, mpi, nccl, gloo …
    claims: tuple[RankClaim, ...] = ()
    forked_from_rank: int | None = None  # a copy of this rank, which has ended since
    identity: tuple[tuple[str, str], ...] = ()  # the few environment values that identify a rank or a job
    limits: tuple[tuple[str, int], ...] = ()  # seconds, by the option or variable that sets a time limit
    memory: ProcessMemory = field(default_factory=ProcessMemory)
    cgroup: str | None = None
    frozen_by: str | None = None  # the control group that keeps it frozen
    cpu_cgroup: str | None = None  # the nearest one with a CPU quota, by its path below the controller
    throttled_s_in_window: float | None = None  # how long that quota kept its members off the CPU
    container: bool = False  # another PID namespace than ours
    gone: bool = False  # disappeared between the first and the last look
    cpu_s_in_window: float | None = None
    read_bytes_in_window: int | None = None
    problem: str | None = None
    problem_tid: int | None = None
