"""Ranks of a communicator of which no process was seen here: where NCCL says that they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyhangtrace.analyze.nccl_comms import Joined
from pyhangtrace.analyze.nccl_devices import gpu_words
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.nccl import NcclMember, NcclPeer
from pyhangtrace.model.ranks import fold

_MOST_TOLD = 4

# "192.0.2.7:40123", "[fe80::1]:40123"
_HOST = re.compile(r"\[?(.*?)\]?:\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """A rank of which no process was seen. `same_host`: as this one; None if that is not known."""

    member: NcclMember
    same_host: bool | None
    host: str | None = None
    pid: int | None = None

    @property
    def words(self) -> str:
        """`rank 5 on host 192.0.2.7, pid 4711, GPU 1 (0000:81:00.0)`."""
        told = [f"rank {self.member.rank}"]
        if self.same_host:
            told[0] += " on this host"
        elif self.host is not None:
            told[0] += f" on host {self.host}"
        elif self.same_host is False:
            told[0] += " on another host"
        if self.pid is not None:
            told.append(f"pid {self.pid}")
        return ", ".join((*told, gpu_words(self.member)))


def elsewhere(evidence: Evidence, joined: Joined) -> tuple[Elsewhere, ...]:
    """Of whom NCCL tells something."""
    knows = next((member for member in joined.members if member.comm.others), None)
    if knows is None:
        return ()
    seen = {member.comm.rank for member in joined.members}
    own = next((each for each in knows.comm.others if each.rank == knows.comm.rank), None)
    peers = [peer for state in evidence.nccl[-1].states if state.pid == knows.pid for peer in state.peers]
    return tuple(
        _place(each, own, peers) for each in knows.comm.others if each.rank not in seen and each is not own
    )


def _place(member: NcclMember, own: NcclMember | None, peers: Sequence[NcclPeer]) -> Elsewhere:
    same = member.host_hash == own.host_hash if own is not None else None
    of_it = [peer for peer in peers if (peer.host_hash, peer.pid_hash) == (member.host_hash, member.pid_hash)]
    if len(of_it) != 1:
        return Elsewhere(member=member, same_host=same)
    found = _HOST.match(of_it[0].address)
    return Elsewhere(member=member, same_host=same, host=found[1] if found else None, pid=of_it[0].pid)


def absent_words(evidence: Evidence, joined: Joined) -> str | None:
    """`rank 5 on host 192.0.2.7, pid 4711, GPU 1; not looked at from here`; None where all ranks are seen."""
    lacking = sorted(set(range(joined.n_ranks)) - {member.comm.rank for member in joined.members})
    if not lacking:
        return None
    told = [each.words for each in elsewhere(evidence, joined)[:_MOST_TOLD]]
    rest = len(lacking) - len(told)
    if not told:
        return f"rank{'s' if rest > 1 else ''} {fold(lacking)}, not looked at from here"
    more = f"; {rest} more" if rest else ""
    return f"{'; '.join(told)}{more}; not looked at from here"
