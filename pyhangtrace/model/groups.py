"""Process groups of torch.distributed and communicators of MPI, as their members' memory describes them."""

from __future__ import annotations

from dataclasses import dataclass

from pyhangtrace.model.kinds import StoreAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOperation:
    """An operation that a process group was given and that has not ended. `inputs` and `outputs` are shapes of tensors.

    `sequence` counts the collectives of the group, or its point-to-point operations, from 1 on. `source` is where it is
    known from: the "flight recorder", or the "gloo memory" of the operation itself. `left_s`: seconds until its timeout
    is over.
    """

    op: str
    backend: str = ""
    sequence: int = 0
    is_p2p: bool = False
    inputs: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    dtype: str | None = None
    source: str = "flight recorder"
    left_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroupFacts:
    """A process group of torch.distributed, as the memory of one of its members describes it.

    `name` is torch's own ("0", "1", a hash), `description` what the program told torch to call it ("default_pg", "tp"),
    `called` what an engine calls it elsewhere ("tp:0"), `address` that of the Python object, `ranks` are the global
    ranks in order of their ranks in the group, `rank` is the own global one. `recorded`: its operations are known;
    `begun` is the number of the last collective (0: none yet).
    Of a communicator of MPI `awaits` are (rank, tag) of messages expected; -1 is any rank, tags below -1 are those of
    collectives.
    """

    pid: int
    name: str
    ranks: tuple[int, ...]
    address: int | None = None
    description: str = ""
    called: str = ""
    rank: int | None = None
    is_default: bool = False
    recorded: bool = False
    begun: int = 0
    pending: tuple[PendingOperation, ...] = ()
    awaits: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWait:
    """What the memory of a process says of what one of its threads waits for in torch.distributed.

    `keys` of the store as the program asked for them, `full_keys` as the store has them. `work` is the operation whose
    object the thread waits on, at the condition `condition`; `rank` is the own rank in its group, of `size` members.
    `setters` are processes of whose source it is certain that they set one of the keys next, once they get on.
    `address` is that of a store that is not reached, `answer` why not as far as this host shows it.
    """

    pid: int
    tid: int
    keys: tuple[str, ...] = ()
    full_keys: tuple[str, ...] = ()
    setters: tuple[int, ...] = ()
    condition: int | None = None
    work: PendingOperation | None = None
    rank: int | None = None
    size: int | None = None
    address: str | None = None
    answer: StoreAnswer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiFacts:
    """What the memory of a process says of MPI. `communicators` are () if not all of them make sense.

    `receives`: of its communicators all messages that it expects are known.
    `messages` is a digest of the counters of its messages: while it stays, none was matched. None: it has no such ones.
    `between_groups`: it has a communicator of two groups (an intercommunicator), so that a rank that a call names may
    be one of the other group, also of another world.
    """

    pid: int
    communicators: tuple[ProcessGroupFacts, ...] = ()
    messages: int | None = None
    receives: bool = False
    between_groups: bool = False
