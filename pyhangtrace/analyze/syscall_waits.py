"""Waits that the system call names: children, file locks, descriptors, timers, signals."""

from __future__ import annotations

from collections.abc import Sequence

from pyhangtrace.analyze import holders, nap_waits, objects
from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.call_waits import polling
from pyhangtrace.analyze.calls import Meaning, path_has
from pyhangtrace.analyze.child_waits import CHILD_WAITS, in_group, wanted_children
from pyhangtrace.analyze.ends import io_wait, poll_wait
from pyhangtrace.analyze.progress import in_place
from pyhangtrace.analyze.scene import Scene
from pyhangtrace.analyze.sleeps import is_sleep
from pyhangtrace.model.kinds import Confidence, Edge, Kind, WaitKind
from pyhangtrace.model.open_files import FileLock
from pyhangtrace.model.report import WaitObject
from pyhangtrace.model.threads import ThreadSample

READS = frozenset(
    {"read", "readv", "pread64", "preadv", "recvfrom", "recvmsg", "recvmmsg", "splice", "tee", "accept"}
)

WRITES = frozenset({"write", "writev", "pwrite64", "sendto", "sendmsg", "sendmmsg", "sendfile"})

POLLS = frozenset(
    {"poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2", "accept4", "accept"}
)


_FORKS = ("vfork", "clone", "clone3")

OPENS = ("open", "openat", "openat2", "creat")

# What may have to wait until a lease on a file is given back.
BREAKS_LEASES = (*OPENS, "truncate")

CHILD = frozenset({"wait4", "waitid", "vfork", "clone", "clone3"})

SIGNALS = frozenset({"pause", "rt_sigtimedwait", "rt_sigsuspend"})

# fcntl(2): F_SETLKW and F_OFD_SETLKW, the two that wait.
_FCNTL_WAITS = (7, 38)


