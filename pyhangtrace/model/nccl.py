"""What NCCL's own memory says of a process: its communicators, what they have launched, and calls in progress.

Numbers are NCCL's (nccl.h): results, functions, types. What a release does not record, or what could not be read, is
`None`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyhangtrace.model.stacks import Frame

#: ncclFunc_t, the same from 2.18 on (the last ones since 2.28 and 2.29), by the names that torch.distributed gives.
FUNCTIONS = (
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "send_recv",
    "send",
    "recv",
    "all_to_all",
    "scatter",
    "gather",
    "all_gather_v",
    "put_signal",
    "signal",
    "wait_signal",
)
#: ncclDataType_t
DTYPES = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8_e4m3",
    "float8_e5m2",
)


#: ncclResult_t, as ncclGetErrorString words it.
RESULTS = (
    "no error",
    "unhandled cuda error",
    "unhandled system error",
    "internal error",
    "invalid argument",
    "invalid usage",
    "remote process exited or there was a network error",
    "in progress",
    "timeout",
)
_IN_PROGRESS = 7


#: NCCL_ALGO_* and NCCL_PROTO_*, as NCCL_ALGO and NCCL_PROTO name them.
ALGORITHMS = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")


def way_name(algorithm: int, protocol: int) -> str | None:
    """`Ring, LL`: how a collective is carried out."""
    if not 0 <= algorithm < len(ALGORITHMS) or not 0 <= protocol < len(PROTOCOLS):
        return None
    return f"{ALGORITHMS[algorithm]}, {PROTOCOLS[protocol]}"


def function_name(number: int) -> str:
    """What an operation is called."""
    return FUNCTIONS[number] if 0 <= number < len(FUNCTIONS) else f"function {number}"


def dtype_name(number: int) -> str | None:
    """What a type of elements is called."""
    return DTYPES[number] if 0 <= number < len(DTYPES) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTask:
    """One operation of a launched kernel. `root` is the peer of a message. NCCL counts what it only moves in bytes:
    of a gather of 128 bfloat16 this says 256 int8.
    """

    function: int
    count: int
    dtype: int
    op: int = -1
    root: int = -1
    algorithm: int = -1
    protocol: int = -1
    p2p: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclPlan:
    """What was launched with one kernel; `tasks` since 2.23, before that only the number of `collectives`."""

    kernel: str | None = None
    collectives: int | None = None
    tasks: tuple[NcclTask, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTransfer:
    """What the proxy thread works on, in steps: a receive that was posted and did not come waits for the peer, a send
    that was posted and not transmitted waits for the kernel of the own GPU.
    """

    peer: int
    steps: int
    posted: int
    received: int
    transmitted: int
    done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclMember:
    """What one rank of a communicator knows of another one: equal hashes are one host, and one process of it."""

    rank: int
    cuda_device: int
    host_hash: int
    pid_hash: int
    bus_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclCommunicator:
    """One rank of a communicator. `comm_hash` is the same in all of its ranks.

    `found_by`: list, magic or fingerprint. `launched` counts collectives by function (broadcast, reduce, all_gather,
    reduce_scatter, all_reduce), since 2.26 and without those of captured graphs; `op_count` counts all launches, and
    stays 0 within one node from 2.27 to 2.30. `plans` are the last launches, newest last, completed or not.
    `waiting` are enqueued in a group of calls that has not been closed. `captured`: graphs launch for it, which no
    number counts. `bus_id` is the GPU's domain << 20 | bus << 12 | device << 4 | function. `others` are ranks of which
    no process was seen, and this one itself, as far as NCCL knows them; some, where there are many.
    """

    address: int
    found_by: str
    comm_hash: int
    rank: int
    n_ranks: int
    cuda_device: int
    bus_id: int | None = None
    n_nodes: int | None = None
    name: str | None = None
    init_state: int | None = None
    async_result: int | None = None
    proxy_result: int | None = None
    peers_known: bool | None = None
    aborted: bool | None = None
    finalizing: bool | None = None
    destroyed: bool | None = None
    revoked: bool | None = None
    in_group: bool | None = None
    split: bool | None = None
    op_count: int | None = None
    coll_op_count: int | None = None
    launched: tuple[int, ...] | None = None
    waiting: int | None = None
    captured: bool | None = None
    plans: tuple[NcclPlan, ...] = ()
    last_task: NcclTask | None = None
    transfers: tuple[NcclTransfer, ...] = ()
    others: tuple[NcclMember, ...] = ()

    @property
    def setting_up(self) -> bool:
        """Whether its set-up is known not to be done."""
        return self.init_state not in (None, 0)

    @property
    def error(self) -> str | None:
        """What failed in it while nobody was in a call."""
        number = self.async_result or self.proxy_result
        if number in (None, 0, _IN_PROGRESS):
            return None
        return RESULTS[number] if number < len(RESULTS) else f"error {number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclCall:
    """A call of NCCL that thread `tid` is in. `name` as NCCL has it ("AllReduce"), `root` is the peer of a message."""

    tid: int
    function: int
    name: str
    count: int
    dtype: int
    op: int
    root: int
    communicator: int
    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclPeer:
    """A process of the job, on this or another host, that NCCL's RAS subsystem knows (since 2.24). `cuda_devices` has
    one bit a device; hashes as of `NcclMember` (0: not recorded, before 2.26).
    """

    address: str
    pid: int
    cuda_devices: int
    host_hash: int
    pid_hash: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclState:
    """What NCCL knows in one process. `layout_from`: dwarf, table, release, disassembly or fingerprint. `searched`:
    memory was searched for communicators, beyond the library's list.
    """

    pid: int
    library: str
    build_id: str
    layout_from: str
    communicators: tuple[NcclCommunicator, ...] = ()
    calls: tuple[NcclCall, ...] = ()
    peers: tuple[NcclPeer, ...] = ()
    searched: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclPicture:
    """All processes that have NCCL loaded, one shortly after the other. `at_s` counts from the first look."""

    at_s: float
    states: tuple[NcclState, ...]


_LIBRARIES = ("libnccl.so", "librccl.so")
_FUNCTION = re.compile(r"p?nccl[A-Z]\w*")


def is_in_nccl(frame: Frame) -> bool:
    """Whether a frame is one of NCCL's (or RCCL's), also where it was linked into another file."""
    if frame.module is None:
        return False
    own = frame.module.rpartition("/")[2].startswith(_LIBRARIES)
    return own or _FUNCTION.match(frame.function) is not None
