"""What is true of a plan, worked out from nothing but the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tests.lockgraphs.kinds import KINDS, Held, Kind, Record
from tests.lockgraphs.plan import Last, Plan, Player, Shape

_WAITS = (Last.WANT, Last.SHARE, Last.TIMED, Last.REARM, Last.AWAIT, Last.JOIN)
_TIMED = (Last.TIMED, Last.REARM)


class Owner(Enum):
    """What became of who is waited for."""

    HERE = "here"
    GONE = "ended"
    BEFORE_FORK = "a thread of the parent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One player's wait. ``owner`` is who can end it, whether that is recorded or not."""

    kind: Kind
    owner: str | None
    record: Record
    timed: bool = False
    is_here: Owner = Owner.HERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A cycle of waits. ``recorded``: it is known of each who can end it, so that it must be found; ``sure``: and
    recorded for good, so that it must be proven; ``may_prove``: nothing speaks against calling it so.
    """

    members: frozenset[str]
    recorded: bool
    sure: bool
    may_prove: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """``states``: those a report may give; ``may_name``: whom it may name in any part."""

    states: frozenset[str]
    waits: Mapping[str, Wait]
    rings: tuple[Ring, ...]
    may_name: frozenset[str]


_HUNG = frozenset({"hung"})
_OPEN = frozenset({"hung", "unknown", "idle", "running"})
_WELL = frozenset({"running", "idle", "unknown"})

_STATES = {
    Shape.CYCLE: _HUNG,
    Shape.CYCLE_APART: _HUNG,
    Shape.SOFT_CYCLE: _OPEN,
    Shape.TWO_CYCLES: _HUNG,
    Shape.ITSELF: _HUNG,
    Shape.SINK: _HUNG,
    Shape.WORKING: frozenset({"busy", "running"}),
    Shape.READING: _OPEN,
    Shape.AFTER_FORK: _HUNG,
    Shape.OWNER_GONE: _HUNG,
    Shape.TURNS: _WELL,
    Shape.FED: _WELL,
    # Who naps with a lock in hand may be called slow, if anybody is.
    Shape.CROSSED: _WELL | {"slow"},
    Shape.FILES: _HUNG,
    Shape.FILE_KEPT: _OPEN | {"slow", "busy"},
}


def truth_of(plan: Plan) -> Truth:
    """The truth of a plan."""
    waits = {player.name: wait for player in plan.players if (wait := _wait(plan, player)) is not None}
    rings = _rings(plan, waits)
    states = _STATES[plan.shape]
    if any(not ring.recorded and not ring.may_prove for ring in rings):
        # Where others move beside it, that may be all that can be said. Of those all of whom are stuck more can be.
        states |= {"unknown", "running"}
    return Truth(
        states=states,
        waits=waits,
        rings=rings,
        may_name=_may_name(plan, waits, rings),
    )


def _wait(plan: Plan, player: Player) -> Wait | None:
    if player.last not in _WAITS:
        return None
    kinds = KINDS[plan.language]
    if player.last is Last.JOIN:
        assert player.on is not None
        return Wait(kind=kinds["join"], owner=player.on, record=kinds["join"].record)
    thing = plan.thing(player.on)
    assert thing is not None
    if thing.kind == "pipe":
        return None
    kind = kinds[thing.kind]
    if kind.held is Held.SIGNAL:
        return Wait(kind=kind, owner=thing.signaller, record=Record.NONE)
    takers = [other for other in plan.players if any(take.thing == thing.name for take in other.takes)]
    if not takers:
        return Wait(kind=kind, owner=None, record=Record.NONE, timed=player.last in _TIMED)
    (owner,) = takers
    record = kind.record
    is_here = Owner.HERE
    if owner.last is Last.EXIT:
        is_here = Owner.GONE
    elif owner.process != player.process and not (thing.shared or kind.record is Record.PROCESS):
        is_here = Owner.BEFORE_FORK
        if kind.record is Record.FRAMES:
            # There are no frames of a thread that is not in the process.
            record = Record.NONE
    return Wait(kind=kind, owner=owner.name, record=record, timed=player.last in _TIMED, is_here=is_here)


def _rings(plan: Plan, waits: Mapping[str, Wait]) -> tuple[Ring, ...]:
    found: dict[frozenset[str], Ring] = {}
    stuck = _stuck(plan, waits)
    for start in waits:
        path: list[str] = []
        at: str | None = start
        while at is not None and at in waits and at not in path:
            path.append(at)
            at = waits[at].owner if waits[at].is_here is Owner.HERE else None
        if at is None or at not in path:
            continue
        ring = path[path.index(at) :]
        members = frozenset(ring)
        on_it = [waits[name] for name in ring]
        by_process = [wait.owner for wait in on_it if wait.record is Record.PROCESS and wait.owner]
        alone = all(_is_alone(plan, owner) for owner in by_process)
        recorded = all(wait.record is not Record.NONE for wait in on_it)
        timed = any(wait.timed for wait in on_it)
        found[members] = Ring(
            members=members,
            recorded=recorded
            and all(_stands_out(plan, waits, name) for name in ring if waits[name].record is Record.PROCESS),
            sure=recorded and alone and not timed and all(wait.record is not Record.FRAMES for wait in on_it),
            may_prove=members <= stuck,
        )
    return tuple(found.values())


def _stands_out(plan: Plan, waits: Mapping[str, Wait], waiter: str) -> bool:
    """Of a file lock the process is recorded, not the thread: all others of it wait for work, or for this one, as far
    as that is recorded. One that listens may have the lock as well, and give it back when somebody comes. In its own
    process a thread knows who has it only where there is no third one.
    """
    owner = waits[waiter].owner
    assert owner is not None
    process = plan.player(owner).process
    if plan.player(waiter).process == process:
        active = {
            player.name for player in plan.players if player.process == process and not _has_no_work(player)
        }
        return active == {waiter, owner}
    recorded = {name: wait for name, wait in waits.items() if wait.record is not Record.PROCESS}
    return all(_has_no_work(player) for player in _not_behind(plan, recorded, owner))


def _has_no_work(player: Player) -> bool:
    return player.decoy and player.last in (Last.AWAIT, Last.PAUSE)


def _not_behind(plan: Plan, waits: Mapping[str, Wait], owner: str) -> list[Player]:
    """Players of the owner's process whose waits, one after the other within it, do not lead to the owner."""
    process = plan.player(owner).process
    found = []
    for player in plan.players:
        if player.process != process:
            continue
        at: str | None = player.name
        passed: set[str] = set()
        while at is not None and at != owner and at not in passed and plan.player(at).process == process:
            passed.add(at)
            at = waits[at].owner if at in waits else None
        if at != owner:
            found.append(player)
    return found