def child(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """wait4 and its kind."""
    name = scene.syscall(sample)
    by_frame = draft.call is not None and draft.call.meaning in (Meaning.CHILD, Meaning.JOIN_PROCESS)
    if name not in CHILD and not by_frame:
        return None
    children = holders.living_children(scene, sample.pid)
    asked: int | None = None
    if name in CHILD_WAITS:
        wanted = wanted_children(name, sample.args)
        asked = wanted.pid
        if wanted.pidfd is not None:
            facts = scene.fds.get((sample.pid, wanted.pidfd))
            asked = objects.watched_process(facts) if facts is not None else None
        elif wanted.group is not None:
            members = in_group(scene, sample.pid, wanted.group)
            asked = members[0] if len(members) == 1 else None
            children = members or children
    elif name in _FORKS and sample.state == "D":
        return _vfork(scene, sample, draft, children)
    if asked is not None and asked > 0:
        return changed(
            draft,
            kind=WaitKind.CHILD,
            standing=Standing.FIRM,
            cause=Kind.CHILD_STUCK,
            targets=((asked, 0),),
            holder=holders.process_holder(scene, asked),
        )
    if name in _FORKS:
        return None
    in_loop = draft.call is not None and draft.call.op == "spawnSync"
    if name not in CHILD and not is_sleep(scene, sample) and not in_loop:
        # Reads the child's output or watches its handle: the descriptor tells which child.
        return None
    return changed(
        draft,
        kind=WaitKind.CHILD,
        standing=Standing.FIRM if children else Standing.OPAQUE,
        cause=Kind.CHILD_STUCK,
        targets=tuple((pid, 0) for pid in children),
        candidates=tuple((pid, 0) for pid in children),
        edge=Edge.ANY,
        progress=polling(draft) if by_frame else draft.progress,
        gives_up=_has_deadline(scene, sample, draft),
    )


def _has_deadline(scene: Scene, sample: ThreadSample, draft: Blocked) -> bool:
    """subprocess naps between two looks at its child only where it was given a timeout."""
    in_wait = draft.call is not None and path_has(draft.call.frame.file, "subprocess.py")
    return in_wait and is_sleep(scene, sample)


def _vfork(scene: Scene, sample: ThreadSample, draft: Blocked, children: tuple[int, ...]) -> Blocked:
    """The parent sleeps until the child, which runs in its memory, ends or becomes another program."""
    same = tuple(pid for pid in children if holders.forked_without_exec(scene, pid)) or children
    sure = len(same) == 1
    return changed(
        draft,
        kind=WaitKind.CHILD,
        standing=Standing.FIRM if same else Standing.OPAQUE,
        cause=Kind.CHILD_STUCK,
        targets=tuple((pid, 0) for pid in same),
        candidates=() if sure else tuple((pid, 0) for pid in same),
        holder=holders.process_holder(scene, same[0]) if sure else None,
        edge=Edge.ALL if sure else Edge.ANY,
        evidence=(
            *draft.evidence,
            f"vfork in {sample.wchan or 'the kernel'}: goes on when the child has ended",
        ),
    )


def file_lock(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """flock and fcntl locks, with the holder from the kernel's table."""
    name = scene.syscall(sample)
    waits = name == "flock" or (name == "fcntl" and len(sample.args) > 1 and sample.args[1] in _FCNTL_WAITS)
    if not waits:
        return None
    fd = sample.args[0] if sample.args else None
    facts = scene.fds.get((sample.pid, fd)) if fd is not None else None
    before = holders.locks_before(scene, sample, fd)
    lock = before[0] if before else holders.file_lock_of(scene, sample, fd)
    path = facts.target if facts else None
    thing = WaitObject(
        path=path or (lock.path if lock else None),
        fd=fd,
        inode=facts.inode if facts else lock.inode if lock else None,
    )
    waiting = changed(
        draft, kind=WaitKind.FILE_LOCK, standing=Standing.FIRM, cause=Kind.FILE_LOCK_HELD, object=thing
    )
    if lock is not None:
        return _kept_by(scene, waiting, before or [lock])
    carriers = holders.carriers_on_file(scene, sample, fd)
    if not carriers:
        return changed(waiting, basis=Confidence.LIKELY)
    # Each may have locked another part of the file, so that which of them is in the way is not known.
    return changed(
        waiting,
        standing=Standing.OPAQUE,
        basis=Confidence.POSSIBLE,
        candidates=tuple((pid, 0) for pid in carriers),
        edge=Edge.ANY,
        evidence=(
            *draft.evidence,
            f"kernel lock table: ofd on inode {thing.inode} held by {'/'.join(map(str, carriers))}; which of these"
            " locks is in the way is not recorded",
        ),
    )


def _kept_by(scene: Scene, waiting: Blocked, locks: Sequence[FileLock]) -> Blocked:
    """The wait for locks all of which must be given back. Those that one process has say more than one of which nothing
    tells who of several is to give it back: that each of them is needed holds without the others as well.
    """
    pid = waiting.key[0]
    held = [(lock, holders.file_lock_holders(lock, waiter=pid)) for lock in locks]
    held.sort(
        key=lambda each: (not _is_recorded(each[0]), len(each[1]) != 1 or holders.is_on_its_way(each[0]))
    )
    lock, held_by = held[0]
    if holders.is_on_its_way(lock):
        return changed(
            waiting,
            standing=Standing.OPAQUE,
            basis=Confidence.POSSIBLE,
            evidence=(
                *waiting.evidence,
                f"kernel lock table: {lock.kind} on inode {lock.inode} taken by {lock.pid}, none of whose descriptors"
                " carries it, nor one of anybody seen",
            ),
        )
    if not held_by:
        return changed(waiting, basis=Confidence.LIKELY)
    carried = _is_recorded(lock)
    kept = holders.held_by(scene, waiting, held_by)
    if kept.holder is None and carried and (first := holders.inherited_from(scene, held_by)) is not None:
        kept = changed(kept, holder=holders.process_holder(scene, first))
    beside = [
        (other, pids)
        for other, pids in held[1:]
        if len(pids) == 1 and len(held_by) == 1 and not holders.is_on_its_way(other) and _is_recorded(other)
    ]
    shares = tuple(sorted({pids[0] for _, pids in beside} - {*held_by}))
    if shares:
        keys = tuple((each, 0) for each in shares)
        kept = changed(kept, targets=(*kept.targets, *keys), candidates=keys)
    known = {*held_by, *shares, pid}
    # The lock of an open file is given back by anybody who has it open, also by who inherited it.
    sharers = tuple(
        sorted(
            {
                each
                for one in (lock, *(other for other, _ in beside))
                if one.kind != "posix"
                for each in holders.pids(one.holders, but=known)
            }
        )
    )
    sure = Confidence.LIKELY if sharers else Confidence.PROVEN
    lines = [f"{_lock_words(lock)} held by {'/'.join(map(str, held_by)) or '?'}"]
    if sharers:
        lines.append(f"pid {', '.join(map(str, sharers))} has it by the same open file")
    lines += [f"{_lock_words(other)} held by {pids[0]}" for other, pids in beside if pids[0] not in held_by]
    if shares:
        lines.append(f"pid {', '.join(map(str, shares))} has a lock of it as well; all must give it back")
    return changed(
        kept,
        # That somebody else has the file open does not say that he has locked it.
        basis=sure if carried else Confidence.POSSIBLE,
        candidates=(*kept.candidates, *((each, 0) for each in sharers)),
        besides=tuple((each, 0) for each in sharers),
        evidence=(*waiting.evidence, *lines),
    )


def _is_recorded(lock: FileLock) -> bool:
    """Whether the kernel tells who has it, and not only who has the file open."""
    return lock.pid > 0 or bool(lock.holders)


def _lock_words(lock: FileLock) -> str:
    whole = lock.start == 0 and lock.end is None
    part = "" if whole else f", bytes {lock.start} to {'the end' if lock.end is None else lock.end},"
    return f"kernel lock table: {lock.kind} on inode {lock.inode}{part}"


def sqlite(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """SQLite naps until a lock on the database is free; the kernel's table says who holds one."""
    if not is_sleep(scene, sample) or not scene.reading(sample).in_sqlite:
        return None
    found = holders.locks_in_the_way(scene, sample.pid)
    pids = sorted({lock.pid for lock in found})
    thing = WaitObject(path=found[0].path, inode=found[0].inode) if found else WaitObject()
    return changed(
        holders.held_by(scene, draft, pids),
        kind=WaitKind.FILE_LOCK,
        standing=Standing.FIRM if pids else Standing.OPAQUE,
        cause=Kind.FILE_LOCK_HELD,
        basis=Confidence.LIKELY,
        object=thing,
        progress=in_place(draft.progress),
        ends_by_itself=False,
        lasts_s=None,
        evidence=(*draft.evidence, "frame of SQLite that waits for a lock on the database"),
    )


def io(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked:
    """read, write, connect on one descriptor."""
    fd = sample.io_fds[0] if len(sample.io_fds) == 1 else sample.args[0] if sample.args else None
    facts = scene.fds.get((sample.pid, fd)) if fd is not None else None
    return io_wait(scene, sample, draft, fd, facts, writing=scene.syscall(sample) in WRITES)


def fifo(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """open(2) of a FIFO that nobody has open at the other end: whoever knows its name may come, as to a listener."""
    if not _opens_fifo(sample):
        return None
    # Two that open different ones may each be whom the other one waits for.
    crossed = any(
        _opens_fifo(other) and other.path != sample.path
        for key in scene.samples
        if key != draft.key and (other := scene.thread(key)) is not None
    )
    return changed(
        draft,
        kind=WaitKind.PIPE,
        standing=Standing.OPAQUE if crossed else Standing.IDLE,
        cause=Kind.UNKNOWN if crossed else objects.cause_of_nobody(scene, sample.pid),
        anybodys=True,
        object=WaitObject(name="fifo", path=sample.path),
        evidence=(
            *draft.evidence,
            f"in {sample.wchan}: nobody has the other end open; {objects.NO_OWNER}",
        ),
    )


def _opens_fifo(sample: ThreadSample) -> bool:
    return sample.wchan in ("wait_for_partner", "fifo_open")


def lease(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """open(2) or truncate(2) of a file on which somebody has a lease: he is asked to give it back, and after a while it
    is taken.
    """
    if "break_lease" not in (sample.wchan or ""):
        return None
    found = [
        lock
        for lock in scene.evidence.looks[-1].file_locks
        if lock.kind == "lease" and lock.pid > 0 and sample.pid in lock.waiters and lock.pid != sample.pid
    ]
    lock = found[0] if found else None
    return changed(
        draft,
        kind=WaitKind.FILE_LOCK,
        standing=Standing.FIRM,
        cause=Kind.FILE_LOCK_HELD,
        object=WaitObject(
            name="lease",
            path=sample.path or (lock.path if lock else None),
            inode=lock.inode if lock else None,
        ),
        targets=((lock.pid, 0),) if lock else (),
        holder=holders.process_holder(scene, lock.pid) if lock else None,
        evidence=(
            *draft.evidence,
            f"in {sample.wchan}: waits until the lease on the file is given back",
            *((f"kernel lock table: lease on inode {lock.inode} held by {lock.pid}",) if lock else ()),
        ),
    )


def ring(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """io_uring_enter: waits for completions of what was asked for before, which the kernel does not list."""
    if len(sample.args) < 3:
        return None
    facts = scene.fds.get((sample.pid, sample.args[0]))
    state = objects.condition(facts) if facts is not None else None
    wanted = f"waits for {sample.args[2]} completion{'s' if sample.args[2] != 1 else ''}"
    return changed(
        draft,
        standing=Standing.OPAQUE,
        object=changed(objects.thing(facts, sample.args[0]), name="io_uring"),
        evidence=(*draft.evidence, f"{wanted}{'; ' + state if state else ''}; {objects.NO_OWNER}"),
    )


def sleep(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """Timers."""
    if not is_sleep(scene, sample):
        return None
    asking = nap_waits.asks(scene, sample, draft) if draft.call is None else None
    if asking is not None:
        return asking
    return changed(
        draft,
        kind=WaitKind.TIMER,
        standing=Standing.TIMER,
        cause=Kind.TIMER,
        object=WaitObject(remaining_s=sample.remaining_s),
        ends_by_itself=True,
    )


def polls(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked:
    """poll, select, epoll, accept."""
    return poll_wait(scene, sample, draft)


def signals(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked:
    """Waits for a signal."""
    return changed(
        draft,
        kind=WaitKind.POLL,
        standing=Standing.IDLE,
        cause=Kind.IDLE,
        object=WaitObject(name="signal"),
    )
