"""Flight recorders of torch.distributed (c10d::FlightRecorder): the ring in which a process notes its operations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFrame:
    """Of the call that began an operation. `line` 0: unknown."""

    function: str  # qualified name from CPython 3.11 on
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOperation:
    """One operation, as the recorder has it. `inputs` and `outputs` are shapes of tensors, types are c10's ("Float").

    `collective`, `p2p` and `op_id` count within the group; times are nanoseconds since the epoch, of start and end
    those when they were noticed. `retired`: the backend has let go of it, so it has ended. `frames`: innermost first.
    """

    id: int
    pg_id: int = 0
    group: str
    description: str = ""
    name: str  # with the backend: "gloo:all_reduce"
    collective: int = 0
    p2p: int = 0
    op_id: int = 0
    is_p2p: bool = False
    created_ns: int = 0
    timeout_ms: int = 0
    duration_ms: float | None = None
    started_ns: int | None = None
    completed_ns: int | None = None
    retired: bool = False
    inputs: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    thread_id: int = 0  # pthread_t
    thread_name: str = ""
    frames: tuple[RecordedFrame, ...] = ()

    @property
    def backend(self) -> str:
        """Who carries it out: "gloo"."""
        return self.name.partition(":")[0]

    @property
    def operation(self) -> str:
        """The name without the backend."""
        return self.name.partition(":")[2]

    @property
    def sequence(self) -> int:
        """Its number among the collectives of its group, or among the point-to-point operations."""
        return self.p2p if self.is_p2p else self.collective

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self.retired or self.completed_ns is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    """Numbers of collectives of a group, as its backend counts them; -1: none yet."""

    pg_id: int
    enqueued: int
    started: int
    completed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderFacts:
    """A recorder with all that it holds, oldest first. `most`: how many it can hold; `recorded`: how many there were
    since it was made or reset. `whole`: none is missing.
    """

    pid: int
    library: str  # which part of torch it belongs to: "libtorch_cpu.so"
    most: int = 0
    recorded: int = 0
    resets: int = 0
    whole: bool = False
    operations: tuple[RecordedOperation, ...] = ()
    progress: tuple[GroupProgress, ...] = ()
    library_version: str = ""  # of NCCL
