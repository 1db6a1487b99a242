"""Functions whose calls can be recorded on request, where they are in a process, and what their arguments say.

NCCL: order of arguments, data types and operations after nccl.h (2.0 to 2.32; RCCL has the same). MPI: after the
standard's C binding; its data types are handles whose meaning is the library's own. gloo: C++ functions of one object.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.stacks import native_engine

CALLED_FUNCTIONS_TASK = "called functions"

_NCCL_TYPES = ("i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2")
_NCCL_OPERATIONS = ("sum", "prod", "max", "min", "avg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function. The numbers are those of its arguments, from 0 on: `object` is what it works on (a communicator, a
    mutex), `count`, `dtype`, `operation` and `peer` (root, or the rank on the other side) describe a collective.
    """

    family: str
    libraries: tuple[str, ...]  # how the names of the files begin that it may be in
    symbol: str
    name: str
    object: int | None = None
    count: int | None = None
    dtype: int | None = None
    operation: int | None = None
    peer: int | None = None

    @property
    def told(self) -> bool:
        """Whether each call is worth telling: collectives are, locks are not."""
        return self.family != "mutex"


def _nccl(name: str, **numbers: int) -> Function:
    return Function(
        family="collectives", libraries=("libnccl.so", "librccl.so"), symbol=name, name=name, **numbers
    )


def _mpi(name: str, **numbers: int) -> Function:
    return Function(
        family="collectives", libraries=("libmpi.so", "libmpich.so"), symbol=name, name=name, **numbers
    )


def _gloo(name: str, *, constant: bool = False) -> Function:
    options = f"{name.title()}Options"
    return Function(
        family="collectives",
        libraries=("libtorch_cpu.so", "libgloo"),
        symbol=f"_ZN4gloo{len(name)}{name}ER{'K' if constant else ''}NS_{len(options)}{options}E",
        name=f"gloo::{name}",
    )


def _cuda(library: str, *names: str) -> tuple[Function, ...]:
    return tuple(
        Function(family="cuda", libraries=(library,), symbol=name, name=name, object=0) for name in names
    )


def _mutex(*names: str) -> tuple[Function, ...]:
    # Its home is libc since glibc 2.34, and was libpthread before.
    homes = ("libpthread.so", "libpthread-2", "libc.so", "libc-2")
    return tuple(
        Function(
            family="mutex",
            libraries=homes,
            symbol=name,
            name=name,
            object=0,
        )
        for name in names
    )


_REDUCING = {"count": 2, "dtype": 3, "operation": 4, "object": 5}
_ROOTED = {"count": 2, "dtype": 3, "peer": 4, "object": 5}
_GATHERING = {"count": 2, "dtype": 3, "object": 4}
_BETWEEN = {"count": 1, "dtype": 2, "peer": 3, "object": 4}

