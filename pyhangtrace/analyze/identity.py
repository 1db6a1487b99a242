"""Who is who: the claims of several sources about a process, compared. A conflict gives no rank, and says so."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import Role, SourceState
from pyhangtrace.model.processes import ProcessFacts, RankClaim
from pyhangtrace.model.ranks import fold, job_identity
from pyhangtrace.model.report import Coverage

# Siblings in order of start are usually ranks in order, but nothing guarantees it.
_WEAK_SOURCES = ("start order",)

# What only the memory of a process tells, so that nobody can be searched for by it.
_MEMORY_SOURCES = ("program environ", "process group")

# What says a rank, and nothing of where the others are.
_UNPLACED_SOURCES = frozenset({"process group", "command line --rank"})
_PLACES = frozenset({"MASTER_ADDR", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NNODES"})

# Roles that inherit the environment of a rank without being one.
_NOT_RANKS = frozenset(
    {Role.LAUNCHER, Role.DATA_WORKER, Role.COMPILER, Role.OUTSIDER, Role.DETOKENIZER, Role.OTHER}
)

_LOCAL_ADDRESSES = ("localhost", "127.", "::1", "0.0.0.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What one process is."""

    rank: int | None = None
    local_rank: int | None = None
    coords: tuple[tuple[str, int], ...] = ()
    sources: tuple[str, ...] = ()
    placed_by: tuple[str, ...] = ()  # what the coordinates are known from


@dataclass(frozen=True, slots=True, kw_only=True)
class Identities:
    """All processes, and what is known of the group as a whole.

    `one_host` is False when ranks live elsewhere too, so that one without a process here proves nothing. Neither
    does it while there are `nameless` processes beside the ranks, any of which may be the one that is not seen.
    `all_found` is False if ranks of the job could be on this host without being known as such.
    `ended` are the zombies that the missing ranks have become: as many as are missing, which is which if it is one.
    """

    by_pid: Mapping[int, Identity]
    pid_of_rank: Mapping[int, int]
    world_size: int | None
    one_host: bool
    nameless: tuple[int, ...]
    coverage: tuple[Coverage, ...]
    ended: tuple[int, ...] = ()
    all_found: bool = True

    def rank(self, pid: int) -> int | None:
        """The process' global rank, None if unknown or disputed."""
        identity = self.by_pid.get(pid)
        return identity.rank if identity else None

    @property
    def ranks_seen(self) -> tuple[int, ...]:
        """Ranks with a process here."""
        return tuple(sorted(self.pid_of_rank))

    @property
    def ranks_unseen(self) -> tuple[int, ...]:
        """Ranks of the world that no process seen is, wherever they are."""
        if self.world_size is None or not self.pid_of_rank:
            return ()
        return tuple(sorted(set(range(self.world_size)) - set(self.pid_of_rank)))

    @property
    def ranks_missing(self) -> tuple[int, ...]:
        """Ranks that should be on this host and have no process."""
        if self.nameless or not self.one_host or not self.all_found:
            return ()
        return self.ranks_unseen


def identify(evidence: Evidence) -> Identities:
    """Merges the claims of all processes."""
    notes: list[Coverage] = []
    by_pid: dict[int, Identity] = {}
    for process in sorted(evidence.processes, key=lambda process: process.pid):
        by_pid[process.pid] = _merge(process, notes)
    group_size = _ranks_of_groups(evidence, by_pid)
    _settle_duplicates(evidence, by_pid, notes)
    pid_of_rank = {who.rank: pid for pid, who in sorted(by_pid.items()) if who.rank is not None}
    world_size = _world_size(evidence, notes) or group_size
    if world_size is not None and pid_of_rank and max(pid_of_rank) >= world_size:
        notes.append(
            _conflict(
                f"rank {max(pid_of_rank)} does not fit a world of {world_size}; the world size is not used"
            )
        )
        world_size = None
    nameless = _nameless(evidence, by_pid)
    if nameless and world_size is not None and len(pid_of_rank) < world_size:
        unseen = fold(set(range(world_size)) - set(pid_of_rank))
        words = f"nothing says who of pid {', '.join(map(str, nameless))} is rank {unseen}"
        notes.append(Coverage(source="ranks", state=SourceState.ABSENT, reason=words))
    identities = Identities(
        nameless=nameless,
        by_pid=by_pid,
        pid_of_rank=pid_of_rank,
        world_size=world_size,
        one_host=_one_host(evidence, world_size) and not _place_unknown(evidence, by_pid, world_size),
        all_found=_all_found(evidence, by_pid),
        coverage=tuple(notes),
    )
    if identities.ranks_unseen and not identities.ranks_missing and not nameless:
        unseen, seen = fold(identities.ranks_unseen), len(pid_of_rank)
        words = f"rank {unseen} of {world_size} is not among the {seen} found here: what it does is not known"
        identities = replace(
            identities, coverage=(*notes, Coverage(source="ranks", state=SourceState.ABSENT, reason=words))
        )
    zombies = _zombies(evidence, by_pid)
    as_many = bool(zombies) and len(zombies) == len(identities.ranks_missing)
    return replace(identities, ended=zombies) if as_many else identities


