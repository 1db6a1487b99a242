"""What NCCL's memory says of a communicator, as a line of evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyhangtrace.analyze.nccl_comms import Joined, Member, counted
from pyhangtrace.model.nccl import NcclTransfer, dtype_name, function_name, way_name
from pyhangtrace.model.ranks import fold


def nccl_words(joined: Joined) -> str:
    """Who has launched what, and what else NCCL says of them."""
    said = "; ".join(
        f"rank {member.comm.rank} (pid {member.pid}) {counted(member.counts)}{_beside(member)}"
        for member in joined.members
    )
    nodes = joined.members[0].comm.n_nodes or 1
    over = f" on {nodes} nodes" if nodes > 1 else ""
    return f"NCCL memory: {joined.name} of {joined.n_ranks}{over} has launched: {said}"


def _beside(member: Member) -> str:
    told = [*_newest(member)]
    if member.comm.waiting:
        told.append(f"{member.comm.waiting} more in a group of calls that is not closed")
    if member.comm.captured:
        told.append("and what captured graphs launch, which nothing counts")
    told += _under_way(member.comm.transfers)
    if member.comm.error is not None:
        told.append(f"NCCL has reported: {member.comm.error}")
    return f" ({'; '.join(told)})" if told else ""


def _newest(member: Member) -> Iterator[str]:
    """Its last launch, with how it is carried out."""
    for plan in reversed(member.comm.plans):
        for task in reversed(plan.tasks):
            way = way_name(task.algorithm, task.protocol)
            how = f", {way}" if way is not None else ""
            peer = f" with rank {task.root}" if task.p2p else ""
            size = f"{task.count} x {dtype_name(task.dtype) or 'elements'}"
            yield f"the last {function_name(task.function)}{peer} of {size}{how}"
            return


def _under_way(transfers: Sequence[NcclTransfer]) -> Iterator[str]:
    """What its proxy thread works on: nothing of that where ranks share memory."""
    open_ones = [each for each in transfers if each.done < each.steps]
    if open_ones:
        posted, done = (sum(getattr(each, name) for each in open_ones) for name in ("posted", "done"))
        steps = sum(each.steps for each in open_ones)
        peers = fold(each.peer for each in open_ones)
        yield f"its proxy has {posted} of {steps} steps with rank {peers} posted, {done} done"
