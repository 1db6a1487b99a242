"""Operations of the group, matched over the ranks: who is in, who is missing, who is in another one.

Frames name an operation but not its group. So: while some rank is in no operation at all, that rank is what
the others lack (every waiting operation lacks somebody, and only those outside can be the first of the chain).
When all are inside and the operations differ, they parted ways. When all are inside the same operation and
called it from different places, they are in different groups, since one group would have completed; from the
same place, nobody can be named.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass

from pyhangtrace.analyze import nccl
from pyhangtrace.analyze.blocked import CONNECT, GROUP_KINDS, Blocked, Standing, changed
from pyhangtrace.analyze.calls import LEFT_EARLY, MPI_WAIT, WINDOW, Meaning, gloo_work, recognise
from pyhangtrace.analyze.components import leading_to
from pyhangtrace.analyze.fronts import front
from pyhangtrace.analyze.group_match import match_group
from pyhangtrace.analyze.holders import named
from pyhangtrace.analyze.key_owners import owners
from pyhangtrace.analyze.leaving import absent_key, left_early
from pyhangtrace.analyze.process_groups import Group, Groups, Place, awaited, communicators_of
from pyhangtrace.analyze.process_groups import groups_of as process_groups
from pyhangtrace.analyze.progress import Progress, is_ready
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.analyze.unseen import unseen, withhold
from pyhangtrace.model.kinds import Confidence, Edge, Kind, Role, WaitKind
from pyhangtrace.model.report import Collective, Mismatched
from pyhangtrace.model.threads import ThreadSample

# ProcessGroupGloo starts two threads for each group (its default, which init_process_group cannot change).
_RUN_LOOP = "ProcessGroupGloo::runLoop"
_LOOPS_A_GROUP = 2
# What a wait for an operation of MPI is called that was begun before, if it is one of all members.
NONBLOCKING = "nonblocking collective"


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Waits with their targets filled in, the operations, and how the group parted ways, if it did."""

    waits: dict[Key, Blocked]
    collectives: tuple[Collective, ...]
    parted: Kind | None = None


def match(scene: Scene, waits: Mapping[Key, Blocked]) -> Matched:
    """Matches collectives, point-to-point calls and rendezvous over all ranks."""
    done = dict(waits)
    groups = {False: process_groups(scene), True: communicators_of(scene)}
    # What follows tells of these alone, and makes none of other waits.
    of_group = [key for key in sorted(done) if done[key].kind in GROUP_KINDS]
    between = {key for key in of_group if _may_be_between_groups(scene, done[key])}
    for key in between:
        done[key] = _of_unknown_partners(done[key])
    of_group = [key for key in of_group if key not in between]
    _name_later(scene, done, of_group, groups[False])
    _name_begun(done, of_group, groups[True])
    parted = None
    found: list[Collective] = []
    by_object: dict[tuple[str, object], list[Key]] = {}
    places: dict[Key, Place] = {}
    for key in of_group:
        wait = done[key]
        if wait.kind is WaitKind.COLLECTIVE and wait.call is not None:
            sample = scene.thread(key)
            known = groups[wait.call.backend == "mpi"]
            place = known.of(sample, wait.call) if sample is not None and _has_groups(wait) else None
            if place is not None:
                places[key] = place
                continue
            shared = wait.call.meaning is Meaning.SHARED_BARRIER
            backend = "multiprocessing" if shared else wait.call.backend or "unknown"
            thing = sample.lock.shared_key if shared and sample and sample.lock else None
            by_object.setdefault((backend, thing), []).append(key)
    _same_unless_known_to_differ(done, by_object)
    _with_ends_of_jax(by_object)
    open_ones = {key[0] for keys in by_object.values() for key in keys if _has_groups(done[key])}
    by_group: dict[tuple[Group, bool], str] = {}
    for key in sorted(places):
        call = done[key].call
        backend = (call.backend if call is not None else None) or "unknown"
        by_group.setdefault((places[key].group, backend == "mpi"), backend)
    elsewhere = frozenset(key[0] for key in places)
    hidden = unseen(scene, done, scene.threads if of_group else ())
    hidden = hidden.with_native({key[0] for key in between})
    inside = _running_inside(scene, done)
    for (group, is_mpi), backend in sorted(by_group.items()):
        uncertain = (open_ones - elsewhere) | inside | hidden.for_("mpi" if is_mpi else None)
        # Who expects messages of a collective has come to one, wherever it is now.
        uncertain |= {
            pid
            for pid, known in groups[is_mpi].of_pid.items()
            if pid not in elsewhere and group in known and awaited(known[group], of_all=True)
        }
        match_group(scene, groups[is_mpi], done, places, group, backend, uncertain, found)
    for (backend, _thing), keys in sorted(by_object.items(), key=lambda item: (item[0][0], item[1])):
        if any(scene.who.rank(key[0]) is not None for key in keys):
            parted = (
                _match_ranks(scene, done, backend, keys, found, elsewhere | inside, hidden.for_(backend))
                or parted
            )
        else:
            parted = _match_processes(scene, done, backend, keys, found, hidden.in_python) or parted
    _match_p2p(scene, done, of_group, groups)
    _withhold_unproven(scene, done, of_group)
    _match_rendezvous(scene, done, of_group)
    withhold(scene, done, of_group, found, hidden)
    parted = nccl.match(scene, done, found) or parted
    return Matched(waits=done, collectives=tuple(found), parted=parted)