def _ranks_of_groups(evidence: Evidence, by_pid: dict[int, Identity]) -> int | None:
    """Ranks that the programs were given by other means than the environment: what their process group says.

    Only where nobody has a rank yet, and where all who are in a default group are members of the same one. Returns its
    size.
    """
    if any(who.rank is not None for who in by_pid.values()):
        return None
    own = {group.pid: group for group in evidence.groups if group.is_default and group.rank is not None}
    worlds = {group.ranks for group in own.values()}
    taken = [group.rank for group in own.values()]
    if len(worlds) != 1 or len(set(taken)) != len(taken):
        return None
    for pid, group in own.items():
        who = by_pid.get(pid)
        if who is not None:
            by_pid[pid] = replace(who, rank=group.rank, sources=("process group",))
    return len(worlds.pop())


def _zombies(evidence: Evidence, by_pid: Mapping[int, Identity]) -> tuple[int, ...]:
    """Ended children of who started the ranks, those under the ranks' name first; only their rank is not known."""
    processes = {process.pid: process for process in evidence.processes}
    ranks = _ranks(by_pid)
    starters = {processes[pid].ppid for pid in ranks}
    names = {processes[pid].comm for pid in ranks}
    ended = [
        pid
        for pid, process in sorted(processes.items())
        if (process.state in ("Z", "X") or process.gone)
        and process.ppid in starters
        and process.role in (Role.RANK, Role.OTHER)
        and pid not in ranks
    ]
    alike = [pid for pid in ended if processes[pid].comm in names]
    return tuple(alike or ended)


def _merge(process: ProcessFacts, notes: list[Coverage]) -> Identity:
    claims = tuple(claim for claim in process.claims if claim.source not in _WEAK_SOURCES)
    coords = _coords(claims)
    placed_by = tuple(dict.fromkeys(claim.source for claim in claims if claim.coords)) if coords else ()
    if process.role in _NOT_RANKS:
        return Identity(coords=coords, placed_by=placed_by)
    said: dict[int, list[str]] = {}
    for claim in claims:
        if claim.rank is not None and claim.rank >= 0:
            said.setdefault(claim.rank, []).append(claim.source)
    local = {claim.local_rank for claim in claims if claim.local_rank is not None}
    local_rank = local.pop() if len(local) == 1 else None
    if len(said) > 1:
        words = ", ".join(f"{rank} ({'; '.join(sources)})" for rank, sources in sorted(said.items()))
        notes.append(_conflict(f"pid {process.pid} has more than one rank: {words}"))
        return Identity(local_rank=local_rank, coords=coords, placed_by=placed_by)
    if not said:
        return Identity(local_rank=local_rank, coords=coords, placed_by=placed_by)
    rank, sources = next(iter(said.items()))
    return Identity(
        rank=rank,
        local_rank=local_rank,
        coords=coords,
        sources=tuple(dict.fromkeys(sources)),
        placed_by=placed_by,
    )


def _coords(claims: tuple[RankClaim, ...]) -> tuple[tuple[str, int], ...]:
    merged: dict[str, int | None] = {}
    for claim in claims:
        for name, value in claim.coords:
            merged[name] = value if merged.get(name, value) == value else None
    return tuple((name, value) for name, value in sorted(merged.items()) if value is not None)


def _settle_duplicates(evidence: Evidence, by_pid: dict[int, Identity], notes: list[Coverage]) -> None:
    # A child inherits RANK from its parent: the eldest is the rank. Strangers with one rank cancel each other.
    parents = {process.pid: process.ppid for process in evidence.processes}
    claimed: dict[int, list[int]] = {}
    for pid, who in by_pid.items():
        if who.rank is not None:
            claimed.setdefault(who.rank, []).append(pid)
    for rank, pids in sorted(claimed.items()):
        if len(pids) < 2:
            continue
        eldest = [pid for pid in pids if not any(_descends(pid, other, parents) for other in pids)]
        for pid in pids:
            if len(eldest) != 1 or pid != eldest[0]:
                who = by_pid[pid]
                by_pid[pid] = replace(who, rank=None, sources=())
        if len(eldest) != 1:
            notes.append(_conflict(f"rank {rank} is claimed by pids {', '.join(map(str, eldest or pids))}"))


