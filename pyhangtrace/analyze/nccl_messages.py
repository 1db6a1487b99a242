"""Messages that ranks of a communicator have launched: which of them the other side has not.

No counter counts them; the last launches that NCCL keeps (2.27 and newer) show them. Kernels of a communicator run in
the order of their launches, so what two ranks sent and received before a collective that both have launched is over or
still ahead of it on both sides. From the first such collective on that both still show, or from the first launch of
all, each message needs its other half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from pyhangtrace.analyze.blocked import Blocked, changed
from pyhangtrace.analyze.fronts import front
from pyhangtrace.analyze.nccl_comms import Joined, Member
from pyhangtrace.analyze.nccl_told import told
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import Confidence, Edge, Kind, WaitKind
from pyhangtrace.model.nccl import NcclPlan, NcclTask, function_name

# As many as are read of one launch: there may be more.
_MOST_TASKS = 64

_OTHER_HALF = {"send": "recv", "recv": "send"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """`number` messages that `member` has launched, and whose other half `peer` has not."""

    member: Member
    peer: Member
    op: str
    number: int
    count: int  # elements of the last one

    @property
    def words(self) -> str:
        """`rank 0 has launched 2 more send to rank 1 than that has recv`."""
        way, other = ("to", _OTHER_HALF[self.op]) if self.op == "send" else ("from", _OTHER_HALF[self.op])
        return (
            f"NCCL memory: rank {self.member.comm.rank} has launched {self.number} {self.op} {way} rank"
            f" {self.peer.comm.rank} without a {other} there, the last of {self.count} elements"
        )


def unanswered(joined: Joined) -> tuple[Unanswered, ...]:
    """All of a communicator whose ranks have launched the same collectives; () where what they show does not tell."""
    if len({member.counts for member in joined.members}) != 1:
        return ()
    if any(member.comm.captured for member in joined.members):
        return ()  # a graph may have launched the other half
    shown = {member.comm.rank: _since(member) for member in joined.members}
    found = []
    for member in joined.members:
        for peer in joined.members:
            if peer is not member:
                found += _between(member, peer, shown)
    return tuple(found)


def _between(
    member: Member, peer: Member, shown: Mapping[int, Mapping[int, list[NcclTask]]]
) -> list[Unanswered]:
    common = shown[member.comm.rank].keys() & shown[peer.comm.rank].keys()
    found = []
    for op, half in _OTHER_HALF.items():
        own = _with(_within(shown, member, common), peer, op)
        lacking = len(own) - len(_with(_within(shown, peer, common), member, half))
        # One that it launched before the first of these collectives may be the other half: then the order is wrong.
        in_all = len(_with(_all(member), peer, op)) - len(_with(_all(peer), member, half))
        if min(lacking, in_all) > 0:
            number = min(lacking, in_all)
            found.append(Unanswered(member=member, peer=peer, op=op, number=number, count=own[-1].count))
    return found


def _within(
    shown: Mapping[int, Mapping[int, list[NcclTask]]], member: Member, common: Set[int]
) -> list[NcclTask]:
    return [task for seq in sorted(common) for task in shown[member.comm.rank][seq]]


def _all(member: Member) -> list[NcclTask]:
    return [task for plan in member.comm.plans for task in plan.tasks if task.p2p]


def _with(tasks: Sequence[NcclTask], other: Member, op: str) -> list[NcclTask]:
    """Those of one kind with one peer."""
    return [task for task in tasks if task.root == other.comm.rank and function_name(task.function) == op]


def _since(member: Member) -> dict[int, list[NcclTask]]:
    """Its messages after each collective that it still shows, by the collective's number; 0 stands for the begin."""
    seq = member.total
    messages: dict[int, list[NcclTask]] = {}
    behind: list[NcclTask] = []
    for plan in reversed(member.comm.plans):
        if not _is_whole(plan):
            return messages
        collectives = sum(not task.p2p for task in plan.tasks)
        behind = [*(task for task in plan.tasks if task.p2p), *behind]
        if collectives:
            # Those of one group of calls have no order that both sides would share.
            messages[seq] = behind
            seq, behind = seq - collectives, []
    if seq == 0 and member.comm.op_count == len(member.comm.plans):
        messages[0] = behind
    return messages


def _is_whole(plan: NcclPlan) -> bool:
    return 0 < len(plan.tasks) < _MOST_TASKS


def attach(
    scene: Scene,
    waits: dict[Key, Blocked],
    gpu_waits: Sequence[Key],
    joined: Joined,
    open_ones: Sequence[Unanswered],
) -> None:
    """Threads of one process that wait for the GPU, with what its messages lack."""
    peers = tuple(dict.fromkeys(one.peer.pid for one in open_ones))
    targets = tuple(front(scene, waits, pid) for pid in peers)
    one = len(targets) == 1
    last = open_ones[-1]
    for key in gpu_waits:
        wait = waits[key]
        waits[key] = told(
            wait,
            tuple(each.words for each in open_ones),
            kind=WaitKind.P2P,
            cause=Kind.P2P_UNMATCHED,
            object=changed(
                wait.object, name=last.op, peer_rank=scene.who.rank(last.peer.pid) if one else None
            ),
            targets=targets,
            group=joined.name,
            # Which of them it is that its stream has come to is not known.
            basis=Confidence.LIKELY if one else Confidence.POSSIBLE,
            edge=Edge.ALL if one else Edge.ANY,
        )
