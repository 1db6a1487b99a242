"""Waits for a GPU whose NCCL kernels wait for another rank: which collective, and who has not launched it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.calls import first_own_frame
from pyhangtrace.analyze.fronts import front
from pyhangtrace.analyze.leaving import absent_key
from pyhangtrace.analyze.nccl_calls import match_messages, match_set_up
from pyhangtrace.analyze.nccl_comms import (
    Joined,
    Lag,
    Member,
    Operation,
    Parting,
    counted,
    join,
    lag,
    last,
    parting,
)
from pyhangtrace.analyze.progress import GOES_ON
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import Confidence, Edge, Kind, WaitKind
from pyhangtrace.model.report import Collective, Mismatched, WaitObject

_SOURCE = "nccl memory"

# An operation that lacks somebody: the collective's id, what it is, in which communicator, and for whom it waits.
_Open = tuple[str, Operation, Joined, tuple[Key, ...]]


def match(scene: Scene, waits: dict[Key, Blocked], found: list[Collective]) -> Kind | None:
    """Gives waits for the GPU their collectives and targets, where NCCL's counters tell; how ranks parted, if so."""
    kept: dict[Key, list[_Open]] = {}
    parted: Kind | None = None
    communicators = join(scene.evidence)
    match_set_up(scene, waits)
    match_messages(scene, waits, communicators)
    for joined in communicators:
        if not joined.settled:
            continue
        late = lag(joined)
        if late is not None:
            _say_lag(scene, waits, joined, late, kept, found)
            continue
        apart = parting(joined)
        if apart is not None:
            parted = _say_parting(scene, waits, joined, apart, found) or parted
        elif not joined.complete:
            _say_gone(scene, waits, joined, kept, found)
    for key, open_ones in kept.items():
        _attach(waits, key, open_ones)
    return parted


def _gpu_waits(scene: Scene, waits: Mapping[Key, Blocked], pid: int) -> list[Key]:
    """Threads of a process that wait for the GPU, and have not moved."""
    return [
        key
        for key in scene.threads_of(pid)
        if key in waits
        and waits[key].kind is WaitKind.GPU
        and waits[key].service is None
        and waits[key].progress not in GOES_ON
    ]


def _ranks(scene: Scene, members: Sequence[Member]) -> tuple[int, ...]:
    """Their global ranks; the ranks in the communicator, where one process has several or a global rank is unknown."""
    numbers = [scene.who.rank(member.pid) for member in members]
    known = [number for number in numbers if number is not None]
    if len(known) == len(members) == len(set(known)):
        return tuple(sorted(known))
    return tuple(sorted(member.comm.rank for member in members))


def _say_lag(
    scene: Scene,
    waits: Mapping[Key, Blocked],
    joined: Joined,
    late: Lag,
    kept: dict[Key, list[_Open]],
    found: list[Collective],
) -> None:
    pids_behind = {member.pid for member in late.behind}
    waiting = {
        key: None
        for member in late.ahead
        if member.pid not in pids_behind
        for key in _gpu_waits(scene, waits, member.pid)
    }
    # Launched is not waited for: whoever does not wait may be on its way still.
    inside = any(_gpu_waits(scene, waits, member.pid) for member in late.ahead)
    if not inside:
        return
    name = _add(
        found,
        joined,
        late.operation,
        seq=late.seq,
        expected=_ranks(scene, joined.members) if joined.complete else (),
        entered=_of(scene, joined, late.ahead),
        missing=_of(scene, joined, late.behind),
    )
    targets = tuple(dict.fromkeys(front(scene, waits, member.pid) for member in late.behind))
    for key in waiting:
        kept.setdefault(key, []).append((name, late.operation, joined, targets))


def _say_gone(
    scene: Scene,
    waits: Mapping[Key, Blocked],
    joined: Joined,
    kept: dict[Key, list[_Open]],
    found: list[Collective],
) -> None:
    """All who are left have launched the same and wait for it: ranks that have failed will not come.

    Nobody knows what those had launched. Who ended without an error may have done its part.
    """
    newest = last(joined)
    numbers = {member.comm.rank: scene.who.rank(member.pid) for member in joined.members}
    if newest is None or scene.who.world_size != joined.n_ranks:
        return
    if any(rank != number for rank, number in numbers.items()):
        return
    gone = {rank: absent_key(scene, rank) for rank in sorted(set(range(joined.n_ranks)) - set(numbers))}
    if any(rank not in scene.who.ranks_missing or not scene.exit_status(key) for rank, key in gone.items()):
        return
    waiting = {member.pid: _gpu_waits(scene, waits, member.pid) for member in joined.members}
    if not all(waiting.values()):
        return
    seq, operation = newest
    name = _add(
        found,
        joined,
        operation,
        seq=seq,
        expected=tuple(range(joined.n_ranks)),
        entered=tuple(sorted(numbers)),
        missing=tuple(gone),
    )
    for keys in waiting.values():
        for key in keys:
            kept.setdefault(key, []).append((name, operation, joined, tuple(gone.values())))


