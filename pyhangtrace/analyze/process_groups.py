"""Which process group an operation belongs to, which of the group's operations it is, and who its members are.

A frame of torch.distributed names its group by a local, the flight recorder by the operation that has not ended. Ranks
of a group are torch's: who has which is what each member's memory says, and the launcher's numbers only where it
does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyhangtrace.analyze.calls import Call, Meaning, path_has
from pyhangtrace.analyze.frame_values import by_frame
from pyhangtrace.analyze.scene import Scene
from pyhangtrace.model.groups import GroupWait, PendingOperation, ProcessGroupFacts
from pyhangtrace.model.ranks import fold
from pyhangtrace.model.threads import ThreadSample

# Locals of functions of torch.distributed that hold the group of the call, and what a coordinator calls its group.
GROUP_LOCALS = ("group_to_use", "group", "process_group", "pg", "device_group")
# What torch calls the group of all.
DEFAULT_GROUP = "default_pg"
MPI_WORLD = "MPI_COMM_WORLD"
_LIBRARIES = ("torch/distributed/", "distributed/parallel_state.py")
# Operations that the recorder calls as the program does; others are made of them.
_RECORDED_BY_NAME = frozenset(
    {"all_reduce", "broadcast", "barrier", "reduce", "gather", "scatter", "all_gather"}
)
# What frames call an operation whose name they do not tell.
UNNAMED = frozenset({"unknown", "wait_tensor", "_wait_tensor"})


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """A process group: one name and the same members in two processes are one group. `ranks` are in its order."""

    name: str
    ranks: tuple[int, ...]
    label: str = field(default="", compare=False)

    @property
    def title(self) -> str:
        """What the program calls it, with its members: `default_pg`, `tp (ranks 0-3)`."""
        return (
            self.label
            if self.label in (DEFAULT_GROUP, MPI_WORLD)
            else f"{self.label} (ranks {fold(self.ranks)})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The group of a call, and the operation it is, where the recorder tells."""

    group: Group
    operation: PendingOperation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """All process groups of the job. `pid_of` gives the member of a rank, as far as it is seen on this host."""

    of_pid: Mapping[int, Mapping[Group, ProcessGroupFacts]]
    pid_of: Mapping[int, int]
    rank_of: Mapping[int, int]  # the other way round
    is_mpi: bool = False
    waits: Mapping[tuple[int, int], GroupWait] = field(default_factory=dict)

    def facts(self, pid: int, group: Group) -> ProcessGroupFacts | None:
        """What a process' memory says of a group."""
        return self.of_pid.get(pid, {}).get(group)

    def rank_in(self, group: Group, pid: int) -> int | None:
        """The rank of a process, if it is a member of the group."""
        rank = self.rank_of.get(pid)
        return rank if rank is not None and rank in group.ranks else None

    def of(self, sample: ThreadSample, call: Call) -> Place | None:
        """Where a call belongs; None where nothing tells its group."""
        known = self.of_pid.get(sample.pid, {})
        if not known:
            return None
        if self.is_mpi:
            return self._of_mpi(sample, call, known)
        is_p2p = call.meaning in (Meaning.SEND, Meaning.RECV)
        unnamed = call.op in UNNAMED or call.later
        wait = self.work_of(sample)
        if wait is not None:
            return self.of_work(sample, wait, known)
        group = _by_locals(sample, known)
        if group is None:
            pending = {each for each, facts in known.items() if _open(facts, is_p2p=is_p2p)}
            all_recorded = all(facts.recorded for facts in known.values())
            if len(pending) == 1 and all_recorded:
                group = pending.pop()
            elif len(known) == 1:
                group = next(iter(known))
        if group is None or self.rank_in(group, sample.pid) is None:
            return None
        found = _open(known[group], is_p2p=is_p2p)
        # Who waits for an operation that it began itself just now waits for the last one; of those that were begun
        # earlier it may wait for any, and whoever has not come to the first has come to none of them.
        operation = (found[0] if unnamed else found[-1]) if found else None
        if operation is not None and not unnamed and not is_p2p and not may_be(call.op, operation.op):
            operation = None
        return Place(group=group, operation=operation)

    def work_of(self, sample: ThreadSample) -> GroupWait | None:
        """The operation whose object a thread sleeps on, where it was read."""
        wait = self.waits.get((sample.pid, sample.tid))
        asleep_on = sample.lock.address if sample.lock is not None else None
        if wait is None or wait.work is None or wait.condition != asleep_on:
            return None
        return None if self._is_of_another(sample.pid, wait.work) else wait

    def _is_of_another(self, pid: int, work: PendingOperation) -> bool:
        """Whether the recorder knows of other operations that have not ended, and not of this one: what was read is
        what the memory of an earlier one holds still.
        """
        known = self.of_pid.get(pid, {}).values()
        numbers = {
            each.sequence for facts in known for each in facts.pending if facts.recorded and not each.is_p2p
        }
        return bool(numbers) and all(facts.recorded for facts in known) and work.sequence not in numbers

    def of_work(
        self, sample: ThreadSample, wait: GroupWait, known: Mapping[Group, ProcessGroupFacts]
    ) -> Place | None:
        """The group of this size in which the process has this place; of several the one that a local names, or that
        the recorder knows to be in this operation.
        """
        work = wait.work
        if work is None:
            return None
        own = self.rank_of.get(sample.pid)
        fitting = {
            group: facts
            for group, facts in known.items()
            if own in group.ranks and len(group.ranks) == wait.size and group.ranks.index(own) == wait.rank
        }
        recorded = {
            group: each
            for group, facts in fitting.items()
            for each in _open(facts, is_p2p=False)
            if each.sequence == work.sequence
        }
        group = _by_locals(sample, fitting)
        if group is None and len(fitting) == 1:
            group = next(iter(fitting))
        elif group is None and all(facts.recorded for facts in fitting.values()):
            same = [each for each, operation in recorded.items() if operation.op == work.op]
            group = same[0] if len(same) == 1 else None
        return Place(group=group, operation=recorded.get(group, work)) if group is not None else None

    def _of_mpi(
        self, sample: ThreadSample, call: Call, known: Mapping[Group, ProcessGroupFacts]
    ) -> Place | None:
        """The communicator in which a message is expected that has not come, or the only one there is."""
        of_all = call.meaning is Meaning.COLLECTIVE
        waiting = [group for group, facts in known.items() if awaited(facts, of_all=of_all)]
        others = [group for group, facts in known.items() if len(group.ranks) > 1]
        group = waiting[0] if len(waiting) == 1 else others[0] if len(others) == 1 and not waiting else None
        if group is None or self.rank_in(group, sample.pid) is None:
            return None
        return Place(group=group)


