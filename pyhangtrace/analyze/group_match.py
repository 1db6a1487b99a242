"""The collectives of one process group of which the members are known, matched over them.

Who has begun an operation is in it, whatever its threads do now; who has not keeps the others waiting. Where all have
begun it they must have asked for the same: the same operation, and of the same size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.calls import LEFT_EARLY
from pyhangtrace.analyze.fronts import front
from pyhangtrace.analyze.leaving import absent_key, left_early
from pyhangtrace.analyze.process_groups import UNNAMED, Group, Groups, Place, may_be
from pyhangtrace.analyze.roots import differ, in_doubt
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.groups import PendingOperation
from pyhangtrace.model.kinds import Kind
from pyhangtrace.model.report import Collective, Mismatched

# Operations to which every member brings tensors of the same shape.
_SAME_SIZE = frozenset({"all_reduce", "broadcast", "reduce", "all_gather", "gather"})


# Compared by identity: what tells two calls apart is who makes them.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Call:
    """One member's call. `key` is its thread that waits in it; None: it was begun, and nobody waits for it now.
    `said`: a frame names the operation.
    """

    rank: int
    key: Key | None
    op: str
    operation: PendingOperation | None
    said: bool = False


def match_group(
    scene: Scene,
    groups: Groups,
    waits: dict[Key, Blocked],
    places: Mapping[Key, Place],
    group: Group,
    backend: str,
    uncertain: Collection[int],
    found: list[Collective],
) -> None:
    """Fills in the targets of the waits of one group. `uncertain` are processes that may be in the same operation."""
    by_number: dict[int | None, list[Key]] = {}
    for key in sorted(key for key, place in places.items() if place.group == group):
        operation = places[key].operation
        by_number.setdefault(operation.sequence if operation is not None else None, []).append(key)
    unrecorded = any(not facts.recorded for each in groups.of_pid.values() if (facts := each.get(group)))
    if unrecorded and None in by_number:
        # Numbers of some alone do not tell who is behind.
        by_number = {None: sorted(key for keys in by_number.values() for key in keys)}
    matcher = _Matcher(scene, groups, waits, places, group, backend, uncertain, found)
    for number in sorted(by_number, key=lambda each: -1 if each is None else each):
        matcher.match(number, by_number[number])


@dataclass(slots=True)
class _Matcher:
    scene: Scene
    groups: Groups
    waits: dict[Key, Blocked]
    places: Mapping[Key, Place]
    group: Group
    backend: str
    uncertain: Collection[int]
    found: list[Collective]

    def match(self, number: int | None, keys: Sequence[Key]) -> None:
        """One operation of the group: that of this number, or the one of whom nothing tells the number."""
        calls = self._calls(number, keys)
        absent, unseen = self._absent(number, calls)
        if not absent and self._is_over_for_others(number, calls):
            unseen = True
        kind = None
        if not absent and not unseen:
            kind = _difference(calls) or self._roots(number, calls)
        elif self._in_doubt(calls):
            absent, unseen = {}, True
        for side in _sides(calls, kind):
            self._tell(number, side, calls, absent, kind, unseen=unseen)

    def _is_over_for_others(self, number: int | None, calls: Sequence[_Call]) -> bool:
        """Whether others of the group wait in a later operation: then this one is about to end, or was misread."""
        if number is None or any(call.op in LEFT_EARLY for call in calls):
            return False
        later = (place.operation for place in self.places.values() if place.group == self.group)
        return any(each is not None and each.sequence > number for each in later)

    def _roots(self, number: int | None, calls: Sequence[_Call]) -> Kind | None:
        """Whether they mean different roots."""
        (op, *others) = sorted({call.op for call in calls}) or [""]
        if others or op not in LEFT_EARLY:
            return None
        if self.groups.is_mpi:
            ranks = [call.rank for call in calls]
            apart = differ(self.scene, self.groups, self.group, op, ranks)
        else:
            named = {self.waits[call.key].peer for call in calls if call.key is not None}
            apart = number is not None and None not in named and len(named) > 1
        return Kind.COLLECTIVE_ROOT_MISMATCH if apart else None

    def _in_doubt(self, calls: Sequence[_Call]) -> bool:
        ops = {call.op for call in calls}
        ranks = [call.rank for call in calls]
        one = self.groups.is_mpi and len(ops) == 1
        return one and in_doubt(self.scene, self.groups, self.group, ops.pop(), ranks)

    def _calls(self, number: int | None, keys: Sequence[Key]) -> list[_Call]:
        calls = []
        for key in keys:
            rank = self.groups.rank_in(self.group, key[0])
            call = self.waits[key].call
            operation = self.places[key].operation
            op = call.op if call is not None else "unknown"
            unsaid = op in UNNAMED or (call is not None and call.later)
            if operation is not None and unsaid and (op in UNNAMED or not may_be(op, operation.op)):
                op = operation.op
            if rank is not None:
                calls.append(_Call(rank=rank, key=key, op=op, operation=operation, said=not unsaid))
        here = {call.rank for call in calls}
        for rank in self.group.ranks:
            pid = self.groups.pid_of.get(rank)
            facts = self.groups.facts(pid, self.group) if pid is not None else None
            if rank in here or facts is None or number is None:
                continue
            for operation in facts.pending:
                if not operation.is_p2p and operation.sequence == number:
                    calls.append(_Call(rank=rank, key=None, op=operation.op, operation=operation))
        said = {call.op for call in calls if call.said}
        recorded = {call.operation.op for call in calls if call.operation is not None}
        if len(said) == 1 and len(recorded) == 1:
            # The recorder has names of its own for what the program calls so.
            name = said.pop()
            calls = [replace(call, op=name) if call.operation is not None else call for call in calls]
        return sorted(calls, key=lambda call: call.rank)

    def _absent(self, number: int | None, calls: Sequence[_Call]) -> tuple[dict[int, Key], bool]:
        """Members that have not come, with the thread that speaks for each; and whether nothing is known of others."""
        come = {call.rank for call in calls}
        absent: dict[int, Key] = {}
        unseen = False
        for rank in self.group.ranks:
            pid = self.groups.pid_of.get(rank)
            if pid is None:
                if rank in self.scene.who.ranks_missing:
                    absent[rank] = absent_key(self.scene, rank)
                elif rank not in come:
                    unseen = True
                continue
            speaker = front(self.scene, self.waits, pid)
            facts = self.groups.facts(pid, self.group)
            stands = speaker in self.waits and self.waits[speaker].standing is Standing.STOPPED
            if rank in come and not stands:
                continue
            if facts is not None and number is not None and facts.begun >= number:
                # It did its part, unless it was stopped in the middle of it.
                if stands and rank in come:
                    absent[rank] = speaker
                continue
            if pid in self.uncertain:
                unseen = True
            elif rank not in come or stands:
                absent[rank] = speaker
        together = not LEFT_EARLY.intersection(call.op for call in calls)
        gone = left_early(self.scene, tuple(absent.values()), together=together)
        return {rank: key for rank, key in absent.items() if key not in gone}, unseen

    def _tell(
        self,
        number: int | None,
        side: Sequence[_Call],
        calls: Sequence[_Call],
        absent: Mapping[int, Key],
        kind: Kind | None,
        *,
        unseen: bool,
    ) -> None:
        """One side of an operation, which is the whole of it if all ask for the same."""
        waiting = [call.key for call in side if call.key is not None]
        if not waiting:
            return
        alike = set(side)
        apart = [call for call in calls if call not in alike] if kind is not None else []
        targets = tuple(absent[rank] for rank in sorted(absent))
        targets += tuple(
            call.key or front(self.scene, self.waits, self.groups.pid_of[call.rank]) for call in apart
        )
        operation = next((call.operation for call in side if call.operation is not None), None)
        roots = {root for key in waiting if (root := self.waits[key].peer) is not None}
        name = f"c{len(self.found)}"
        sources = ("stack",) if operation is None else ("stack", operation.source)
        self.found.append(
            Collective(
                id=name,
                group=self.group.label,
                backend=(operation.backend if operation is not None else "") or self.backend,
                op=side[0].op,
                seq=number,
                count=_count(operation),
                dtype=operation.dtype if operation is not None else None,
                root=roots.pop() if len(roots) == 1 else None,
                expected=tuple(sorted(self.group.ranks)),
                entered=tuple(sorted({call.rank for call in side})),
                missing=tuple(sorted({*absent, *(call.rank for call in apart)})),
                mismatched=tuple(self._mismatched(call) for call in apart),
                sources=sources,
            )
        )
        together = waiting if kind is Kind.COLLECTIVE_ROOT_MISMATCH else []
        for key in waiting:
            wait = self.waits[key]
            others = (*targets, *(other for other in together if other != key))
            self.waits[key] = changed(
                wait,
                object=changed(wait.object, collective=name, name=side[0].op),
                targets=others,
                candidates=others,
                standing=Standing.OPAQUE if unseen and not targets else Standing.FIRM,
                cause=kind or wait.cause,
                group=self.group.title,
                evidence=(*wait.evidence, *self._evidence(operation)),
            )

    def _evidence(self, operation: PendingOperation | None) -> tuple[str, ...]:
        words = f"process group {self.group.title}"
        if operation is None:
            return (words,)
        return (
            f"{words}: {operation.op} number {operation.sequence} has begun and not ended ({operation.source})",
        )

    def _mismatched(self, call: _Call) -> Mismatched:
        wait = self.waits.get(call.key) if call.key is not None else None
        caller = wait.call.caller if wait is not None and wait.call is not None else None
        return Mismatched(
            rank=call.rank,
            op=call.op,
            count=_count(call.operation),
            dtype=call.operation.dtype if call.operation is not None else None,
            frame=caller,
        )


def _difference(calls: Sequence[_Call]) -> Kind | None:
    """Whether those who came asked for different things."""
    known = [call.operation for call in calls if call.operation is not None]
    recorded = {operation.op for operation in known}
    # Two sources may have two names for the same.
    differ = len(recorded) > 1 and len({operation.source for operation in known}) == 1
    if differ or len({call.op for call in calls if call.said}) > 1:
        return Kind.COLLECTIVE_OP_MISMATCH
    sizes = {size for operation in known if (size := _size(operation)) is not None}
    if recorded <= _SAME_SIZE and len(sizes) > 1:
        return Kind.COLLECTIVE_SIZE_MISMATCH
    return None


def _sides(calls: Sequence[_Call], kind: Kind | None) -> list[list[_Call]]:
    """The calls that are alike, together."""
    sides: dict[tuple[str, str], list[_Call]] = {}
    for call in calls:
        sizes = _size(call.operation) if kind is Kind.COLLECTIVE_SIZE_MISMATCH else None
        sides.setdefault((call.op, str(sizes)), []).append(call)
    return [sides[each] for each in sorted(sides, key=str)]


def _size(operation: PendingOperation | None) -> tuple[int, str | None] | None:
    """Elements and their type: what must be equal; shapes may differ."""
    count = _count(operation)
    return None if operation is None or count is None else (count, operation.dtype)


def _count(operation: PendingOperation | None) -> int | None:
    if operation is None or not operation.inputs:
        return None
    return sum(prod(shape) for shape in operation.inputs)