def _stuck(plan: Plan, waits: Mapping[str, Wait]) -> frozenset[str]:
    """Who can never go on, as far as is recorded: whichever thread of a process has its file lock."""
    stuck = {
        name
        for name, wait in waits.items()
        if wait.record is not Record.NONE and wait.is_here is Owner.HERE and not wait.timed
    }

    def kept_by(wait: Wait) -> set[str]:
        assert wait.owner is not None
        if wait.record is not Record.PROCESS:
            return {wait.owner}
        process = plan.player(wait.owner).process
        return {player.name for player in plan.players if player.process == process}

    while free := {name for name in stuck if not kept_by(waits[name]) <= stuck}:
        stuck -= free
    return frozenset(stuck)


def _is_alone(plan: Plan, name: str) -> bool:
    process = plan.player(name).process
    return sum(player.process == process for player in plan.players) == 1


def _may_name(plan: Plan, waits: Mapping[str, Wait], rings: tuple[Ring, ...]) -> frozenset[str]:
    on_rings = {name for ring in rings for name in ring.members}
    if rings:
        return frozenset(on_rings)
    if plan.shape in (Shape.TURNS, Shape.FED):
        return frozenset()
    if plan.shape in (Shape.CROSSED, Shape.FILE_KEPT):
        return frozenset(player.name for player in plan.players if player.takes)
    if plan.shape in (Shape.OWNER_GONE, Shape.AFTER_FORK):
        # Nobody alive holds it: those who want it are all that can be named.
        return frozenset(name for name, wait in waits.items() if wait.is_here is not Owner.HERE)
    awaited = {wait.owner for wait in waits.values() if wait.owner is not None}
    ends = {name for name in awaited if name not in waits}
    writers = {
        player.name
        for thing in plan.things
        if thing.kind == "pipe" and thing.writer != thing.reader
        for player in plan.players
        if player.process == thing.writer and not player.decoy
    }
    return frozenset(ends | writers)