def may_be(called: str, recorded: str) -> bool:
    """Whether an operation that was begun can be the one that a frame shows; others may be under way beside it."""
    if called == "monitored_barrier":
        return False  # it is not recorded
    return called == recorded or called not in _RECORDED_BY_NAME


def awaited(facts: ProcessGroupFacts, *, of_all: bool) -> tuple[int, ...]:
    """Ranks of whom messages of a collective, or those of the program, are expected; -1 is any."""
    return tuple(dict.fromkeys(rank for rank, tag in facts.awaits if (tag < -1) is of_all))


def _open(facts: ProcessGroupFacts, *, is_p2p: bool) -> list[PendingOperation]:
    return sorted(
        (each for each in facts.pending if each.is_p2p is is_p2p), key=lambda each: (each.sequence, each.op)
    )


def _by_locals(sample: ThreadSample, known: Mapping[Group, ProcessGroupFacts]) -> Group | None:
    """By the first frame of torch.distributed, or of an engine's coordinator of a group, that has a local for it."""
    addresses = {facts.address: group for group, facts in known.items() if facts.address is not None}
    default = next((group for group, facts in known.items() if facts.is_default), None)
    for frame, values in by_frame(sample):
        if not any(path_has(frame.file, library) for library in _LIBRARIES):
            continue
        for name in GROUP_LOCALS:
            value = values.get(name)
            if value is None:
                continue
            if value.address is not None:
                return addresses.get(value.address)
            # No group given is the default one.
            if value.value is None and value.type is None and name == "group":
                return default
    return None


