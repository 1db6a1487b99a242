"""Pipes, sockets and sets of them: who is at the other end."""

from __future__ import annotations

from collections.abc import Sequence

from pyhangtrace.analyze import holders, objects
from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.calls import Meaning
from pyhangtrace.analyze.managers import answering
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import Confidence, Edge, FdKind, Kind, Role, WaitKind
from pyhangtrace.model.open_files import FdFacts
from pyhangtrace.model.report import WaitObject
from pyhangtrace.model.threads import ThreadSample

# Descriptors that bring work, wake-ups or the time from outside: no peer can be named.
_OUTSIDE = frozenset(
    {
        FdKind.TTY,
        FdKind.EVENTFD,
        FdKind.TIMERFD,
        FdKind.SIGNALFD,
        FdKind.INOTIFY,
        FdKind.IO_URING,
        FdKind.EPOLL,
    }
)

_OUTLIVED = "the child that wrote there has exited, and its output is still held open"
# A socket's own timeout that is longer than this is no reason to wait for it.
_LONG_S = 60.0
_MAY_GIVE_UP = (
    "whether the socket has a timeout of its own ({option}) could not be read: within the first minute the call may "
    "yet give up by itself"
)
_LEFT_BEHIND = (
    "who can write there was left behind by the one that started it: until it ends, there is no end of file"
)


def io_wait(
    scene: Scene,
    sample: ThreadSample,
    draft: Blocked,
    fd: int | None,
    facts: FdFacts | None,
    *,
    writing: bool,
) -> Blocked:
    """A thread in a read, write, accept or connect on one descriptor."""
    wait = changed(draft, kind=_kind(facts), object=objects.thing(facts, fd))
    if facts is None:
        return wait
    state = objects.condition(facts)
    if state is not None:
        wait = changed(wait, evidence=(*wait.evidence, f"{facts.target}: {state}"))
    if facts.kind in (FdKind.FILE, FdKind.DIRECTORY, FdKind.MEMFD, FdKind.DEVICE):
        return _file(sample, wait, facts)
    if facts.kind is FdKind.TIMERFD and (left_s := objects.timer_left_s(facts)) is not None:
        return _timer(wait, left_s)
    if _is_outside(facts):
        return _outside(scene, wait, facts)
    if facts.kind is FdKind.PIDFD:
        return wait
    if facts.socket is not None and not facts.socket.remote and sample.path is not None:
        # Not connected: the call says where to.
        wait = changed(wait, object=changed(wait.object, path=sample.path))
    sending = writing or scene.syscall(sample) == "connect"
    limit = _limit(facts, sending=sending)
    if limit is not None:
        wait = changed(wait, evidence=(*wait.evidence, limit))
    found = _peers(scene, wait, facts, writing=writing, endless=_never_gives_up(facts, sending=sending))
    return _unless_limited(found, facts, sending=sending)


def _unless_limited(wait: Blocked, facts: FdFacts, *, sending: bool) -> Blocked:
    """A call that has not lasted for long may have a timeout of its socket that could not be read; also where that
    can be read nothing is proven, since it may have been another one when the call began.
    """
    if facts.socket is None or wait.standing is not Standing.FIRM or (wait.since_s or 0.0) > _LONG_S:
        return wait
    basis = Confidence.LIKELY if wait.basis is Confidence.PROVEN else wait.basis
    if facts.timeouts is not None:
        return changed(wait, basis=basis)
    said = _MAY_GIVE_UP.format(option="SO_SNDTIMEO" if sending else "SO_RCVTIMEO")
    return changed(wait, basis=basis, helped=True, evidence=(*wait.evidence, said))


def _limit(facts: FdFacts, *, sending: bool) -> str | None:
    """The socket's own timeout in words, `None` if it is not known."""
    if facts.timeouts is None:
        return None
    option = "SO_SNDTIMEO" if sending else "SO_RCVTIMEO"
    user_s = facts.timeouts.user_s
    if user_s is not None and (sending or (facts.socket is not None and facts.socket.tx_queue)):
        return f"gives up when nothing has been taken for {user_s:g} s (TCP_USER_TIMEOUT)"
    limit_s = facts.timeouts.send_s if sending else facts.timeouts.receive_s
    return f"gives up after {limit_s:g} s ({option})" if limit_s is not None else f"{option} is not set"


