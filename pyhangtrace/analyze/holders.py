"""Who can end a wait: recorded owners first, then the other end of what is waited for, then candidates by role."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from pyhangtrace.analyze.blocked import Blocked, changed
from pyhangtrace.analyze.calls import path_has
from pyhangtrace.analyze.crowds import Siblings
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import Edge, FdKind, Role
from pyhangtrace.model.open_files import FdFacts, FileLock, Holder, LockFile, LockRequest
from pyhangtrace.model.processes import ProcessFacts
from pyhangtrace.model.report import ReportHolder, WaitObject
from pyhangtrace.model.threads import LockFacts, ThreadSample

_NETWORK_FILE_SYSTEMS = (
    "nfs",
    "nfs4",
    "lustre",
    "gpfs",
    "beegfs",
    "cifs",
    "smb3",
    "ceph",
    "fuse.juicefs",
    "9p",
)

# A lock file without an opener for this long is not one between making it and opening it.
STALE_AFTER_S = 1.0


# What a parent is in that waits for its children, or looks after them every so often.
_WATCHES = frozenset(
    {"wait4", "waitid", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "clock_nanosleep"}
)

# What is said of a lock that was held when its waiter was seen and free when its word was read.
RELEASED = "released meanwhile"

# What is said of a mutex whose owner ended with it, where the owner's id is gone too.
OWNER_DIED = "owner thread died holding it"

# What is said of an RLock that records the ident of a thread which no longer exists.
NO_SUCH_OWNER = "no thread has the ident of its owner"

# What is said of one whose owner may be among threads that were not read.
OWNER_UNREAD = "not all threads were read, nor was its owner"

# How it starts what is said of a mutex that nobody can ever have.
NEVER_HAD = "can never be had"

# How it ends what is said of a shared lock whose recorded owner may be any of several threads.
WHOSE_UNKNOWN = ": whose is not known"

# How much later than a waiter fell asleep a thread must have been started to be no owner; clocks differ that much.
_LATER_S = 0.5

# From where it is known that a thread which runs stands in a `with` of a lock: it may just have left that.
RUNNING_BLOCK = "bound __exit__ in a with block of a thread that runs"

# Locks that their owner takes again without waiting.
_RECURSIVE = frozenset({"python_rlock", "mutex_recursive"})

# What is said of a bare word (malloc, time zones, ...).
OF_C_LIBRARY = "lock inside the C library"

# What is said of a semaphore of multiprocessing that is no lock.
COUNTS = "it counts, so nobody holds it"


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded owner; `key` is None when no thread of that id exists any more.

    `reused`: one does, but it was started when all who wait for the lock were already asleep.
    """

    pid: int
    tid: int
    key: Key | None
    reused: bool = False


def lock_owner(scene: Scene, sample: ThreadSample) -> Owner | None:
    """The thread that memory records as the owner of the lock that a thread waits for."""
    lock = sample.lock
    if lock is None or not lock.owner_tid:
        return None
    if lock.kind in _RECURSIVE and lock.owner_tid == sample.tid and lock.shared_key is None:
        return None  # its own thread would have got it: it has been handed on since
    if lock.owner_from == RUNNING_BLOCK and not _stood_there(scene, sample, lock):
        return None
    if (sample.pid, lock.owner_tid) not in scene.samples and changed_hands(scene, sample, lock):
        return None
    if _started_later(scene, sample, lock):
        return Owner(pid=sample.pid, tid=lock.owner_tid, key=None, reused=True)
    here = (sample.pid, lock.owner_tid)
    if here in scene.samples:
        return Owner(pid=sample.pid, tid=lock.owner_tid, key=here)
    process = scene.processes.get(sample.pid)
    beside = process.same_memory if process is not None else ()
    if lock.shared_key is not None or beside:
        elsewhere = scene.by_tid.get(lock.owner_tid)
        if elsewhere is not None and (lock.shared_key is not None or elsewhere[0] in beside):
            return Owner(pid=elsewhere[0], tid=elsewhere[1], key=elsewhere)
    return Owner(pid=sample.pid, tid=lock.owner_tid, key=None)


