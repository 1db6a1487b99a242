"""What memory says of waits in torch.distributed: keys of the store, whose they are, why a store is not reached."""

from __future__ import annotations

import re

from pyhangtrace.analyze.blocked import CONNECT, Blocked, changed
from pyhangtrace.analyze.calls import Meaning, connects_to_store
from pyhangtrace.analyze.progress import Progress
from pyhangtrace.analyze.scene import Scene
from pyhangtrace.model.groups import GroupWait
from pyhangtrace.model.kinds import StoreAnswer
from pyhangtrace.model.report import WaitObject
from pyhangtrace.model.threads import ThreadSample

STORE = "store"

# Each member of a group of gloo sets a key that is its number in the group, and waits for those of the others.
_GLOO_CONNECTS = re.compile(r"\bconnectFullMesh\b|\bcreateAndConnectAllPairs\b")
_MOST_TOLD = 4
_ANSWERS = {
    StoreAnswer.NOBODY_LISTENS: "where nobody listens",
    StoreAnswer.NO_ANSWER: "from where nothing comes back (SYN-SENT)",
}


def rendezvous(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked:
    """The draft with what a rendezvous waits for: the store itself while it is not reached, keys of it, or a rank."""
    call = draft.call
    wait = scene.group_waits.get(draft.key) or GroupWait(pid=sample.pid, tid=sample.tid)
    if connects_to_store(sample.frames):
        known = dict(scene.processes[sample.pid].identity)
        host, port = known.get("MASTER_ADDR"), known.get("MASTER_PORT")
        path = wait.address or (f"{host}:{port}" if host and port else None)
        answer = _ANSWERS[wait.answer] if wait.answer is not None else None
        said = (f"the connections of this host: {wait.answer.value} at {path}",) if wait.answer else ()
        return changed(
            draft,
            object=WaitObject(name=CONNECT, path=path),
            answer=answer,
            evidence=(*draft.evidence, *said),
        )
    evidence = draft.evidence
    if wait.full_keys:
        plural = "s" if len(wait.full_keys) > 1 else ""
        evidence = (*evidence, f"key{plural} of the store: {_listed(wait.full_keys)}")
    evidence = (*evidence, *_counted(sample))
    if call is not None and call.meaning is Meaning.STORE:
        path = _listed(wait.keys) if wait.keys else None
        return changed(draft, object=WaitObject(name=STORE, path=path), evidence=evidence)
    # Who has moved may wait for the next one's key by now.
    rank = _rank(sample, wait) if draft.progress is Progress.UNMOVED else None
    return changed(
        draft,
        object=WaitObject(name=call.op if call is not None else None, peer_rank=rank),
        peer=rank,
        evidence=evidence,
    )


def _listed(keys: tuple[str, ...]) -> str:
    more = len(keys) - _MOST_TOLD
    return f"{', '.join(keys[:_MOST_TOLD])}{f' and {more} more' if more > 0 else ''}"


def _counted(sample: ThreadSample) -> tuple[str, ...]:
    """How many had come to the barrier of a store, when its waiter last counted them."""
    values = {
        value.name: value.value for value in sample.named_values if value.function == "_store_based_barrier"
    }
    come, size = values.get("worker_count"), values.get("world_size")
    if not isinstance(come, int) or not isinstance(size, int) or not 0 < come <= size:
        return ()
    return (f"{come} of {size} had come to the store's barrier when it last counted",)


def _rank(sample: ThreadSample, wait: GroupWait) -> int | None:
    """The rank that has not set its key: the number that gloo asks for is that in the group."""
    if len(wait.keys) != 1 or not wait.keys[0].isdecimal():
        return None
    if not any(_GLOO_CONNECTS.search(frame.function) for frame in sample.frames):
        return None
    members = next((value for value in sample.named_values if value.name == "global_ranks_in_group[]"), None)
    if members is None or members.length is None or members.length != len(members.members):
        return None
    number = int(wait.keys[0])
    if not members.members:  # the group of all
        return number
    return members.members[number] if number < len(members.members) else None