def _never_gives_up(facts: FdFacts, *, sending: bool) -> bool:
    """Whether it is known that only the other end of a socket can end a call on it.

    TCP gives up connecting by itself, and, if so told (TCP_USER_TIMEOUT), what the other end does not take.
    """
    about, timeouts = facts.socket, facts.timeouts
    if about is None or timeouts is None:
        return False
    if about.type not in ("stream", "seqpacket"):
        return False  # whoever knows its name may send
    if about.family.startswith("tcp") and (sending or about.state != "ESTABLISHED" or about.tx_queue != 0):
        return False
    return (timeouts.send_s if sending else timeouts.receive_s) is None


def _file(sample: ThreadSample, wait: Blocked, facts: FdFacts) -> Blocked:
    """A file, in whose file system or driver the thread sleeps; that of a FUSE mount is a process."""
    blocked = sample.state == "D"
    where = [f"in {sample.wchan}"] if sample.wchan else []
    if facts.fs_type is not None:
        at = f" mounted at {facts.mount}" if facts.mount is not None else ""
        where.append(f"{facts.target} is on a file system of type {facts.fs_type}{at}")
    servers = sorted({holder.pid for holder in facts.peers})
    if servers:
        where.append(f"served by pid {', '.join(map(str, servers))}; {objects.NO_OWNER}")
    return changed(
        wait,
        standing=Standing.FIRM if blocked else Standing.OPAQUE,
        cause=Kind.IO_STALLED if blocked else Kind.UNKNOWN,
        candidates=tuple((pid, 0) for pid in servers if pid != sample.pid),
        evidence=(*wait.evidence, *where),
    )


def _timer(wait: Blocked, left_s: float) -> Blocked:
    return changed(
        wait,
        kind=WaitKind.TIMER,
        standing=Standing.TIMER,
        cause=Kind.TIMER,
        object=changed(wait.object, remaining_s=left_s),
        ends_by_itself=True,
        lasts_s=left_s,
    )


def _outside(scene: Scene, wait: Blocked, facts: FdFacts) -> Blocked:
    """Work, wake-ups and signals: whoever has the object may send some, and nobody owes any."""
    evidence = wait.evidence
    if facts.kind is FdKind.EVENTFD:
        evidence = (*evidence, f"{objects.NO_OWNER}: whoever has it open may add to it")
    return changed(
        wait,
        standing=Standing.IDLE,
        cause=Kind.IDLE,
        candidates=objects.seen(scene, objects.others(facts), besides=wait.key[0]),
        evidence=evidence,
    )


def _kind(facts: FdFacts | None) -> WaitKind:
    if facts is None:
        return WaitKind.IO
    return {FdKind.PIPE: WaitKind.PIPE, FdKind.SOCKET: WaitKind.SOCKET}.get(facts.kind, WaitKind.IO)


def _is_outside(facts: FdFacts) -> bool:
    if facts.kind in _OUTSIDE:
        return True
    if facts.socket is not None:
        return facts.socket.state == "LISTEN" or facts.socket.family == "netlink"
    return False