FUNCTIONS: tuple[Function, ...] = (
    _nccl("ncclAllReduce", **_REDUCING),
    _nccl("ncclReduceScatter", **_REDUCING),
    _nccl("ncclBroadcast", **_ROOTED),
    _nccl("ncclBcast", **_BETWEEN),
    _nccl("ncclReduce", count=2, dtype=3, operation=4, peer=5),
    _nccl("ncclAllGather", **_GATHERING),
    _nccl("ncclAlltoAll", **_GATHERING),
    _nccl("ncclGather", **_ROOTED),
    _nccl("ncclScatter", **_ROOTED),
    _nccl("ncclSend", **_BETWEEN),
    _nccl("ncclRecv", **_BETWEEN),
    _nccl("ncclGroupEnd"),
    _nccl("ncclCommInitRank"),
    _nccl("ncclCommInitRankConfig"),
    _nccl("ncclCommSplit", object=0),
    _nccl("ncclCommFinalize", object=0),
    _nccl("ncclCommDestroy", object=0),
    _nccl("ncclCommAbort", object=0),
    _mpi("MPI_Allreduce", count=2, object=5),
    _mpi("MPI_Reduce", count=2, peer=5),
    _mpi("MPI_Bcast", count=1, peer=3, object=4),
    _mpi("MPI_Barrier", object=0),
    _mpi("MPI_Allgather", count=1),
    _mpi("MPI_Allgatherv", count=1),
    _mpi("MPI_Gather", count=1),
    _mpi("MPI_Scatter", count=1),
    _mpi("MPI_Alltoall", count=1),
    _mpi("MPI_Alltoallv"),
    _mpi("MPI_Reduce_scatter"),
    _mpi("MPI_Reduce_scatter_block", count=2, object=5),
    _mpi("MPI_Send", count=1, peer=3, object=5),
    _mpi("MPI_Recv", count=1, peer=3, object=5),
    _mpi("MPI_Wait"),
    _mpi("MPI_Waitall", count=0),
    _gloo("allreduce", constant=True),
    _gloo("allgather"),
    _gloo("allgatherv"),
    _gloo("alltoall"),
    _gloo("alltoallv"),
    _gloo("barrier"),
    _gloo("broadcast"),
    _gloo("gather"),
    _gloo("gatherv"),
    _gloo("reduce"),
    _gloo("scatter"),
    *_cuda("libcudart.so", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize"),
    *_cuda("libcuda.so", "cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"),
    *_mutex("pthread_mutex_lock", "pthread_mutex_timedlock", "pthread_mutex_unlock"),
)
FAMILIES = tuple(dict.fromkeys(function.family for function in FUNCTIONS))


@dataclass(frozen=True, slots=True)
class Found:
    """A function in a process: its address, and the same place in the mapped file, by a path that opens it."""

    number: int
    address: int
    path: str
    offset: int
    file: tuple[int, int, int]  # device (major, minor) and inode


def called_functions_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: where the functions of the families in `argument` are in each process."""
    from pyhangtrace import _native

    wanted = [(number, each) for number, each in enumerate(FUNCTIONS) if each.family in argument]
    libraries = dict.fromkeys(library for _, each in wanted for library in each.libraries)
    for pid in pids:
        progress(pid)
        engine = native_engine(state)
        try:
            mappings = _native.maps(pid, state.proc_root)
        except OSError:
            continue
        loaded = {os.path.basename(mapping[7]) for mapping in mappings if "x" in mapping[2]}
        found: dict[int, Found] = {}
        for library in libraries:
            here = [(n, each) for n, each in wanted if library in each.libraries and n not in found]
            if not here or not any(name.startswith(library) for name in loaded):
                continue
            addresses = engine.symbol_addresses(pid, library, [each.symbol for _, each in here])
            for (number, _), address in zip(here, addresses, strict=True):
                place = _place(pid, mappings, number, address, state.proc_root)
                if place is not None:
                    found[number] = place
        yield pid, list(found.values())


def _place(
    pid: int,
    mappings: Sequence[tuple[int, int, str, int, int, int, int, str, bool]],
    number: int,
    address: int | None,
    proc_root: str,
) -> Found | None:
    if address is None:
        return None
    for start, end, access, offset, major, minor, inode, _, _ in mappings:
        if start <= address < end and "x" in access and inode:
            # By this name the file opens in whatever mount namespace the process lives, also when it is deleted.
            path = f"{proc_root}/{pid}/map_files/{start:x}-{end:x}"
            return Found(number, address, path, offset + address - start, (major, minor, inode))
    return None


def find(
    reader: GuardedReader, pids: Sequence[int], families: Sequence[str], *, deadline_s: float
) -> dict[int, list[Found]]:
    """For each process the functions of these families that it has."""
    answers = reader.run(CALLED_FUNCTIONS_TASK, pids, tuple(families), deadline_s=deadline_s)
    return {pid: found for pid, found in answers.values.items() if found}


def places(found: Mapping[int, Sequence[Found]]) -> list[tuple[str, int, int]]:
    """The breakpoints that all these functions need. Those in a library of everybody's go into the targets alone,
    others once into the file.
    """
    wanted: dict[tuple[object, ...], tuple[str, int, int]] = {}
    for pid, functions in sorted(found.items()):
        for each in functions:
            own = pid if FUNCTIONS[each.number].family == "mutex" else 0
            wanted.setdefault((own, each.file, each.offset), (each.path, each.offset, own))
    return list(wanted.values())


def sites(found: Mapping[int, Sequence[Found]], none: int) -> list[tuple[int, int, int, int, bool]]:
    """The functions by process and address; `none` stands for "no argument"."""
    return [
        (
            pid,
            each.address,
            each.number,
            none if (of := FUNCTIONS[each.number].object) is None else of,
            FUNCTIONS[each.number].told,
        )
        for pid, functions in sorted(found.items())
        for each in functions
    ]


def describe(number: int, arguments: Sequence[int], communicators: Mapping[int, str]) -> str:
    """A call in words: `ncclAllReduce 1024 x f32 sum, rank 1 of 2`."""
    function = FUNCTIONS[number]
    words = [function.name]
    if function.count is not None:
        count = arguments[function.count] & (
            (1 << 64) - 1 if function.name.startswith("nccl") else 0x7FFFFFFF
        )
        kind = ""
        if function.dtype is not None:
            kind = _named(_NCCL_TYPES, arguments[function.dtype])
        words.append(f"{count} x {kind}" if kind else f"of {count}")
    if function.operation is not None:
        words.append(_named(_NCCL_OPERATIONS, arguments[function.operation]))
    if function.peer is not None:
        peer = arguments[function.peer] & 0xFFFFFFFF
        words.append(("to" if function.name.endswith("Send") else "with") + f" {peer - (peer >> 31 << 32)}")
    text = " ".join(words)
    if function.object is not None and (known := communicators.get(arguments[function.object])):
        text += f", {known}"
    return text


def _named(names: Sequence[str], value: int) -> str:
    value &= 0xFFFFFFFF
    return names[value] if value < len(names) else f"type {value}"