def changed_hands(scene: Scene, sample: ThreadSample, lock: LockFacts) -> bool:
    """Whether the owner was another one in an earlier look, or none tells that it was the same.

    Threads that end soon after they had a lock leave their ids in it for a moment: only one who had it all the time can
    have ended with it.
    """
    key = (sample.pid, sample.tid)
    earlier = [before.lock for before in scene.samples.get(key, ())[:-1]]
    return key in scene.began or any(
        before is None
        or (before.address, before.owner_tid, before.problem) != (lock.address, lock.owner_tid, lock.problem)
        for before in earlier
    )


def _stood_there(scene: Scene, sample: ThreadSample, lock: LockFacts) -> bool:
    """Whether several looks show one and the same thread in a `with` of the lock, while nobody woke the waiter.

    A lock that is let go wakes who waits for it.
    """
    seen = scene.samples[(sample.pid, sample.tid)]
    counters = {(each.run_ns, each.slices) for each in seen}
    slept = len(seen) > 1 and len(counters) == 1 and seen[0].run_ns is not None
    owners = [
        (each.lock.address, each.lock.owner_tid)
        for each in seen
        if each.lock is not None and each.lock.owner_tid
    ]
    return slept and len(owners) > 1 and set(owners) == {(lock.address, lock.owner_tid)}


def _started_later(scene: Scene, sample: ThreadSample, lock: LockFacts) -> bool:
    """Whether the thread of the recorded id is younger than the waiting.

    A lock that is let go wakes somebody who waits for it. Where all have slept since before that thread was started,
    it can't have taken the lock; one of them who woke may have found it taken again.
    """
    if lock.owner_age_s is None:
        return False
    asleep = scene.queues.all_asleep_for_s(sample)
    if asleep is None or asleep <= lock.owner_age_s + _LATER_S:
        return False
    # Where the owner itself has slept for longer than it has lived, the two clocks do not agree (a machine that stood
    # still for a while).
    tid = lock.owner_tid or 0
    owner = scene.thread((sample.pid, tid)) or scene.thread(scene.by_tid.get(tid, (0, 0)))
    slept = owner.asleep_for_s if owner is not None else None
    return slept is None or slept <= lock.owner_age_s + _LATER_S


def gil_holder(scene: Scene, pid: int) -> Key | None:
    """The thread that holds the interpreter's lock."""
    process = scene.processes.get(pid)
    if process is not None and process.python is not None and process.python.gil_holder_tid:
        key = (pid, process.python.gil_holder_tid)
        if key in scene.samples and process.python.gil_locked is not False:
            return key
    for key in scene.threads_of(pid):
        thread = scene.thread(key)
        if thread is not None and thread.holds_gil:
            return key
    return None


def forked_without_exec(scene: Scene, pid: int) -> ProcessFacts | None:
    """The parent whose memory this process was copied from, None if it called execve or nobody knows."""
    process = scene.processes.get(pid)
    if process is None:
        return None
    parent = scene.processes.get(process.ppid)
    if parent is None or not process.exe or process.exe != parent.exe:
        return None
    # A spawned child of multiprocessing has another command line; a forked one keeps its parent's.
    return parent if process.title == parent.title else None


def file_lock_of(scene: Scene, sample: ThreadSample, fd: int | None) -> FileLock | None:
    """The kernel's record of the file lock that a thread is queued behind."""
    facts = scene.fds.get((sample.pid, fd)) if fd is not None else None
    locks = scene.evidence.looks[-1].file_locks
    for lock in locks:
        if sample.pid in lock.waiters and (facts is None or facts.inode is None or facts.inode == lock.inode):
            return lock
    if facts is None or facts.inode is None:
        return None
    # A waiter in another pid namespace shows as 0: go by the file.
    same = [lock for lock in locks if lock.inode == facts.inode and lock.pid != sample.pid]
    return same[0] if len(same) == 1 else None


def carriers_on_file(scene: Scene, sample: ThreadSample, fd: int | None) -> tuple[int, ...]:
    """Others whose descriptors carry locks of open files on the file that a thread wants to lock: the kernel's table
    says of these neither whose they are nor who waits.
    """
    facts = scene.fds.get((sample.pid, fd)) if fd is not None else None
    if facts is None or facts.inode is None:
        return ()
    return _pids(
        holder.pid
        for lock in scene.evidence.looks[-1].file_locks
        if lock.kind == "ofd" and lock.inode == facts.inode
        for holder in lock.holders
        if holder.pid != sample.pid
    )


