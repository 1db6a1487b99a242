"""What NCCL's RAS service said, where it was asked: who is behind in which communicator, and who does not answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyhangtrace.model.ras import RasAnswer, RasCommunicator, RasGroup, RasPeer
from pyhangtrace.model.report import Report
from pyhangtrace.render.clean import clean
from pyhangtrace.render.text.layout import Row
from pyhangtrace.render.text.words import numbers, plural

_MOST_COMMUNICATORS = 8
_MOST_PEERS = 8


def ras_rows(report: Report) -> Iterator[Row]:
    """A row for each communicator with a problem, and for what RAS says of the whole job."""
    answer = report.ras
    if answer is None:
        return
    for problem in answer.problems:
        named = f": {_peers(problem.processes)}" if problem.processes else ""
        yield Row(label=problem.kind.lower(), lines=(clean(problem.text + named),))
    troubled = [each for each in answer.communicators if each.problems]
    for communicator in troubled[:_MOST_COMMUNICATORS]:
        yield Row(
            label=f"comm {communicator.hash[:8]}",
            lines=tuple(clean(line) for line in _told(communicator)),
        )
    if len(troubled) > _MOST_COMMUNICATORS:
        yield Row(label="", lines=(f"and {len(troubled) - _MOST_COMMUNICATORS} more",))
    if not troubled and not answer.problems:
        yield Row(label="says", lines=(_nothing(answer),))


def _nothing(answer: RasAnswer) -> str:
    if answer.no_data or not (answer.communicators or answer.table):
        return "no communicator is complete yet"
    return "all ranks have launched the same collectives; sends, receives and graphs are not counted"


def _told(communicator: RasCommunicator) -> Iterator[str]:
    for op in dict.fromkeys(group.op for group in communicator.counts):
        groups = [group for group in communicator.counts if group.op == op]
        if len({group.launched for group in groups}) > 1:
            name = op or "collectives"
            yield f"{name} launched: " + "; ".join(f"{group.launched} by {_who(group)}" for group in groups)
    if len(communicator.states) > 1:
        yield "; ".join(f"{_who(group)}: {group.text}" for group in communicator.states)
    for group in communicator.errors:
        yield f"{_who(group)} reported {group.text}"
    if communicator.missing_count:
        named = f": {_peers(communicator.missing)}" if communicator.missing else ""
        yield f"no data of {plural(communicator.missing_count, 'rank')}{named}"


def _who(group: RasGroup) -> str:
    if len(group.ranks) == 1 and group.number == 1:
        return _peer(group.ranks[0])
    ranks = [peer.rank for peer in group.ranks if peer.rank is not None]
    return numbers(ranks, "rank") if len(ranks) == group.number else plural(group.number, "rank")


def _peers(peers: Iterable[RasPeer]) -> str:
    listed = [_peer(peer) for peer in peers]
    more = f" and {len(listed) - _MOST_PEERS} more" if len(listed) > _MOST_PEERS else ""
    return ", ".join(listed[:_MOST_PEERS]) + more


def _peer(peer: RasPeer) -> str:
    where = f"pid {peer.pid} on {peer.host}" if peer.pid is not None else ""
    if peer.rank is None:
        return where or "?"
    return f"rank {peer.rank} ({where})" if where else f"rank {peer.rank}"