def _may_be_between_groups(scene: Scene, wait: Blocked) -> bool:
    return wait.call is not None and wait.call.backend == "mpi" and scene.mpi_between_groups(wait.key[0])


def _of_unknown_partners(wait: Blocked) -> Blocked:
    """A call that may be one with another group, where the same numbers are others: nobody is known to owe anything."""
    return changed(
        wait,
        targets=(),
        candidates=(),
        standing=Standing.OPAQUE,
        basis=Confidence.POSSIBLE,
        evidence=(
            *wait.evidence,
            "MPI: it has a communicator of two groups, and the call may be of that one",
        ),
    )


def _same_unless_known_to_differ(
    waits: dict[Key, Blocked], by_object: dict[tuple[str, object], list[Key]]
) -> None:
    """Counts waits for an object that could not be read among those for the only one that is known.

    With several known, any of them may be meant: then nobody is known to be missing anywhere.
    """
    for backend in sorted({backend for backend, thing in by_object if thing is None}):
        known = [each for each in by_object if each[0] == backend and each[1] is not None]
        if len(known) == 1:
            by_object[known[0]] = sorted(by_object[known[0]] + by_object.pop((backend, None)))
        elif known:
            for thing in [*known, (backend, None)]:
                for key in by_object.pop(thing):
                    waits[key] = changed(waits[key], standing=Standing.OPAQUE)


def _with_ends_of_jax(by_object: dict[tuple[str, object], list[Key]]) -> None:
    """Who is in a barrier of JAX, as the one at its end, is in none of the operations of which gloo does the work."""
    jax, gloo = ("jax", None), ("gloo", None)
    if jax in by_object and gloo in by_object:
        by_object[gloo] = sorted(by_object[gloo] + by_object.pop(jax))