# flock(2): LOCK_SH, LOCK_EX
_FLOCK_ACCESS = {1: "read", 2: "write"}


def locks_before(scene: Scene, sample: ThreadSample, fd: int | None) -> list[FileLock]:
    """Locks of the file that a thread wants to lock that are in its way, by their bytes and access: all must be given
    back. The one that the kernel has queued it behind comes first. [] where it is not known what the thread asks for.
    """
    facts = scene.fds.get((sample.pid, fd)) if fd is not None else None
    behind = file_lock_of(scene, sample, fd)
    inode = facts.inode if facts is not None else behind.inode if behind is not None else None
    kinds = ("flock",) if scene.syscall(sample) == "flock" else ("posix", "ofd")
    here = [
        lock
        for lock in scene.evidence.looks[-1].file_locks
        if lock.inode == inode and inode is not None and lock.kind in kinds
    ]
    queued = [lock for lock in here if {sample.pid, -1, 0}.intersection(lock.waiters)]
    # Numbers of files are those of their file system, whose own the kernel may show another way than stat(2) does.
    devices = {lock.device for lock in queued}
    if facts is not None and facts.device in devices:
        devices = {facts.device}
    flags = sample.args[1] if kinds == ("flock",) and len(sample.args) > 1 else 0
    whole = _FLOCK_ACCESS.get(flags & 3)
    request = LockRequest(access=whole, pid=sample.pid) if whole is not None else _request(sample, queued)
    if request is None or len(devices) != 1:
        return []
    found = [
        lock
        for lock in here
        if lock.device in devices
        and "write" in (lock.access, request.access)
        and _overlap(lock, request)
        and not _is_own(lock, request, sample.pid, fd)
    ]
    return sorted(found, key=lambda lock: sample.pid not in lock.waiters)


def _request(sample: ThreadSample, queued: Sequence[FileLock]) -> LockRequest | None:
    """What a thread asks for: by its call, if the kernel has such a request; or the only one of its process."""
    known = {request for lock in queued for request in lock.requests}
    asked = sample.lock_request
    if asked is not None and any(
        (asked.access, asked.start, asked.end) == (each.access, each.start, each.end)
        and each.pid in (asked.pid, 0)
        for each in known
    ):
        return asked
    own = [request for request in known if request.pid == sample.pid]
    return own[0] if len(own) == 1 else None


def _overlap(lock: FileLock, request: LockRequest) -> bool:
    return (lock.end is None or lock.end >= request.start) and (
        request.end is None or request.end >= lock.start
    )


def _is_own(lock: FileLock, request: LockRequest, pid: int, fd: int | None) -> bool:
    """Whether who asks has the lock himself: a process that of its own, an open file its own."""
    if lock.kind == "posix":
        return lock.pid == request.pid
    by_open_file = lock.kind == "flock" or request.pid == -1
    return by_open_file and any((holder.pid, holder.fd) == (pid, fd) for holder in lock.holders)


def held_by(scene: Scene, wait: Blocked, pids: Sequence[int]) -> Blocked:
    """The wait for what these processes hold, each the whole of it or a share: with one it is known who."""
    keys = tuple((pid, 0) for pid in pids)
    several = len(pids) > 1
    return changed(
        wait,
        targets=keys,
        holder=process_holder(scene, pids[0]) if len(pids) == 1 else None,
        candidates=keys if several else (),
        edge=Edge.ANY if several else Edge.ALL,
    )


def locks_in_the_way(scene: Scene, pid: int) -> list[FileLock]:
    """Locks that others are recorded to hold on files that the process has open."""
    return [
        lock
        for lock in scene.evidence.looks[-1].file_locks
        if lock.pid > 0 and lock.pid != pid and pid in lock.openers
    ]