def _nameless(evidence: Evidence, by_pid: Mapping[int, Identity]) -> tuple[int, ...]:
    """Living processes beside the ranks that could be one."""
    processes = {process.pid: process for process in evidence.processes}
    parents = {pid: process.ppid for pid, process in processes.items()}
    ranks = set(_ranks(by_pid))
    starters = {parents[pid] for pid in ranks}
    above = _ancestors(ranks, parents)
    found = []
    for pid, process in sorted(processes.items()):
        could_be = process.role in (Role.RANK, Role.OTHER, Role.LAUNCHER, Role.ENGINE, Role.SCHEDULER)
        alive = process.state not in ("Z", "X") and not process.gone
        helper = "resource_tracker" in process.title or pid in above
        if pid not in ranks and parents[pid] in starters and could_be and alive and not helper:
            found.append(pid)
    return tuple(found)


def _all_found(evidence: Evidence, by_pid: Mapping[int, Identity]) -> bool:
    """Whether a rank of this job that is on this host had to be found.

    Ranks are searched for by the environment they were started with, or below who started them. One that only the
    program's own memory calls a rank is found by accident.
    """
    processes = {process.pid: process for process in evidence.processes}
    ranks = _ranks(by_pid)
    by_environment = any(
        job_identity(dict(processes[pid].identity)) is not None
        and any(not source.startswith(_MEMORY_SOURCES) for source in by_pid[pid].sources)
        for pid in ranks
    )
    return by_environment or all(_has_starter(processes, ranks, pid) for pid in ranks)


def _has_starter(processes: Mapping[int, ProcessFacts], ranks: Collection[int], pid: int) -> bool:
    """Whether its parent has started the ranks: another one too, or it runs the same program. What a rank alone was
    started through (`timeout`, a shell) knows of no other.
    """
    parent = processes.get(processes[pid].ppid)
    if parent is None:
        return False
    children = sum(processes[each].ppid == parent.pid for each in ranks)
    return children > 1 or (parent.exe is not None and parent.exe == processes[pid].exe)


def _ranks(by_pid: Mapping[int, Identity]) -> tuple[int, ...]:
    return tuple(pid for pid, who in by_pid.items() if who.rank is not None)


def _ancestors(pids: Iterable[int], parents: Mapping[int, int]) -> set[int]:
    """All processes above these."""
    found: set[int] = set()
    for pid in pids:
        above = parents.get(pid)
        while above is not None and above != pid and above not in found:
            found.add(above)
            above = parents.get(above)
    return found


def _descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    seen = set()
    while pid in parents and pid not in seen:
        seen.add(pid)
        pid = parents[pid]
        if pid == ancestor:
            return ancestor not in seen
    return False


def _world_size(evidence: Evidence, notes: list[Coverage]) -> int | None:
    said = {
        claim.world_size
        for process in evidence.processes
        if process.role is not Role.OUTSIDER
        for claim in process.claims
        if claim.world_size is not None and claim.world_size > 0
    }
    if not said:
        size = evidence.job.world_size
        return size if size is not None and size > 0 else None
    if len(said) > 1:
        notes.append(_conflict(f"the world has {fold(said)} members, depending on whom one asks"))
        return None
    return said.pop()


def _one_host(evidence: Evidence, world_size: int | None) -> bool:
    """Whether nothing points to ranks elsewhere. The name of this host as the address where all meet does: from here
    alone nobody needs it.
    """
    for process in evidence.processes:
        values = dict(process.identity)
        local = values.get("LOCAL_WORLD_SIZE") or values.get("OMPI_COMM_WORLD_LOCAL_SIZE") or ""
        if local.isdigit() and world_size is not None and int(local) < world_size:
            return False
        nodes = values.get("SLURM_NNODES") or values.get("GROUP_WORLD_SIZE") or ""
        if nodes.isdigit() and int(nodes) > 1:
            return False
        address = values.get("MASTER_ADDR", "")
        has_local = bool(local) or bool(nodes)
        if address and not has_local and not address.startswith(_LOCAL_ADDRESSES):
            return False
    return True


def _place_unknown(evidence: Evidence, by_pid: Mapping[int, Identity], world_size: int | None) -> bool:
    """Whether nothing but the programs' own arguments, or their process group, tells of the ranks: then nothing says
    where all meet. Zombies for all that are not seen here say that those were here.
    """
    ranks = _ranks(by_pid)
    sources = {source for pid in ranks for source in by_pid[pid].sources}
    placed = any(
        dict(process.identity).keys() & _PLACES for process in evidence.processes if process.pid in ranks
    )
    if placed or not sources or not sources <= _UNPLACED_SOURCES:
        return False
    return world_size is None or len(_zombies(evidence, by_pid)) != world_size - len(ranks)


def _conflict(reason: str) -> Coverage:
    return Coverage(source="ranks", state=SourceState.FAILED, reason=reason)