def groups_of(scene: Scene, pid: int) -> int:
    """How many process groups a process has joined, by its memory or as gloo runs loops for each; 0: none is seen."""
    known = sum(group.pid == pid for group in scene.evidence.groups)
    if known:
        return known
    loops = sum(
        is_run_loop(sample) for key in scene.threads_of(pid) if (sample := scene.thread(key)) is not None
    )
    return -(-loops // _LOOPS_A_GROUP)


def is_run_loop(sample: ThreadSample) -> bool:
    """A thread that does the work of a process group of gloo."""
    return any(_RUN_LOOP in frame.function for frame in sample.frames)


def _name_later(scene: Scene, waits: dict[Key, Blocked], of_group: Sequence[Key], groups: Groups) -> None:
    # `work.wait()` of an asynchronous operation has no frame that names it. The object it waits on does; where that was
    # not read, gloo's own thread is in it.
    for key in of_group:
        wait = waits[key]
        if (
            wait.kind is WaitKind.COLLECTIVE
            and wait.call is not None
            and wait.call.op in ("unknown", "wait_tensor")
        ):
            sample = scene.thread(key)
            known = groups.work_of(sample) if sample is not None else None
            ops = (
                {known.work.op} if known is not None and known.work is not None else _run_loops(scene, key[0])
            )
            if len(ops) == 1:
                op = ops.pop()
                call = changed(wait.call, op=op, later=True)
                waits[key] = changed(wait, call=call, object=changed(wait.object, name=op))


def _name_begun(waits: dict[Key, Blocked], of_group: Sequence[Key], communicators: Groups) -> None:
    """MPI_Wait is for what was begun before: where messages of collectives alone are expected, for a collective."""
    for key in of_group:
        wait = waits[key]
        call = wait.call
        if wait.kind is not WaitKind.P2P or call is None or (call.backend, call.op) != ("mpi", MPI_WAIT):
            continue
        facts = communicators.of_pid.get(key[0], {}).values()
        if any(awaited(each, of_all=False) for each in facts) or not any(
            awaited(each, of_all=True) for each in facts
        ):
            continue
        waits[key] = changed(
            wait,
            kind=WaitKind.COLLECTIVE,
            cause=Kind.COLLECTIVE_MISSING_RANK,
            object=changed(wait.object, name=NONBLOCKING),
            call=changed(call, meaning=Meaning.COLLECTIVE, op=NONBLOCKING),
        )


def _run_loops(scene: Scene, pid: int) -> set[str]:
    """The operations that gloo's threads of a process are in."""
    return {
        op
        for other in scene.threads_of(pid)
        if (sample := scene.thread(other)) is not None and (op := gloo_work(sample.frames)) is not None
    }


def _front_of_rank(scene: Scene, waits: Mapping[Key, Blocked], rank: int) -> Key:
    pid = scene.who.pid_of_rank.get(rank)
    return absent_key(scene, rank) if pid is None else front(scene, waits, pid)


def _world(scene: Scene) -> tuple[int, ...]:
    return tuple(sorted({*scene.who.ranks_seen, *scene.who.ranks_missing}))


def _match_ranks(
    scene: Scene,
    waits: dict[Key, Blocked],
    backend: str,
    keys: Sequence[Key],
    found: list[Collective],
    elsewhere: Collection[int],
    hidden: Collection[int],
) -> Kind | None:
    by_op: dict[str, list[Key]] = {}
    for key in keys:
        call = waits[key].call
        by_op.setdefault(call.op if call is not None else "unknown", []).append(key)
    # Ranks in an operation of a known group may be what is waited for, or not.
    aside = {
        rank for pid in elsewhere if (rank := scene.who.rank(pid)) is not None and _has_groups(waits[keys[0]])
    }
    ranks = {key: scene.who.rank(key[0]) for key in keys}
    inside = {rank for rank in ranks.values() if rank is not None}
    world = _world(scene)
    aside |= {rank for pid in hidden if (rank := scene.who.rank(pid)) is not None}
    outside = tuple(rank for rank in world if rank not in inside and rank not in aside)
    stopped_inside = _stopped_inside(scene, waits)
    # No frame says which group a call is for; with more than one, members are only those that are seen in it.
    pids = {key[0] for key in keys}
    one_group = (
        backend != "mpi"
        and all(groups_of(scene, pid) <= 1 for pid in pids)
        and not (backend == "gloo" and any(_is_of_jax(scene, pid) for pid in pids))
    )
    size = scene.who.world_size
    all_seen = len(world) > 1 and (size is None or len(world) >= size)
    parted: Kind | None = None
    sites: dict[str, list[Key]] = {}
    if not outside and not aside and len(by_op) == 1:
        seen = all((sample := scene.thread(key)) is not None and sample.stack_complete for key in keys)
        # One barrier may be waited for from several places; a stack without its end does not tell the place.
        if seen and backend != "multiprocessing" and all(_site(waits[key]) for key in keys):
            for key in keys:
                sites.setdefault(_site(waits[key]), []).append(key)
    for op, members in sorted(by_op.items()):
        entered = tuple(sorted({rank for key in members if (rank := ranks[key]) is not None}))
        others = tuple(sorted(inside - set(entered)))
        name = f"c{len(found)}"
        mismatched: tuple[Mismatched, ...] = ()
        targets: dict[Key, tuple[Key, ...]] = {}
        if outside:
            fronts = {rank: _front_of_rank(scene, waits, rank) for rank in outside}
            together = one_group and not LEFT_EARLY.intersection(by_op)
            left = left_early(scene, tuple(fronts.values()), together=together)
            missing = tuple(rank for rank in outside if fronts[rank] not in left)
            targets = dict.fromkeys(members, tuple(fronts[rank] for rank in missing))
        elif others and not aside:
            parted = Kind.COLLECTIVE_OP_MISMATCH
            missing = others
            alike = set(members)
            apart = [key for key in keys if key not in alike]
            targets = dict.fromkeys(members, tuple(apart))
            mismatched = tuple(
                Mismatched(rank=rank, op=call.op, frame=call.caller)
                for key in apart
                if (rank := ranks[key]) is not None and (call := waits[key].call) is not None
            )
        elif len(sites) > 1:
            parted = Kind.COLLECTIVE_GROUP_CYCLE
            missing = ()
            for same in map(set, sites.values()):
                targets.update(dict.fromkeys(same, tuple(key for key in keys if key not in same)))
        else:
            missing = ()
        roots = {root for key in members if (root := waits[key].peer) is not None}
        found.append(
            Collective(
                id=name,
                group=_group_name(backend, one_group=one_group),
                backend=backend,
                op=op,
                root=roots.pop() if len(roots) == 1 else None,
                expected=world if one_group else entered,
                entered=tuple(sorted({*entered, *(rank for rank in stopped_inside if rank in missing)})),
                missing=missing if one_group else (),
                mismatched=mismatched,
                sources=("stack",),
            )
        )
        for key in members:
            wait = waits[key]
            waits[key] = changed(
                wait,
                object=changed(wait.object, collective=name, name=op),
                targets=targets.get(key, ()),
                candidates=targets.get(key, ()),
                standing=Standing.FIRM if outside or (all_seen and not aside) else Standing.OPAQUE,
            )
    return parted


def _running_inside(scene: Scene, waits: Mapping[Key, Blocked]) -> set[int]:
    """Processes that run inside the call of a collective: they have come to that one, or are just through with it."""
    found = set()
    for pid in scene.who.pid_of_rank.values():
        key = front(scene, waits, pid)
        sample = scene.thread(key)
        placed = key in waits and waits[key].kind in GROUP_KINDS  # one that polls: it waits as others sleep
        if sample is None or not is_ready(sample) or placed:
            continue
        call = recognise(sample.frames)
        # To make bytes of objects takes as long as it takes, before the others are met.
        if call is not None and call.meaning is Meaning.COLLECTIVE and not call.op.endswith("_object"):
            found.add(pid)
    return found


def _has_groups(wait: Blocked) -> bool:
    """An operation of torch.distributed or MPI, whose groups may be known from memory."""
    return wait.call is not None and wait.call.meaning is Meaning.COLLECTIVE


def _withhold_unproven(scene: Scene, waits: dict[Key, Blocked], of_group: Sequence[Key]) -> None:
    """A wait that polls looks the same whether messages come or not, where they cannot be counted.

    Then only somebody who does not poll can be what it lacks: those who do may all be getting on.
    """
    unproven = {
        key
        for key in of_group
        if (wait := waits[key]).progress is Progress.REARMED
        and wait.call is not None
        and wait.call.spins
        and scene.mpi_moves(key[0]) is None
    }
    for key in unproven:
        wait = waits[key]
        targets = tuple(target for target in wait.targets if target not in unproven)
        complete = len(targets) == len(wait.targets) or (wait.edge is Edge.ALL and targets)
        waits[key] = changed(
            wait,
            targets=targets,
            standing=wait.standing if targets and complete else Standing.OPAQUE,
            basis=Confidence.POSSIBLE,
            evidence=(*wait.evidence, "polls: whether messages come meanwhile cannot be seen"),
        )


def _is_of_jax(scene: Scene, pid: int) -> bool:
    """Each axis of a mesh of JAX has groups of its own, of which nothing that is read tells."""
    return "jax" in scene.processes[pid].modules


def _group_name(backend: str, *, one_group: bool) -> str:
    if backend == "multiprocessing":
        return backend
    if backend == "mpi":
        return "unknown communicator"
    return "default_pg" if one_group else "unknown group"


def _site(wait: Blocked) -> str:
    caller = wait.call.caller if wait.call is not None else None
    return f"{caller.file}:{caller.line}" if caller is not None else ""


def _stopped_inside(scene: Scene, waits: Mapping[Key, Blocked]) -> tuple[int, ...]:
    found = set()
    for key, wait in waits.items():
        sample = scene.thread(key)
        rank = scene.who.rank(key[0])
        if wait.standing is Standing.STOPPED and sample is not None and rank is not None:
            call = recognise(sample.frames)
            if call is not None and call.meaning is Meaning.COLLECTIVE:
                found.add(rank)
    return tuple(sorted(found))


def _match_processes(
    scene: Scene,
    waits: dict[Key, Blocked],
    backend: str,
    keys: Sequence[Key],
    found: list[Collective],
    hidden: Set[int],
) -> Kind | None:
    # Without ranks the members of a barrier are brothers: children of one parent, one of which is elsewhere.
    inside = {key[0] for key in keys}
    parents = {scene.processes[pid].ppid for pid in inside if pid in scene.processes}
    parties = {
        value
        for key in keys
        if (sample := scene.thread(key)) is not None
        and isinstance(value := named(sample, ("_parties",)), int)
    }
    brothers = sorted(
        pid
        for parent in parents
        for pid in scene.children.get(parent, ())
        if pid not in inside
        and scene.processes[pid].role not in (Role.LAUNCHER, Role.COMPILER, Role.OUTSIDER)
        and "resource_tracker" not in scene.processes[pid].title
    )
    counted = len(parties) == 1 and parties == {len(inside) + len(brothers)}
    counted = counted and hidden.isdisjoint(brothers)
    fronts = tuple(front(scene, waits, pid) for pid in brothers)
    left = left_early(scene, fronts, together=True)
    goal = tuple(key for key in fronts if key not in left)
    by_op: dict[str, list[Key]] = {}
    for key in keys:
        call = waits[key].call
        by_op.setdefault(call.op if call is not None else "unknown", []).append(key)
    # All of one family are inside, in the one group they have: then calls that differ never meet.
    one_group = {groups_of(scene, pid) for pid in inside} == {1}
    parted = one_group and not brothers and len(by_op) > 1
    for op, members in sorted(by_op.items()):
        name = f"c{len(found)}"
        group = backend if not groups_of(scene, members[0][0]) else _group_name(backend, one_group=one_group)
        found.append(Collective(id=name, group=group, backend=backend, op=op, sources=("stack",)))
        alike = set(members)
        targets = tuple(key for key in keys if key not in alike) if parted else goal
        for key in members:
            wait = waits[key]
            waits[key] = changed(
                wait,
                object=changed(wait.object, collective=name, name=op),
                targets=targets,
                candidates=targets,
                basis=Confidence.LIKELY if counted else Confidence.POSSIBLE,
                standing=Standing.FIRM if targets else Standing.OPAQUE,
                edge=Edge.ALL if counted or len(targets) == 1 else Edge.ANY,
            )
    return Kind.COLLECTIVE_OP_MISMATCH if parted else None


def _match_p2p(
    scene: Scene, waits: dict[Key, Blocked], of_group: Sequence[Key], groups: Mapping[bool, Groups]
) -> None:
    world = _world(scene)
    for key in of_group:
        wait = waits[key]
        if wait.kind is not WaitKind.P2P:
            continue
        sample = scene.thread(key)
        known = groups[wait.call is not None and wait.call.backend == "mpi"]
        place = known.of(sample, wait.call) if sample is not None and wait.call is not None else None
        if sample is not None and place is not None:
            matched = _p2p_of_group(scene, waits, known, sample, wait, place.group)
            waits[key] = _of_a_window(matched)
            continue
        own = scene.who.rank(key[0])
        if own is None:
            continue
        peers = tuple(rank for rank in world if rank != own)
        if wait.peer is not None:
            # One that is not seen here may be on another host.
            peers = (wait.peer,) if wait.peer in peers else ()
        targets = tuple(_front_of_rank(scene, waits, rank) for rank in peers)
        waits[key] = _of_a_window(
            changed(
                wait,
                object=changed(wait.object, peer_rank=peers[0] if len(peers) == 1 else None),
                targets=targets,
                candidates=targets,
                edge=Edge.ALL if len(peers) == 1 else Edge.ANY,
                standing=Standing.FIRM if peers else Standing.OPAQUE,
            )
        )


def _of_a_window(wait: Blocked) -> Blocked:
    """A window of MPI is held by one of the others, who alone can end the wait: which one, is not known."""
    if wait.call is None or wait.call.op != WINDOW or len(wait.targets) < 2:
        return wait
    return changed(wait, targets=(), standing=Standing.OPAQUE)


def _p2p_of_group(
    scene: Scene,
    waits: Mapping[Key, Blocked],
    groups: Groups,
    sample: ThreadSample,
    wait: Blocked,
    group: Group,
) -> Blocked:
    """A call whose group is known: the peer is a member of it, named by its global rank or by that in the group."""
    peer = wait.peer
    inner = named(sample, ("group_src", "group_dst"))
    if peer is None and isinstance(inner, int) and 0 <= inner < len(group.ranks):
        peer = group.ranks[inner]
    own = groups.rank_in(group, sample.pid)
    facts = groups.facts(sample.pid, group)
    expected = awaited(facts, of_all=False) if facts is not None else ()
    if peer is None and expected and -1 not in expected:
        # Of several messages that are waited for any may be the one.
        peers = expected
    else:
        peers = (peer,) if peer in group.ranks else tuple(rank for rank in group.ranks if rank != own)
    missing = scene.who.ranks_missing
    seen = [rank for rank in peers if rank in groups.pid_of or rank in missing]
    targets = tuple(
        front(scene, waits, groups.pid_of[rank]) if rank in groups.pid_of else absent_key(scene, rank)
        for rank in seen
    )
    return changed(
        wait,
        object=changed(wait.object, peer_rank=peers[0] if len(peers) == 1 else None),
        group=group.title,
        targets=targets,
        candidates=targets,
        edge=Edge.ALL if len(peers) == 1 else Edge.ANY,
        # Of several that may send, one that lives elsewhere may be the one.
        standing=Standing.FIRM if len(seen) == len(peers) else Standing.OPAQUE,
        evidence=(*wait.evidence, f"process group {group.title}"),
    )


def _match_rendezvous(scene: Scene, waits: dict[Key, Blocked], of_group: Sequence[Key]) -> None:
    inside = {
        rank
        for key in of_group
        if waits[key].kind is WaitKind.RENDEZVOUS and (rank := scene.who.rank(key[0])) is not None
    }
    if not inside:
        return
    world = _world(scene)
    outside = tuple(rank for rank in world if rank not in inside)
    fronts = tuple(_front_of_rank(scene, waits, rank) for rank in outside)
    left = left_early(scene, fronts, together=False)
    goal = tuple(key for key in fronts if key not in left)
    # Rank 0 keeps the store, where the launcher does not.
    host = {front for rank, front in zip(outside, fronts, strict=True) if rank == 0 and not _elastic(scene)}
    for key in of_group:
        wait = waits[key]
        if wait.kind is not WaitKind.RENDEZVOUS:
            continue
        connects = wait.object.name == CONNECT
        targets = tuple(key for key in goal if key in host) if connects else goal
        if wait.peer is not None and wait.peer in world:
            # Its key is missing. Others who are in no rendezvous may be missing too: keys are asked for one by one.
            own = _front_of_rank(scene, waits, wait.peer)
            targets = goal if own in goal else (own,)
        of_key = wait.call is not None and wait.call.meaning is Meaning.STORE and not connects
        if of_key and wait.peer is None:
            waits[key] = _of_key(scene, waits, wait, goal)
            continue
        waits[key] = changed(
            wait,
            targets=targets,
            candidates=targets,
            # Somebody of another host may be missing: who, this host cannot tell. But the store does not answer.
            standing=Standing.FIRM if targets or connects else Standing.OPAQUE,
            cause=Kind.RENDEZVOUS_MISSING_RANK if targets else Kind.RENDEZVOUS_UNREACHABLE,
        )


def _of_key(scene: Scene, waits: Mapping[Key, Blocked], wait: Blocked, outside: tuple[Key, ...]) -> Blocked:
    """A wait for a key of the store. Who sets it is not recorded, and need not be a rank: only those who for certain
    have it before them, or have ended, are waited for.
    """
    behind = _waiting_for(waits, wait.key)
    owing = owners(scene, wait.key)
    targets = tuple(
        target
        for target in outside
        if target not in behind
        and (target[0] in owing.pids or scene.who.rank(target[0]) in owing.ranks or _is_over(scene, target))
    )
    owed = changed(
        wait,
        targets=targets,
        candidates=outside,
        standing=Standing.FIRM,
        cause=Kind.RENDEZVOUS_MISSING_RANK if targets else Kind.UNKNOWN,
    )
    if targets and not behind:
        return owed
    evidence = (*wait.evidence, "who sets a key of the store is not recorded")
    # Those who wait for this rank may have meant to do it later, or never.
    firm = Standing.FIRM if targets or behind.intersection(outside) else Standing.OPAQUE
    return changed(owed, standing=firm, edge=Edge.ANY, evidence=evidence)


def _is_over(scene: Scene, key: Key) -> bool:
    return key[0] < 0 or scene.exited(key[0])


def _waiting_for(waits: Mapping[Key, Blocked], key: Key) -> frozenset[Key]:
    """Who waits for a thread in operations of the group, or for one that does."""
    edges = {
        other: wait.targets
        for other, wait in waits.items()
        if wait.kind in GROUP_KINDS and wait.kind is not WaitKind.RENDEZVOUS
    }
    return leading_to((key,), edges) - {key}


def _elastic(scene: Scene) -> bool:
    """Whether torch's elastic launcher keeps the store."""
    return any(
        name == "TORCHELASTIC_RUN_ID" for process in scene.processes.values() for name, _ in process.identity
    )