def _peers(
    scene: Scene, wait: Blocked, facts: FdFacts, *, writing: bool, full: bool = True, endless: bool = False
) -> Blocked:
    """`full`: who writes waits for room. `endless`: it is known that the call on a socket has no timeout."""
    pid = wait.key[0]
    ends = holders.readers(facts) if writing else holders.writers(facts)
    others = tuple(end for end in ends if end != pid)
    evidence = list(wait.evidence)
    word = "read" if writing else "written"
    if ends:
        evidence.append(f"{facts.target} can be {word} by pid {', '.join(map(str, ends))}")
    elif facts.kind is FdKind.PIPE and facts.holders_complete:
        evidence.append(f"nobody has the other end of {facts.target} open")
    if writing and full and facts.kind in (FdKind.PIPE, FdKind.SOCKET):
        evidence.append(f"{facts.target} is full")
    elif facts.kind is FdKind.PIPE and not writing:
        evidence.append(f"{facts.target} is empty")
    cause = Kind.IPC_PEER_SILENT
    if facts.kind is FdKind.PIPE or (facts.socket is not None and writing):
        cause = Kind.IPC_PIPE_FULL if writing and full else cause
    named = objects.has_name(facts)
    if named and not set(ends) - {pid}:
        return _anybodys(scene, changed(wait, cause=cause, evidence=tuple(evidence)), writing=writing)
    if ends == (pid,):
        own = holders.siblings(scene, wait.key)
        alone = len(scene.threads_of(pid)) == 1
        cause = Kind.IPC_NO_EOF if alone else Kind.IPC_PEER_SILENT
        return changed(
            wait,
            standing=Standing.FIRM,
            cause=Kind.IPC_PIPE_FULL if writing and full else cause,
            # Whoever reads a queue of multiprocessing waits for another process, not for a signal of its own.
            own_end=not writing and not (wait.call and wait.call.meaning is Meaning.SHARED_QUEUE_GET),
            # Somebody who could not be searched may have that end, too.
            basis=Confidence.PROVEN if facts.holders_complete else Confidence.LIKELY,
            # Another thread may write, but nothing says that one is meant to: no edge of the graph.
            candidates=own,
            edge=Edge.ANY,
            evidence=tuple(evidence),
        )
    if others and all(end in scene.evidence.job.observers for end in others):
        return _driven(scene, changed(wait, evidence=tuple(evidence)), others)
    left_open = _left_open(scene, wait, facts, ends) if others and not writing else None
    if left_open is not None:
        cause = Kind.IPC_NO_EOF
        evidence.append(_OUTLIVED if left_open is Confidence.LIKELY else _LEFT_BEHIND)
    timed = facts.socket is not None and not endless
    timed = timed or objects.is_fifo(facts) or holders.has_timer_handler(scene, pid)
    basis = Confidence.LIKELY if timed else wait.basis
    thread = answering(scene, facts) if len(others) == 1 and not writing else None
    if thread is not None:
        evidence.append(f"thread {thread[1]} of pid {thread[0]}, a manager of multiprocessing, answers there")
    known = bool(others)
    remote = facts.socket is not None and not ends
    return changed(
        wait,
        standing=Standing.FIRM if known or remote or facts.holders_complete else Standing.OPAQUE,
        cause=cause,
        targets=(thread,) if thread is not None else tuple((end, 0) for end in others),
        besides=tuple((end, 0) for end in ends) if others and thread is None else (),
        # Who has its other end open himself keeps it for those who are to come.
        helped=wait.helped or (named and pid in ends),
        basis=left_open or basis,
        holder=holders.thread_holder(thread)
        if thread is not None
        else holders.process_holder(scene, others[0])
        if len(others) == 1
        else None,
        candidates=tuple((end, 0) for end in others) if len(others) > 1 else (),
        edge=Edge.ANY,
        from_stdin=facts.fd == 0 and not writing and known and all(is_stranger(scene, end) for end in others),
        evidence=tuple(evidence),
    )


def _anybodys(scene: Scene, wait: Blocked, *, writing: bool) -> Blocked:
    """A FIFO of which nobody else has the other end open: whoever knows its name may come, as to a listener.

    Who has started others to work beside it may be waiting for one of these.
    """
    own = holders.siblings(scene, wait.key)
    waits_for_work = not writing and not own
    return changed(
        wait,
        standing=Standing.IDLE if waits_for_work else Standing.OPAQUE,
        cause=objects.cause_of_nobody(scene, wait.key[0]) if waits_for_work else wait.cause,
        anybodys=True,
        candidates=own,
        edge=Edge.ANY,
        evidence=(*wait.evidence, f"{objects.NO_OWNER}: whoever opens the FIFO may take the other part"),
    )


def _driven(scene: Scene, wait: Blocked, ends: Sequence[int]) -> Blocked:
    """The other end is with who runs us: it sleeps only as long as we look, and what it does otherwise is not known."""
    parents = {process.ppid for process in scene.processes.values() if process.role is not Role.OUTSIDER}
    words = [
        f"pid {end} {'started the job and ' if end in parents else ''}runs this look, and waits for it meanwhile"
        for end in ends
    ]
    return changed(
        wait,
        standing=Standing.IDLE,
        cause=Kind.IDLE,
        candidates=tuple((end, 0) for end in ends),
        edge=Edge.ANY,
        evidence=(*wait.evidence, *words),
    )