def file_lock_holders(lock: FileLock, *, waiter: int) -> tuple[int, ...]:
    """Pids that hold it: the recorded one, or for a lock of an open file those whose descriptors carry it; where the
    kernel does not say so of descriptors, those who have the file open.

    The one who took a flock may have ended, or have closed the file; whoever inherited the descriptor has it then, and
    nobody where that is on its way to another process.
    """
    carriers = _pids(holder.pid for holder in lock.holders)
    if lock.pid > 0:
        passed_on = lock.kind == "flock" and (
            (bool(carriers) and lock.pid not in carriers) or is_on_its_way(lock)
        )
        return carriers if passed_on else (lock.pid,)
    if carriers:
        return carriers
    return tuple(sorted({pid for pid in lock.openers if pid not in lock.waiters and pid != waiter}))


def is_on_its_way(lock: FileLock) -> bool:
    """Whether the taker of a flock has the file open, and by no descriptor of it the lock, nor has anybody else."""
    return lock.kind == "flock" and not lock.holders and lock.pid in lock.openers


def lock_file_of(scene: Scene, pid: int, path: str | None) -> LockFile | None:
    """The lock file that a process polls for."""
    files = scene.evidence.looks[-1].lock_files
    if path is not None:
        for file in files:
            if path_has(file.path, path) or file.path == path:
                return file
    mine = [file for file in files if file.pid == pid]
    return mine[0] if len(mine) == 1 else None


def is_stale(scene: Scene, file: LockFile, *, maker_keeps_it_open: bool) -> bool:
    """Nobody alive on this host can remove it: no opener, and its maker is dead or older than the job.

    `maker_keeps_it_open`: whoever made it holds it open until it removes it (torch's FileBaton does), so that an
    opener who is missing through all looks is proof enough. On a network file system the maker may live on
    another host, and an incomplete search for openers proves nothing.
    """
    if not file.exists or file.openers or file.owner_alive or file.fs_type in _NETWORK_FILE_SYSTEMS:
        return False
    seen = [other for look in scene.evidence.looks for other in look.lock_files if other.path == file.path]
    if not all(other.openers_complete for other in (file, *seen)):
        return False
    if file.owner_alive is False or file.older_than_job:
        return True
    if not maker_keeps_it_open or scene.evidence.window_s < STALE_AFTER_S:
        return False
    return all(other.exists and not other.openers and other.inode == file.inode for other in seen)


def writers(fd: FdFacts) -> tuple[int, ...]:
    """Processes that can write into what this descriptor reads from, its own included."""
    if fd.kind is FdKind.SOCKET:
        return _pids([holder.pid for holder in fd.peers])
    return _pids([holder.pid for holder in fd.others if "w" in holder.mode])


def readers(fd: FdFacts) -> tuple[int, ...]:
    """Processes that can read what this descriptor writes."""
    if fd.kind is FdKind.SOCKET:
        return _pids(holder.pid for holder in fd.peers)
    return _pids(holder.pid for holder in fd.others if "r" in holder.mode)


# Signals that Python, its fault handler and the C library take for themselves: nobody waits for those.
UNASKED_SIGNALS = frozenset({2, 4, 6, 7, 8, 11, 32, 33})


def handled_signals(scene: Scene, pid: int) -> frozenset[int] | None:
    """Signals that a process has a handler of its own for; None if that is not known."""
    process = scene.processes.get(pid)
    if process is None or process.signals_caught is None:
        return None
    return frozenset(process.signals_caught) - UNASKED_SIGNALS


# SIGALRM, SIGVTALRM, SIGPROF: what setitimer(2) and alarm(2) send, and what is left of them cannot be seen.
_TIMER_SIGNALS = frozenset({14, 26, 27})


def has_timer_handler(scene: Scene, pid: int) -> bool:
    """Whether a timer of its own may interrupt a wait of the process and call a handler."""
    handled = handled_signals(scene, pid)
    return handled is not None and not _TIMER_SIGNALS.isdisjoint(handled)


def inherited_from(scene: Scene, pids: Sequence[int]) -> int | None:
    """Of processes that have one open file the one of which all others are descendants."""
    return next((pid for pid in pids if set(pids) <= {pid, *scene.descendants(pid)}), None)


def pids(found: Iterable[Holder], *, but: Collection[int] = ()) -> tuple[int, ...]:
    """The processes among holders of something open."""
    return _pids(holder.pid for holder in found if holder.pid not in but)


