"""NCCL's communicators, joined over processes by their hash: who of a communicator has launched what.

Kernels of a communicator run in the order of their launches, and each waits for the same one of all ranks. So the rank
that has launched the fewest collectives is what the others wait for, and the operation is the first that it lacks.
Launches of captured graphs are in no counter: equal counters do not say that nobody is missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.nccl import FUNCTIONS, NcclCommunicator, NcclTask, dtype_name, function_name

# Releases that count by function do so for the first of FUNCTIONS.
_COUNTED = 5

# Of a kernel's name only the function is one that it surely serves: types and algorithms share kernels.
_KERNEL = re.compile(r"^nccl(?:Dev)?Kernel_(AllReduce|AllGather|ReduceScatter|Reduce|Broadcast)(?=_|\()")
_KERNEL_FUNCTIONS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Reduce": "reduce",
    "Broadcast": "broadcast",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One collective, as far as it is known."""

    op: str
    count: int | None = None
    dtype: str | None = None
    root: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rank of a communicator. `counts` are its collectives, by function or all together; () if none is known."""

    pid: int
    comm: NcclCommunicator
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """Collectives launched."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The ranks of one communicator that are seen here, by rank. `settled`: none of them is being set up, taken down,
    or has launched anything between the first and the last picture.
    """

    comm_hash: int
    n_ranks: int
    members: tuple[Member, ...]
    settled: bool

    @property
    def name(self) -> str:
        """What the program calls it, or its hash."""
        names = {member.comm.name for member in self.members if member.comm.name}
        return names.pop() if len(names) == 1 else f"comm {self.comm_hash:#x}"

    @property
    def complete(self) -> bool:
        """Whether all of its ranks are seen."""
        return len(self.members) == self.n_ranks


def join(evidence: Evidence) -> tuple[Joined, ...]:
    """All communicators of the last picture, in order of their first members."""
    if not evidence.nccl:
        return ()
    before = {
        (state.pid, comm.address): comm for state in evidence.nccl[0].states for comm in state.communicators
    }
    groups: dict[tuple[int, int], list[tuple[int, NcclCommunicator]]] = {}
    for state in evidence.nccl[-1].states:
        for comm in state.communicators:
            groups.setdefault((comm.comm_hash, comm.n_ranks), []).append((state.pid, comm))
    joined = []
    for (comm_hash, n_ranks), comms in groups.items():
        comms.sort(key=lambda each: (each[1].rank, each[0]))
        if len({comm.rank for _, comm in comms}) != len(comms):
            continue  # two that say they are the same rank: whatever this is, it tells nothing
        joined.append(
            Joined(
                comm_hash=comm_hash,
                n_ranks=n_ranks,
                members=_members(comms),
                settled=len(evidence.nccl) > 1
                and all(_stays(before.get((pid, comm.address)), comm) for pid, comm in comms),
            )
        )
    return tuple(sorted(joined, key=lambda each: (each.members[0].pid, each.members[0].comm.address)))


def _members(comms: Sequence[tuple[int, NcclCommunicator]]) -> tuple[Member, ...]:
    """The counter that counts in this release, the same for all: those of the functions (2.23 to 2.25 have them, and
    only count with a profiler), else that of all collectives, which stays 0 within a node from 2.27 on.
    """
    by_function = any(comm.launched is not None and any(comm.launched) for _, comm in comms)
    members = []
    for pid, comm in comms:
        counts: tuple[int, ...] = ()
        if by_function:
            counts = comm.launched or ()
        elif comm.coll_op_count is not None and any(other.coll_op_count for _, other in comms):
            counts = (comm.coll_op_count,)
        members.append(Member(pid=pid, comm=comm, counts=counts))
    return tuple(members)


def _stays(before: NcclCommunicator | None, now: NcclCommunicator) -> bool:
    if before is None or before.comm_hash != now.comm_hash:
        return False
    if now.setting_up or now.finalizing or now.destroyed or now.revoked or now.aborted:
        return False
    return (before.launched, before.coll_op_count, before.op_count, before.plans) == (
        now.launched,
        now.coll_op_count,
        now.op_count,
        now.plans,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Some ranks of a communicator have launched fewer collectives than others: `seq` is the first that is lacking."""

    ahead: tuple[Member, ...]
    behind: tuple[Member, ...]
    seq: int
    operation: Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """All ranks have launched something, and not the same: each side with what it did."""

    sides: tuple[tuple[Operation, tuple[Member, ...]], ...]
    seq: int | None
    sizes_only: bool


def lag(joined: Joined) -> Lag | None:
    """Who is behind; None if nobody is, or if the ranks did different things, so that a number means nothing."""
    members = [member for member in joined.members if member.counts]
    if len(members) < 2 or len(members) != len(joined.members) or not _ordered(members):
        return None
    least, most = min(member.total for member in members), max(member.total for member in members)
    if least == most:
        return None
    return Lag(
        ahead=tuple(member for member in members if member.total > least),
        behind=tuple(member for member in members if member.total == least),
        seq=least + 1,
        operation=_operation(members, least),
    )