def _left_open(scene: Scene, wait: Blocked, facts: FdFacts, ends: Sequence[int]) -> Confidence | None:
    """How sure it is that what is waited for is the end of a child's output, which others inherited and keep open.

    LIKELY where the program says what it waits for. POSSIBLE where that only looks so: whoever can write was started
    after the reader, by somebody who has left it behind, and may still write. None: nothing speaks for it.
    """
    reader = wait.key[0]
    if _outlived(scene, wait, [end for end in ends if end != reader]):
        return Confidence.LIKELY
    if facts.kind is not FdKind.PIPE or facts.fd == 0 or not facts.target.startswith("pipe:["):
        # Named pipes are opened by whoever knows the name, and standard input is for orders.
        return None
    left = all(end != reader and _was_left_behind(scene, end, reader) for end in ends)
    return Confidence.POSSIBLE if left else None


def _was_left_behind(scene: Scene, pid: int, reader: int) -> bool:
    """Whether a living process is no older than the reader, and has its parent neither in that nor in the job."""
    process, reads = scene.processes.get(pid), scene.processes.get(reader)
    if process is None or reads is None or scene.exited(pid) or reader in scene.descendants(pid):
        return False
    ages = (process.started_s_ago, reads.started_s_ago)
    young = ages[0] is not None and ages[1] is not None and ages[0] <= ages[1]
    return young and process.ppid not in scene.evidence.job.members


def _outlived(scene: Scene, wait: Blocked, ends: Sequence[int]) -> bool:
    """Reads the output of a child that has exited: whoever still holds the other end inherited it."""
    sample = scene.thread(wait.key)
    if sample is None or wait.call is None or wait.call.meaning is not Meaning.CHILD:
        return False
    child = holders.named(sample, ("pid",))
    return isinstance(child, int) and child not in ends and scene.exited(child)


def is_stranger(scene: Scene, pid: int) -> bool:
    """Not one of the job: an outsider, or a process that was not looked at."""
    return pid > 0 and not scene.is_member(pid)