def communicators_of(scene: Scene) -> Groups:
    """Indexes what the evidence says of communicators of MPI."""
    facts = [group for each in scene.evidence.looks[-1].mpi for group in each.communicators]
    return _index(scene, facts, is_mpi=True)


def groups_of(scene: Scene) -> Groups:
    """Indexes what the evidence says of process groups."""
    return _with_begun(scene, _index(scene, scene.evidence.groups))


def _with_begun(scene: Scene, groups: Groups) -> Groups:
    """Who waits for an operation has begun it and all before it, also where no recorder counts them."""
    groups = replace(groups, waits=scene.group_waits)
    begun: dict[int, dict[Group, ProcessGroupFacts]] = {}
    for (pid, tid), wait in sorted(groups.waits.items()):
        sample = scene.thread((pid, tid))
        known = groups.of_pid.get(pid)
        if sample is None or known is None or wait.work is None or groups.work_of(sample) is None:
            continue
        place = groups.of_work(sample, wait, known)
        if place is not None:
            own = begun.setdefault(pid, dict(known))
            own[place.group] = replace(
                own[place.group], begun=max(own[place.group].begun, wait.work.sequence)
            )
    return replace(groups, of_pid={**groups.of_pid, **begun})


def _index(scene: Scene, found: Sequence[ProcessGroupFacts], *, is_mpi: bool = False) -> Groups:
    of_pid: dict[int, dict[Group, ProcessGroupFacts]] = {}
    labels = _labels(found, is_mpi=is_mpi)
    for facts in found:
        if facts.pid not in scene.threads or scene.exited(facts.pid):
            continue
        group = Group(facts.name, facts.ranks, labels[(facts.name, facts.ranks)])
        of_pid.setdefault(facts.pid, {})[group] = facts
    pid_of = _members(scene, of_pid)
    rank_of = {pid: rank for rank, pid in pid_of.items()}
    return Groups(of_pid=of_pid, pid_of=pid_of, rank_of=rank_of, is_mpi=is_mpi)


def _labels(facts: Iterable[ProcessGroupFacts], *, is_mpi: bool) -> dict[tuple[str, tuple[int, ...]], str]:
    """What the program calls each group, where it gave a name, else torch's number."""
    labels: dict[tuple[str, tuple[int, ...]], str] = {}
    for one in sorted(facts, key=lambda one: (one.name, one.ranks, one.pid)):
        label = (
            DEFAULT_GROUP
            if one.is_default and not is_mpi
            else one.description or one.called or f"group {one.name}"
        )
        labels.setdefault((one.name, one.ranks), label)
    return labels


def _members(scene: Scene, of_pid: Mapping[int, Mapping[Group, ProcessGroupFacts]]) -> dict[int, int]:
    """Who has which of torch's ranks; none of those that two processes claim, as two worlds on one host do."""
    claimed: dict[int, set[int]] = {}
    for pid, groups in of_pid.items():
        own = {facts.rank for facts in groups.values() if facts.rank is not None}
        rank = own.pop() if len(own) == 1 else scene.who.rank(pid)
        if rank is not None:
            claimed.setdefault(rank, set()).add(pid)
    for rank, pid in scene.who.pid_of_rank.items():
        if pid not in of_pid:
            claimed.setdefault(rank, set()).add(pid)
    found = {}
    for rank, pids in claimed.items():
        # A child that was forked has a copy of its parent's groups.
        sure = pids if len(pids) == 1 else {pid for pid in pids if scene.who.rank(pid) == rank}
        if len(sure) == 1:
            found[rank] = next(iter(sure))
    return found
