"""Waits for a GPU whose NCCL kernels wait for another rank: which collective, and who has not launched it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyhangtrace.analyze import nccl_messages
from pyhangtrace.analyze.blocked import Blocked, changed
from pyhangtrace.analyze.calls import first_own_frame
from pyhangtrace.analyze.fronts import front
from pyhangtrace.analyze.leaving import absent_key
from pyhangtrace.analyze.nccl_absent import absent_words
from pyhangtrace.analyze.nccl_calls import match_messages, match_set_up
from pyhangtrace.analyze.nccl_comms import (
    Joined,
    Lag,
    Member,
    Operation,
    Parting,
    join,
    lag,
    last,
    parting,
)
from pyhangtrace.analyze.nccl_devices import late_and_idle, ranks_words
from pyhangtrace.analyze.nccl_messages import Unanswered, unanswered
from pyhangtrace.analyze.nccl_told import told
from pyhangtrace.analyze.nccl_words import nccl_words
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
            continue
        lacking = unanswered(joined)
        if lacking:
            _say_unanswered(scene, waits, joined, lacking)
        elif not joined.complete and not _say_gone(scene, waits, joined, kept, found):
            _say_elsewhere(scene, waits, joined, found)
    for key, open_ones in kept.items():
        _attach(waits, key, open_ones)
    _say_errors(scene, waits, communicators)
    return parted


def _say_errors(scene: Scene, waits: dict[Key, Blocked], communicators: Sequence[Joined]) -> None:
    """What failed in a communicator while nobody was in a call of it, by those that wait for their GPUs."""
    for joined in communicators:
        for member in joined.members:
            if member.comm.error is None:
                continue
            said = (
                f"NCCL has reported an error to rank {member.comm.rank} of {joined.name}: {member.comm.error}"
            )
            for key in _gpu_waits(scene, waits, member.pid):
                wait = waits[key]
                waits[key] = changed(wait, note=wait.note or said, evidence=(*wait.evidence, said))


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
    waits: dict[Key, Blocked],
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
    for pid in sorted(pids_behind & {member.pid for member in late.ahead}):
        _say_own_lag(scene, waits, joined, late, pid, name)


def _say_own_lag(
    scene: Scene, waits: dict[Key, Blocked], joined: Joined, late: Lag, pid: int, name: str
) -> None:
    """A process that has not launched for all of its GPUs, of which a thread waits for one of them.

    Any of its threads may be the one that launches for those that are late, that one too.
    """
    behind = [member for member in late.behind if member.pid == pid]
    ahead = [member for member in late.ahead if member.pid == pid]
    own = tuple(key for key in scene.threads_of(pid) if key in waits and waits[key].service is None)
    certain = late_and_idle(scene, ahead, behind)
    for key in _gpu_waits(scene, waits, pid):
        wait = waits[key]
        said = changed(
            wait,
            object=changed(wait.object, collective=name),
            group=joined.name,
            note=f"{ranks_words(behind)} of this process has not launched {late.operation.op} #{late.seq}",
            evidence=(*wait.evidence, nccl_words(joined)),
        )
        waits[key] = said
        if certain:
            found = told(
                said,
                (f"the GPU of {ranks_words(behind)} does nothing",),
                cause=Kind.COLLECTIVE_MISSING_RANK,
                object=_object(wait, name, late.operation),
                targets=own,
                group=joined.name,
                edge=Edge.ANY,
            )
            waits[key] = changed(found, thread_guessed=len(own) > 1)


def _say_gone(
    scene: Scene,
    waits: Mapping[Key, Blocked],
    joined: Joined,
    kept: dict[Key, list[_Open]],
    found: list[Collective],
) -> bool:
    """All who are left have launched the same and wait for it: ranks that have failed will not come.

    Nobody knows what those had launched. Who ended without an error may have done its part. Whether it is so.
    """
    newest = last(joined)
    numbers = {member.comm.rank: scene.who.rank(member.pid) for member in joined.members}
    if newest is None or scene.who.world_size != joined.n_ranks:
        return False
    if any(rank != number for rank, number in numbers.items()):
        return False
    gone = {rank: absent_key(scene, rank) for rank in sorted(set(range(joined.n_ranks)) - set(numbers))}
    if any(rank not in scene.who.ranks_missing or not scene.exit_status(key) for rank, key in gone.items()):
        return False
    waiting = {member.pid: _gpu_waits(scene, waits, member.pid) for member in joined.members}
    if not all(waiting.values()):
        return False
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
    return True


def _say_elsewhere(scene: Scene, waits: dict[Key, Blocked], joined: Joined, found: list[Collective]) -> None:
    """All ranks that were seen have launched the same and wait: whether the others have is not known here."""
    newest = last(joined)
    waiting = {member.pid: _gpu_waits(scene, waits, member.pid) for member in joined.members}
    if newest is None or not all(waiting.values()):
        return
    seq, operation = newest
    name = _add(
        found,
        joined,
        operation,
        seq=seq,
        expected=(),
        entered=_ranks(scene, joined.members),
        missing=(),
    )
    others = absent_words(scene.evidence, joined)
    for key in (key for keys in waiting.values() for key in keys):
        wait = waits[key]
        waits[key] = changed(
            wait,
            object=changed(wait.object, collective=name),
            note=f"all ranks here have launched {operation.op} #{seq} of {joined.name}; of it are also: {others}",
            evidence=(
                *wait.evidence,
                nccl_words(joined),
                f"NCCL memory: of {joined.name} are also: {others}",
            ),
        )


def _say_unanswered(
    scene: Scene, waits: dict[Key, Blocked], joined: Joined, lacking: Sequence[Unanswered]
) -> None:
    """Messages whose other half has not been launched, by those that wait for their GPUs."""
    by_pid: dict[int, list[Unanswered]] = {}
    for each in lacking:
        by_pid.setdefault(each.member.pid, []).append(each)
    for pid, own in by_pid.items():
        if all(each.peer.pid != pid for each in own):
            nccl_messages.attach(scene, waits, _gpu_waits(scene, waits, pid), joined, own)


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
    waits[key] = told(
        wait,
        tuple(nccl_words(each[2]) for each in open_ones),
        cause=Kind.COLLECTIVE_MISSING_RANK,
        object=_object(wait, name, operation),
        targets=every,
        group=joined.name,
        basis=Confidence.LIKELY if one else Confidence.POSSIBLE,
        edge=Edge.ALL if one else Edge.ANY,
    )


def _object(wait: Blocked, name: str, operation: Operation) -> WaitObject:
    return changed(wait.object, collective=name, name=operation.op)


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
                waits[key] = told(
                    wait,
                    (nccl_words(joined),),
                    cause=kind,
                    object=_object(wait, name, operation),
                    targets=targets,
                    group=joined.name,
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