def poll_wait(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked:
    """A thread in poll, select, epoll or accept: any one descriptor is enough to end it."""
    watched = watched_descriptors(scene, sample)
    room = _watched_for_room(scene, sample)
    only = watched[0] if len(watched) == 1 else None
    thing = objects.thing(only, only.fd) if only else WaitObject()
    wait = changed(
        draft,
        kind=WaitKind.POLL,
        object=thing,
        edge=Edge.ANY,
        evidence=(*draft.evidence, *objects.members(watched, room)),
    )
    calls = draft.call
    if not watched:
        idle = calls is None or calls.meaning in (Meaning.EVENT_LOOP, Meaning.WORKER_LOOP)
        # That nothing is known of what it polls for says nothing of who could wake it.
        idle = idle and not _unread(scene, sample)
        return changed(
            wait,
            standing=Standing.IDLE if idle else Standing.OPAQUE,
            cause=Kind.IDLE if idle else Kind.UNKNOWN,
            basis=Confidence.POSSIBLE,
        )
    pid = sample.pid
    targets: set[Key] = set()
    outside = False
    possible: set[int] = set()
    for facts in watched:
        ends = objects.ends(facts)
        possible.update(ends)
        if _is_outside(facts):
            outside = True
            continue
        outside = outside or (facts.kind is FdKind.SOCKET and not ends)
        outside = outside or (objects.has_name(facts) and not set(ends) - {pid})
        # One's own end of a pair is a wake-up channel for one's own threads.
        targets.update((end, 0) for end in ends if end != pid)
    if only is not None and only.kind in (FdKind.PIPE, FdKind.SOCKET) and not _is_outside(only):
        full = only.fd in room and not (only.socket is not None and only.socket.state == "SYN_SENT")
        writing = full or objects.is_write_end(only)
        found = changed(_peers(scene, wait, only, writing=writing, full=full), kind=_kind(only))
        return _clocked(scene, found) if found.own_end else found
    fires = [left for facts in watched if (left := objects.timer_left_s(facts)) is not None]
    if fires and (wait.lasts_s is None or min(fires) < wait.lasts_s):
        wait = changed(wait, object=changed(wait.object, remaining_s=min(fires)), ends_by_itself=True)
        wait = changed(wait, lasts_s=min(fires))
    if outside or not targets:
        return changed(
            wait,
            standing=Standing.IDLE,
            cause=Kind.IDLE,
            candidates=objects.seen(scene, possible, besides=pid),
        )
    ordered = tuple(sorted(targets))
    if all(end in scene.evidence.job.observers for end, _ in ordered):
        return _driven(scene, wait, [end for end, _ in ordered])
    outlived = _outlived(scene, wait, [end for end, _ in ordered])
    child = only is not None and only.kind is FdKind.PIDFD
    return changed(
        wait,
        kind=WaitKind.CHILD if child else wait.kind,
        standing=Standing.FIRM,
        cause=Kind.CHILD_STUCK if child else Kind.IPC_NO_EOF if outlived else Kind.IPC_PEER_SILENT,
        targets=ordered,
        candidates=ordered,
        besides=tuple((end, 0) for end in sorted(possible)),
        basis=Confidence.LIKELY if outlived or holders.has_timer_handler(scene, pid) else wait.basis,
        holder=holders.process_holder(scene, ordered[0][0]) if len(ordered) == 1 else None,
    )


def _clocked(scene: Scene, wait: Blocked) -> Blocked:
    """A poll of one's own pipe or pair that has a timeout, in a process with nobody else who could write: a nap.

    A handler of a signal may write, so that a long one may end sooner; a short one is over soon all the same.
    """
    if not wait.ends_by_itself or wait.candidates or wait.lasts_s is None:
        return wait
    if wait.lasts_s > _LONG_S and holders.handled_signals(scene, wait.key[0]):
        return wait
    return changed(
        wait,
        kind=WaitKind.TIMER,
        standing=Standing.TIMER,
        cause=Kind.TIMER,
        object=changed(wait.object, remaining_s=wait.lasts_s),
        own_end=False,
    )


def told_by_members(scene: Scene, sample: ThreadSample, wait: Blocked) -> Blocked:
    """The wait of an event loop, with what it watches beside its own wake-up pair, and who could make that ready."""
    pid = sample.pid
    watched = [facts for facts in watched_descriptors(scene, sample) if pid not in objects.ends(facts)]
    possible = {end for facts in watched for end in objects.ends(facts)}
    return changed(
        wait,
        candidates=objects.seen(scene, possible, besides=pid),
        evidence=(*wait.evidence, *objects.members(watched, _watched_for_room(scene, sample))),
    )


def _unread(scene: Scene, sample: ThreadSample) -> bool:
    """Whether a thread polls for descriptors that could not be read, or that were not looked at in time."""
    name = scene.syscall(sample) or ""
    numbers = sample.io_fds or (sample.args[:1] if name.startswith(("epoll", "accept")) else ())
    if numbers:
        return all((sample.pid, number) not in scene.fds for number in numbers)
    at = {"poll": 1, "ppoll": 1, "select": 0, "pselect6": 0}.get(name)
    return at is not None and len(sample.args) > at and sample.args[at] > 0 and any(_sets(name, sample.args))


def _sets(name: str, args: Sequence[int]) -> Sequence[int]:
    """Where a call has what it polls for; 0: nowhere."""
    return args[:1] if name.endswith("poll") else args[1:4]


def watched_descriptors(scene: Scene, sample: ThreadSample) -> tuple[FdFacts, ...]:
    """What a poll, select, epoll or accept would be woken by, as far as it is known."""
    numbers = list(sample.io_fds)
    if not numbers and scene.syscall(sample) in (
        "epoll_wait",
        "epoll_pwait",
        "epoll_pwait2",
        "accept",
        "accept4",
    ):
        numbers = list(sample.args[:1])
    found: dict[int, FdFacts] = {}
    sets: set[int] = set()
    while numbers:
        number = numbers.pop()
        facts = scene.fds.get((sample.pid, number))
        if facts is None or number in sets:
            continue
        if facts.kind is FdKind.EPOLL:
            # A set may be a member of a set.
            sets.add(number)
            numbers.extend(facts.watches)
        else:
            found[number] = facts
    return tuple(found[number] for number in sorted(found))


def _watched_for_room(scene: Scene, sample: ThreadSample) -> frozenset[int]:
    """Descriptors that are watched for room to write, and for nothing else."""
    room = set(sample.room_fds)
    for number in (*sample.io_fds, *sample.args[:1]):
        facts = scene.fds.get((sample.pid, number))
        if facts is not None and facts.kind is FdKind.EPOLL:
            room.update(facts.watches_room)
    return frozenset(room)