def _ordered(members: Sequence[Member]) -> bool:
    """Whether each has done all that those behind it have, as often."""
    in_order = sorted((member.counts for member in members), key=sum)
    return all(
        len(one) == len(two) and all(fewer <= more for fewer, more in zip(one, two, strict=True))
        for one, two in pairwise(in_order)
    )


def last(joined: Joined) -> tuple[int, Operation] | None:
    """The number of the newest collective that all ranks seen here have launched, and which it is; None if they have
    not all launched the same, or nothing.
    """
    if len({member.counts for member in joined.members}) != 1 or joined.members[0].total == 0:
        return None
    newest = {tail[-1] for member in joined.members if (tail := _tail(member))}
    if len(newest) > 1:
        return None
    return joined.members[0].total, newest.pop() if newest else Operation(op="unknown")


def parting(joined: Joined) -> Parting | None:
    """How ranks that have launched equally much differ, in the newest launches that are still recorded; None if they
    do not, or if not all ranks are seen.
    """
    members = joined.members
    if not joined.complete or len(members) < 2 or not all(member.counts for member in members):
        return None
    if len({member.total for member in members}) != 1:
        return None
    tails = [_tail(member) for member in members]
    depth = min(map(len, tails))
    for back in range(depth, 0, -1):
        now = [tail[-back] for tail in tails]
        if len(set(now)) > 1:
            seq = members[0].total - back + 1
            return _sides(members, now, seq)
    if len({member.counts for member in members}) > 1:
        return Parting(sides=_unnamed_sides(members), seq=None, sizes_only=False)
    return None


def _sides(members: Sequence[Member], operations: Sequence[Operation], seq: int) -> Parting:
    sides: dict[Operation, list[Member]] = {}
    for member, operation in zip(members, operations, strict=True):
        sides.setdefault(operation, []).append(member)
    return Parting(
        sides=tuple((operation, tuple(side)) for operation, side in sides.items()),
        seq=seq,
        sizes_only=len({operation.op for operation in sides}) == 1,
    )


def _unnamed_sides(members: Sequence[Member]) -> tuple[tuple[Operation, tuple[Member, ...]], ...]:
    """By what they have done in all: what each did last is what it has done more often than the others."""
    sides: dict[tuple[int, ...], list[Member]] = {}
    for member in members:
        sides.setdefault(member.counts, []).append(member)
    least = [min(counts) for counts in zip(*sides, strict=True)]
    named = []
    for counts, side in sides.items():
        named.append((Operation(op=_done_more(counts, least)), tuple(side)))
    return tuple(named)


def _done_more(counts: Sequence[int], least: Sequence[int]) -> str:
    """The only function that was called more often than that; "unknown" if several were, or one counter is for all."""
    more = [number for number, (count, than) in enumerate(zip(counts, least, strict=True)) if count > than]
    return FUNCTIONS[more[0]] if len(more) == 1 and len(counts) == _COUNTED else "unknown"


def _tail(member: Member) -> list[Operation]:
    """Its last collectives, newest last, as far as they are known without a gap."""
    known: list[Operation] = []
    for plan in reversed(member.comm.plans):
        collectives = [task for task in plan.tasks if not task.p2p]
        count = len(collectives) if plan.tasks else plan.collectives
        kernel = _KERNEL.search(plan.kernel or "")
        if count == 0:
            continue
        # Of several in one group, NCCL launches them in an order of its own.
        if count != 1 or not (collectives or kernel):
            break
        known.append(
            _of_task(collectives[0])
            if collectives
            else Operation(op=_KERNEL_FUNCTIONS[kernel.group(1)] if kernel else "unknown")
        )
    if not known and member.comm.last_task is not None and not member.comm.plans:
        known.append(_of_task(member.comm.last_task))
    return known[: member.total][::-1]


def _of_task(task: NcclTask) -> Operation:
    op = function_name(task.function)
    root = task.root if op in ("broadcast", "reduce", "scatter", "gather") else None
    return Operation(op=op, count=task.count, dtype=dtype_name(task.dtype), root=root)


def _operation(members: Sequence[Member], least: int) -> Operation:
    """The collective after `least` of them, by who has launched it: of those who are the least ahead."""
    ahead = sorted((member for member in members if member.total > least), key=lambda each: each.total)
    for member in ahead:
        tail = _tail(member)
        back = member.total - least
        if len(tail) >= back:
            return tail[-back]
    first = ahead[0]
    behind = next(member for member in members if member.total == least)
    return Operation(op=_done_more(first.counts, behind.counts))


def counted(counts: Mapping[str, int] | Sequence[int]) -> str:
    """Counters in words."""
    if isinstance(counts, Sequence) and len(counts) == _COUNTED:
        said = [f"{count} {FUNCTIONS[n]}" for n, count in enumerate(counts) if count]
        return ", ".join(said) or "none"
    return f"{sum(counts if isinstance(counts, Sequence) else counts.values())} collectives"
