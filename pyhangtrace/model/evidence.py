"""What was seen. Plain, frozen, ordered data: analysis needs nothing else, so a saved bundle gives the same
report.

Everything that could not be read is `None` (or an empty tuple where a list was asked for) and has a line in
`coverage`. All times are seconds unless the name says otherwise; all sizes are bytes; addresses are as the
target sees them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyhangtrace.model.gpu import CudaProcess, DriverFacts, GpuFacts
from pyhangtrace.model.groups import GroupWait, MpiFacts, ProcessGroupFacts
from pyhangtrace.model.host import CgroupFacts, HostFacts, MappedFile
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.logs import LogMark
from pyhangtrace.model.memory import MemoryFacts
from pyhangtrace.model.nccl import NcclPicture
from pyhangtrace.model.open_files import FdFacts, FileLock, IpcFacts, LockFile, SharedSegment
from pyhangtrace.model.probes import ProbeEvidence
from pyhangtrace.model.processes import ProcessFacts
from pyhangtrace.model.ras import RasAnswer
from pyhangtrace.model.recorders import RecorderFacts
from pyhangtrace.model.stacks import SourcePlace
from pyhangtrace.model.threads import TaskSample, ThreadSample

SCHEMA = "hangtrace.evidence/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """One source of evidence and what became of it; `fix` is a command or setting a person can apply."""

    source: str
    state: SourceState
    reason: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One picture of all threads. `at_s` counts from the first look."""

    at_s: float
    threads: tuple[ThreadSample, ...]
    fds: tuple[FdFacts, ...] = ()
    file_locks: tuple[FileLock, ...] = ()
    lock_files: tuple[LockFile, ...] = ()
    tasks: tuple[TaskSample, ...] = ()
    ipc: tuple[IpcFacts, ...] = ()
    segments: tuple[SharedSegment, ...] = ()
    mpi: tuple[MpiFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """How the group was found and what it is. `observers` are the processes that run us, from our parent up, as far as
    they are no members: what they do meanwhile is to wait for us.
    """

    root_pid: int
    members: tuple[int, ...]
    found_by: str  # a sentence: "torchrun agent 4200 and its descendants"
    framework: str | None = None
    world_size: int | None = None
    observers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What collecting did to the machine. `stopped_us` has pairs (pid, microseconds stopped)."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    stopped_us: tuple[tuple[int, int], ...] = ()
    probe_attached_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything one run saw on one host. `source` is for showing the last look's stacks, and no part of what they
    mean. `memory_alone`: nothing but memory was asked for, and no thread was looked at.
    """

    schema: str = SCHEMA
    tool_version: str
    taken_at: str  # RFC 3339
    attached_to: tuple[int, ...]
    host: HostFacts
    job: JobFacts
    processes: tuple[ProcessFacts, ...]
    looks: tuple[Look, ...]  # at least one, in order of time
    probes: tuple[tuple[int, ProbeEvidence], ...] = ()
    mapped_files: tuple[MappedFile, ...] = ()
    cgroup: CgroupFacts | None = None
    memory: MemoryFacts | None = None
    memory_alone: bool = False
    gpus: tuple[GpuFacts, ...] = ()
    gpu_driver: DriverFacts | None = None
    cuda: tuple[CudaProcess, ...] = ()
    coverage: tuple[SourceStatus, ...] = ()
    cost: Cost = field(default_factory=Cost)
    source: tuple[SourcePlace, ...] = ()
    groups: tuple[ProcessGroupFacts, ...] = ()
    group_waits: tuple[GroupWait, ...] = ()
    recorders: tuple[RecorderFacts, ...] = ()  # only where all that they hold was asked for
    log_marks: tuple[LogMark, ...] = ()
    ras: RasAnswer | None = None
    nccl: tuple[NcclPicture, ...] = ()  # in order of time; empty where nobody has libnccl loaded

    @property
    def window_s(self) -> float:
        """Seconds between the first and the last look."""
        return self.looks[-1].at_s - self.looks[0].at_s
