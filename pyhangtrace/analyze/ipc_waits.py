"""Semaphores and message queues that have a name of their own: of System V, and of POSIX.

They outlive who uses them and record no owner, only who touched them last: candidates, never a proof.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyhangtrace.analyze import objects
from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.scene import Scene
from pyhangtrace.model.kinds import Edge, FdKind, Kind, WaitKind
from pyhangtrace.model.open_files import IpcFacts
from pyhangtrace.model.report import WaitObject
from pyhangtrace.model.threads import ThreadSample

SEMAPHORES = ("semop", "semtimedop")
QUEUES = ("msgrcv", "msgsnd")
POSIX_QUEUES = ("mq_timedreceive", "mq_timedsend")


def system_v(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked:
    """semop, msgrcv, msgsnd."""
    name = scene.syscall(sample)
    if name in SEMAPHORES:
        return _semaphore(scene, sample, draft)
    return _queue(scene, sample, draft, sends=name == "msgsnd")


def _known(scene: Scene, sample: ThreadSample, kind: str) -> list[IpcFacts]:
    identifier = sample.args[0] if sample.args else None
    return [
        facts
        for facts in scene.evidence.looks[-1].ipc
        if (facts.pid, facts.kind, facts.id) == (sample.pid, kind, identifier)
    ]


def _key(facts: IpcFacts) -> str:
    return f", key {facts.key:#x}" if facts.key else ""


def _semaphore(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked:
    wanted = dict(sample.semaphores)
    known = [facts for facts in _known(scene, sample, "sem") if facts.number in wanted]
    # Those that hold it up: too low to take from, or to become zero.
    low = [
        facts for facts in known if facts.value is None or _too_low(facts.value, wanted[facts.number or 0])
    ]
    about = (low or known)[:1]
    evidence = list(draft.evidence)
    title = f"semaphore set {sample.args[0]}" if sample.args else "semaphore set"
    last: tuple[int, ...] = ()
    for facts in about:
        title = f"semaphore {facts.number} of set {facts.id}{_key(facts)}"
        evidence.append(f"{title}: value {facts.value}, {facts.waiting} waiting")
        if facts.last_pid:
            alive = "" if facts.last_pid in scene.processes else ", which was not looked at"
            gone = ", which is gone" if scene.exited(facts.last_pid) else alive
            evidence.append(f"last changed by pid {facts.last_pid}{gone}")
            last = (facts.last_pid,)
    to_zero = any(wanted[facts.number or 0] == 0 for facts in about)
    evidence.append(f"{objects.NO_OWNER}: whoever knows the set may {'take from' if to_zero else 'raise'} it")
    return changed(
        draft,
        kind=WaitKind.SEMAPHORE,
        standing=Standing.OPAQUE,
        cause=Kind.UNKNOWN,
        object=WaitObject(name=title),
        candidates=tuple((pid, 0) for pid in last if pid != sample.pid),
        edge=Edge.ANY,
        evidence=tuple(evidence),
    )


def _too_low(value: int, change: int) -> bool:
    return value + change < 0 if change else value > 0


def _queue(scene: Scene, sample: ThreadSample, draft: Blocked, *, sends: bool) -> Blocked:
    known = _known(scene, sample, "msg")
    identifier = sample.args[0] if sample.args else "?"
    evidence = list(draft.evidence)
    title = f"message queue {identifier}{_key(known[0]) if known else ''}"
    last: tuple[int, ...] = ()
    for facts in known[:1]:
        full = "full: " if sends else ""
        evidence.append(f"{title}: {full}{facts.messages} messages, {facts.queued} bytes")
        pid = facts.last_receiver if sends else facts.last_sender
        if pid:
            evidence.append(f"last {'receiver' if sends else 'sender'} pid {pid}")
            last = (pid,)
    evidence.append(f"{objects.NO_OWNER}: whoever knows the queue may {'receive' if sends else 'send'}")
    return _of_queue(draft, WaitObject(name=title), last, evidence, sends=sends)


def _of_queue(
    draft: Blocked, thing: WaitObject, others: Sequence[int], evidence: Sequence[str], *, sends: bool
) -> Blocked:
    return changed(
        draft,
        kind=WaitKind.QUEUE,
        # Who receives waits for work; who finds no room waits for somebody.
        standing=Standing.OPAQUE if sends else Standing.IDLE,
        cause=Kind.UNKNOWN if sends else Kind.IDLE,
        object=thing,
        candidates=tuple((pid, 0) for pid in others if pid != draft.key[0]),
        edge=Edge.ANY,
        anybodys=True,
        evidence=tuple(evidence),
    )


def posix_queue(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """mq_receive and mq_send: whoever has the queue open may take the other part, and so may who opens it next."""
    if not sample.args:
        return None
    sends = scene.syscall(sample) == "mq_timedsend"
    facts = scene.fds.get((sample.pid, sample.args[0]))
    evidence = list(draft.evidence)
    others: tuple[int, ...] = ()
    if facts is not None and facts.kind is FdKind.MQUEUE:
        full = "full, " if sends else ""
        evidence.append(f"message queue {facts.target}: {full}{objects.condition(facts)}")
        wanted = "r" if sends else "w"
        others = tuple(sorted({each.pid for each in facts.others if wanted in each.mode}))
        if others:
            evidence.append(f"open for the other part in pid {', '.join(map(str, others))}")
    evidence.append(f"{objects.NO_OWNER}: whoever opens the queue may {'receive' if sends else 'send'}")
    return _of_queue(draft, objects.thing(facts, sample.args[0]), others, evidence, sends=sends)


def named_semaphore(scene: Scene, sample: ThreadSample, wait: Blocked) -> Blocked:
    """A semaphore in a file of its own: with the file's name, and who else has it mapped."""
    lock = sample.lock
    if lock is None or lock.shared_key is None or wait.kind is not WaitKind.SEMAPHORE:
        return wait
    for file in scene.evidence.mapped_files:
        if (file.device, file.inode) == lock.shared_key[:2] and "/sem." in file.path:
            mappers = objects.seen(scene, file.mappers, besides=sample.pid)
            return changed(
                wait,
                object=changed(wait.object, path=file.path),
                candidates=wait.candidates or mappers,
                evidence=(*wait.evidence, f"{file.path}: value {lock.value}; {objects.NO_OWNER}"),
            )
    return wait
