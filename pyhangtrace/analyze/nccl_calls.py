"""Threads that NCCL itself keeps in a call: in the set-up of a communicator, or in the first message to a peer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.fronts import front
from pyhangtrace.analyze.leaving import absent_key
from pyhangtrace.analyze.nccl_comms import Joined
from pyhangtrace.analyze.progress import in_place
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import Confidence, Edge, Kind, WaitKind
from pyhangtrace.model.nccl import NcclCall, is_in_nccl
from pyhangtrace.model.threads import ThreadSample

# Those of a group of calls are done by threads of their own, which the caller waits for.
_SET_UP = ("ncclCommInit", "ncclCommSplit", "bootstrapInit", "groupLaunch", "asyncJobLaunch")
_MESSAGES = {"Send": "send", "Recv": "recv"}


def match_set_up(scene: Scene, waits: dict[Key, Blocked]) -> None:
    """Ranks in the set-up of a communicator wait for those that have not begun it, if it is known who that is."""
    if len(scene.evidence.nccl) < 2:
        return
    calling = _callers(scene, waits)
    if not calling:
        return
    before = _in_set_up(scene, 0)
    now = _in_set_up(scene, -1)
    groups: dict[tuple[int, int], dict[int, int]] = {}
    for (pid, address), (comm_hash, n_ranks, rank) in now.items():
        if before.get((pid, address), (0, 0, 0))[1:] == (n_ranks, rank):
            groups.setdefault((comm_hash, n_ranks), {})[pid] = rank
    for (_, n_ranks), ranks in sorted(groups.items()):
        missing = _missing(scene, waits, n_ranks, ranks, {key[0] for key in calling})
        for key in calling:
            if key[0] in ranks and waits[key].service is None:
                waits[key] = _set_up_wait(waits[key], n_ranks, ranks, missing)


def _callers(scene: Scene, waits: Mapping[Key, Blocked]) -> list[Key]:
    """Threads that any look shows in a set-up; in a process of which none does, the one whose calls no look shows.

    Who is in a set-up asks its sockets again and again. On a crowded machine it is met waiting for a processor, where
    its stack cannot be read; its process' memory still says that a set-up goes on, in a call that does not return.
    """
    calling = [key for key in scene.thread_keys() if key in waits and any(map(_sets_up, scene.samples[key]))]
    known = {key[0] for key in calling}
    for pid in sorted({pid for pid, _ in _in_set_up(scene, -1)} - known):
        unseen = [
            key
            for key in scene.threads_of(pid)
            if key in waits and not any(sample.stack_complete for sample in scene.samples[key])
        ]
        if len(unseen) == 1:
            calling += unseen
    return calling


def _sets_up(sample: ThreadSample) -> bool:
    return any(frame.function.startswith(_SET_UP) for frame in (*sample.frames, *sample.unmerged_native))


def _in_set_up(scene: Scene, picture: int) -> dict[tuple[int, int], tuple[int, int, int]]:
    """(pid, address) -> (hash, number of ranks, rank) of communicators that are being set up."""
    return {
        (state.pid, comm.address): (comm.comm_hash, comm.n_ranks, comm.rank)
        for state in scene.evidence.nccl[picture].states
        for comm in state.communicators
        if comm.setting_up
    }


def _missing(
    scene: Scene, waits: Mapping[Key, Blocked], n_ranks: int, ranks: Mapping[int, int], calling: set[int]
) -> tuple[Key, ...]:
    """Who has not begun the set-up: () where that is not certain.

    All ranks of the job are to be in it, under the numbers that they have in the job; and nobody else may be in such a
    call, since which one that is was not to be seen.
    """
    if scene.who.world_size != n_ranks or calling - set(ranks) or len(set(ranks.values())) != len(ranks):
        return ()
    if any(scene.who.rank(pid) != rank for pid, rank in ranks.items()):
        return ()
    if any(state.problem is not None for state in scene.evidence.nccl[-1].states):
        return ()
    keys = []
    for rank in sorted(set(range(n_ranks)) - set(ranks.values())):
        pid = scene.who.pid_of_rank.get(rank)
        if pid is None and rank not in scene.who.ranks_missing:
            return ()  # of another host
        keys.append(absent_key(scene, rank) if pid is None else front(scene, waits, pid))
    return tuple(keys)


def _set_up_wait(wait: Blocked, n_ranks: int, ranks: Mapping[int, int], missing: tuple[Key, ...]) -> Blocked:
    there = ", ".join(map(str, sorted(ranks.values())))
    return changed(
        wait,
        kind=WaitKind.RENDEZVOUS,
        standing=Standing.FIRM if missing else Standing.OPAQUE,
        cause=Kind.RENDEZVOUS_MISSING_RANK,
        basis=Confidence.LIKELY,
        progress=in_place(wait.progress),  # it asks sockets again and again
        ends_by_itself=False,
        lasts_s=None,
        object=changed(wait.object, name="set-up of a communicator"),
        targets=missing,
        candidates=missing,
        evidence=(
            *wait.evidence,
            f"NCCL memory: a communicator of {n_ranks} is being set up by ranks {there}",
        ),
    )


def match_messages(scene: Scene, waits: dict[Key, Blocked], communicators: Sequence[Joined]) -> None:
    """A message to a rank with which no connection exists waits in the call until that rank asks for its part."""
    if len(scene.evidence.nccl) < 2:
        return
    before = _messages(scene, 0)
    now = _messages(scene, -1)
    for key, call in now.items():
        if before.get(key) != call or key not in waits or waits[key].service is not None:
            continue
        if not any(map(_is_in_nccl, scene.samples.get(key, ()))):
            continue  # what is left of a call that is over may look like it
        joined = next(
            (
                each
                for each in communicators
                if any(
                    member.pid == key[0] and member.comm.address == call.communicator
                    for member in each.members
                )
            ),
            None,
        )
        if joined is None:
            continue
        own = next(member for member in joined.members if member.pid == key[0])
        peer = next((member for member in joined.members if member.comm.rank == call.root), None)
        if peer is None or peer.pid == key[0] or _answers(now, peer.pid, own.comm.rank):
            continue
        target = front(scene, waits, peer.pid)
        wait = waits[key]
        waits[key] = changed(
            wait,
            kind=WaitKind.P2P,
            standing=Standing.FIRM,
            cause=Kind.P2P_UNMATCHED,
            basis=Confidence.LIKELY,
            edge=Edge.ALL,
            progress=in_place(wait.progress),  # it asks sockets again and again
            ends_by_itself=False,
            lasts_s=None,
            object=changed(wait.object, name=_MESSAGES[call.name], peer_rank=scene.who.rank(peer.pid)),
            targets=(target,),
            candidates=(target,),
            group=joined.name,
            evidence=(
                *wait.evidence,
                f"NCCL memory: in {call.name} of {call.count} elements, rank {own.comm.rank} and peer {call.root} of"
                f" {joined.name}",
            ),
        )


def _is_in_nccl(sample: ThreadSample) -> bool:
    return any(map(is_in_nccl, (*sample.frames, *sample.unmerged_native)))


def _messages(scene: Scene, picture: int) -> dict[Key, NcclCall]:
    return {
        (state.pid, call.tid): call
        for state in scene.evidence.nccl[picture].states
        for call in state.calls
        if call.name in _MESSAGES
    }


def _answers(calls: Mapping[Key, NcclCall], pid: int, rank: int) -> bool:
    """Whether the peer is in a message with this rank as well: then both are there, and nobody is missing."""
    return any(key[0] == pid and other.root == rank for key, other in calls.items())