def _add(
    found: list[Collective],
    joined: Joined,
    operation: Operation,
    *,
    seq: int | None,
    expected: tuple[int, ...],
    entered: tuple[int, ...],
    missing: tuple[int, ...],
    mismatched: tuple[Mismatched, ...] = (),
) -> str:
    """Adds a collective of a communicator; gives its id."""
    name = f"c{len(found)}"
    found.append(
        Collective(
            id=name,
            group=joined.name,
            backend="nccl",
            op=operation.op,
            seq=seq,
            count=operation.count,
            dtype=operation.dtype,
            root=operation.root,
            expected=expected,
            entered=entered,
            missing=missing,
            mismatched=mismatched,
            sources=(_SOURCE,),
        )
    )
    return name


def _of(scene: Scene, joined: Joined, members: Sequence[Member]) -> tuple[int, ...]:
    """Ranks of some members, numbered as all of them can be."""
    by_world = _ranks(scene, joined.members) == tuple(
        sorted(rank for member in joined.members if (rank := scene.who.rank(member.pid)) is not None)
    )
    if by_world and len({member.pid for member in joined.members}) == len(joined.members):
        return tuple(sorted(rank for member in members if (rank := scene.who.rank(member.pid)) is not None))
    return tuple(sorted(member.comm.rank for member in members))


def _attach(
    waits: dict[Key, Blocked],
    key: Key,
    open_ones: Sequence[_Open],
) -> None:
    """A thread waits for its stream, of which it is not known what is in it: with several operations that lack
    somebody it may be any of them.
    """
    name, operation, joined, _ = open_ones[0]
    every = tuple(dict.fromkeys(target for each in open_ones for target in each[3]))
    one = len({each[3] for each in open_ones}) == 1
    wait = waits[key]
    waits[key] = changed(
        wait,
        kind=WaitKind.COLLECTIVE,
        standing=Standing.FIRM,
        cause=Kind.COLLECTIVE_MISSING_RANK,
        basis=Confidence.LIKELY if one else Confidence.POSSIBLE,
        edge=Edge.ALL if one else Edge.ANY,
        object=_object(wait, name, operation),
        targets=every,
        candidates=every,
        group=joined.name,
        from_counters=True,
        evidence=(*wait.evidence, *(_words(each[2]) for each in open_ones)),
    )


def _object(wait: Blocked, name: str, operation: Operation) -> WaitObject:
    return replace(wait.object, collective=name, name=operation.op)


def _words(joined: Joined) -> str:
    said = "; ".join(
        f"rank {member.comm.rank} (pid {member.pid}) {counted(member.counts)}" for member in joined.members
    )
    return f"NCCL memory: {joined.name} of {joined.n_ranks} has launched: {said}"


def _say_parting(
    scene: Scene, waits: dict[Key, Blocked], joined: Joined, apart: Parting, found: list[Collective]
) -> Kind | None:
    keys = {
        member.pid: _gpu_waits(scene, waits, member.pid) for _, members in apart.sides for member in members
    }
    if not all(keys.values()):
        return None
    kind = Kind.COLLECTIVE_SIZE_MISMATCH if apart.sizes_only else Kind.COLLECTIVE_OP_MISMATCH
    fronts = {member.pid: keys[member.pid][0] for member in joined.members}
    for operation, members in apart.sides:
        others = [(other, member) for other, side in apart.sides if other != operation for member in side]
        name = _add(
            found,
            joined,
            operation,
            seq=apart.seq,
            expected=_ranks(scene, joined.members),
            entered=_of(scene, joined, members),
            missing=_of(scene, joined, [member for _, member in others]),
            mismatched=tuple(_mismatched(scene, joined, *other) for other in others),
        )
        targets = tuple(fronts[member.pid] for _, member in others)
        for member in members:
            for key in keys[member.pid]:
                wait = waits[key]
                waits[key] = changed(
                    wait,
                    kind=WaitKind.COLLECTIVE,
                    standing=Standing.FIRM,
                    cause=kind,
                    basis=Confidence.LIKELY,
                    object=_object(wait, name, operation),
                    targets=targets,
                    candidates=targets,
                    group=joined.name,
                    from_counters=True,
                    evidence=(*wait.evidence, _words(joined)),
                )
    return kind


def _mismatched(scene: Scene, joined: Joined, operation: Operation, member: Member) -> Mismatched:
    sample = scene.thread((member.pid, member.pid))
    return Mismatched(
        rank=_of(scene, joined, [member])[0],
        op=operation.op,
        count=operation.count,
        dtype=operation.dtype,
        frame=first_own_frame(sample.frames) if sample is not None else None,
    )