def _pids(pids: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(pids)))


def siblings(scene: Scene, key: Key) -> tuple[Key, ...]:
    """Other threads of the process that have work of their own and do not wait for the same object.

    A serving thread counts while it works: it does somebody's work then (autograd, OpenMP).
    """
    mine = scene.thread(key)
    lock = mine.lock if mine is not None else None
    same = scene.queues.on_word[key[0], lock.uaddr] if lock is not None else (key,)
    workers = scene.workers.get(key[0], ())
    if len(same) > 1:
        away = set(same)
        return tuple([other for other in workers if other not in away])
    try:
        at = workers.index(key)
    except ValueError:
        return Siblings(workers)
    return Siblings(workers[:at] + workers[at + 1 :])


def who_may_hold(scene: Scene, key: Key) -> tuple[Key, ...]:
    """Threads that may hold a lock which records nobody: siblings, and of one that is shared those of all processes."""
    mine = scene.thread(key)
    found = list(siblings(scene, key))
    if mine is not None and mine.lock is not None and mine.lock.shared_key is not None:
        found.extend(
            other
            for pid in sorted(scene.workers)
            if pid != key[0]
            for other in sorted(scene.workers[pid])
            if (sample := scene.thread(other)) is not None
            and not (sample.lock is not None and sample.lock.shared_key == mine.lock.shared_key)
        )
    return tuple(found)


def same_shared_object(scene: Scene, key: Key) -> frozenset[int]:
    """Processes with a thread on the same futex in a shared mapping."""
    mine = scene.thread(key)
    if mine is None or mine.lock is None or mine.lock.shared_key is None:
        return frozenset()
    return scene.queues.sharers[mine.lock.shared_key]


def brothers_elsewhere(scene: Scene, key: Key) -> tuple[int, ...]:
    """Children of the same parent that do not wait for the same shared object, and that parent if it does anything
    but wait for its children; none if it is not shared.
    """
    waiting = same_shared_object(scene, key)
    process = scene.processes.get(key[0])
    if not waiting or process is None:
        return ()
    family = (*scene.children.get(process.ppid, ()), *_parent_at_work(scene, process.ppid))
    return tuple(
        pid
        for pid in family
        if pid not in waiting
        and scene.processes[pid].role not in (Role.OUTSIDER, Role.COMPILER)
        and "resource_tracker" not in scene.processes[pid].title
    )


def _parent_at_work(scene: Scene, pid: int) -> tuple[int, ...]:
    main = scene.thread((pid, pid))
    if main is None or pid not in scene.processes:
        return ()
    return () if scene.syscall(main) in _WATCHES else (pid,)


def named(sample: ThreadSample, names: Mapping[str, None] | Iterable[str]) -> str | int | None:
    """The first local of a wait frame under one of these names (a dotted name counts by its last part)."""
    wanted = tuple(names)
    for value in sample.named_values:
        if value.name in wanted or value.name.rpartition(".")[2] in wanted:
            return value.value
    return None


def thread_holder(key: Key | None) -> ReportHolder | None:
    """A thread as a recorded holder."""
    return ReportHolder(pid=key[0], tid=key[1]) if key is not None else None


def process_holder(scene: Scene, pid: int) -> ReportHolder:
    """A process as a recorded holder."""
    return ReportHolder(pid=pid, alive=not scene.exited(pid))


def living_children(scene: Scene, pid: int) -> tuple[int, ...]:
    """Children that have not exited. One that has ends a wait for it: it did so while the host was looked at."""
    return tuple(child for child in scene.children.get(pid, ()) if not scene.exited(child))


def lock_object(sample: ThreadSample, *, address: int | None = None) -> WaitObject:
    """What identifies the lock in the report, or the object of this address around it."""
    lock = sample.lock
    if lock is None:
        return WaitObject(address=hex(address)) if address else WaitObject()
    address = address or lock.python_lock_address or lock.address
    inode = lock.shared_key[1] if lock.shared_key else None
    left = sample.remaining_s if lock.timeout else None
    return WaitObject(address=hex(address), inode=inode, remaining_s=left)
