"""Threads and tasks as one look saw them: what they are in, what they wait for, what they hold."""

from __future__ import annotations

from dataclasses import dataclass

from pyhangtrace.model.kinds import PolledThing, StackFrom, TaskKind, TaskObjectKind
from pyhangtrace.model.open_files import LockRequest
from pyhangtrace.model.stacks import Frame, StackSamples


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFacts:
    """A futex-based object, decoded from the target's memory in the same instant as the thread's stack.

    `kind`: mutex_normal, mutex_recursive, mutex_errorcheck, mutex_adaptive, mutex_robust, mutex_pi,
    mutex_timed, rwlock_read, rwlock_write, join, condition, semaphore, python_lock, python_rlock, gil,
    barrier, future, once, openmp, atomic, futex. `owner_tid` is what is recorded, also if that thread no longer
    exists (`problem` says so). `shared_key` is (device, inode, byte offset) for a futex in a shared
    mapping: equal keys are one object. `shared_file` is the file it lies in, None if it can only be inherited or sent.
    `owner_age_s` is the time since the thread of the recorded id was started. `unseen_owner` is the thread that a
    shared lock records, where that is one of a process that was not looked at: whether it shares the lock is not known.
    """

    kind: str
    address: int
    uaddr: int
    op: int
    value: int
    timeout: bool = False
    owner_tid: int | None = None
    owner_from: str | None = None
    owner_exact: bool = False
    readers: int | None = None
    shared_key: tuple[int, int, int] | None = None
    shared_file: str | None = None
    owner_age_s: float | None = None
    unseen_owner: int | None = None
    python_lock_address: int | None = None
    problem: str | None = None
    expected: int | None = None  # the value the thread went to sleep on
    mutex: int | None = None  # condition: the mutex its waiter gave up and will want back
    owner_function: str | None = None  # python_lock: the function whose `with` block holds it


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedValue:
    """A local of a well-known wait frame that identifies the object waited for (a lock file's path, a peer
    rank).

    `function` is the Python frame's qualified name. Only names listed in the collectors' tables are ever
    read. Of a float there are its millionths, of an object its type and address, of a container also how many are in
    it, and of those that were asked for the addresses (of a dict keys and values in turn; ints are themselves).
    """

    function: str
    name: str
    value: str | int | None
    type: str | None = None
    address: int | None = None
    length: int | None = None
    members: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadSample:
    """One thread in one look.

    `syscall` is the number of the system call the thread is blocked in, `None` while it runs or if
    unreadable; a restarted call is already decoded back. `moved` says that the thread ran while this look
    was taken (its schedstat changed), so its stack may mix two moments. `run_ns` and `slices` are
    schedstat's run time and number of time slices: equal in two looks means the thread did not run in
    between. `unmerged_python` are Python frames that do not fit between the native `frames`; of a running
    thread, whose Python frames were read at another moment, the native ones stand apart. `io_fds` are the
    descriptors a read/write/poll/select/epoll waits on, `room_fds` those of them that a poll or select watches for room
    to write, and for nothing else; `timeout_s` is the requested duration of a timed call,
    `remaining_s` what is left of it. `asleep_for_s` is the time since the thread last ran. `path` is the file or the
    address ("/run/x", "127.0.0.1:80") that the call names, `semaphores` are the pairs (number in its set, change)
    of a semop, `tracer_pid` is who has stopped a thread in state t. `polls_for` are the words by which the source of a
    loop that naps says that it asks for something ("except FileExistsError", "while exists()", "acquire()"), and
    `polled` what that is; None: a file. `nap_unread`: whether it asks for something could not be read in time.
    `lock_request` is what an fcntl asks for that waits for a lock.
    `lets_go` is the word by which code that a Python thread which is blocked stands in could let others go on
    ("release", "cancel"). `path_mount` is the file
    system of `path` ("nfs4 mounted at /data from nas:/data"), where the thread sleeps on its account, and
    `fuse_connection` the number of the connection to its server, if it is a FUSE one. In a page fault `path` is the
    file of the only mapping that a file server has to provide.
    """

    pid: int
    tid: int
    comm: str
    name: str | None = None
    state: str = "?"
    wchan: str | None = None
    syscall: int | None = None
    args: tuple[int, ...] = ()
    run_ns: int | None = None
    slices: int | None = None
    utime_ticks: int = 0
    stime_ticks: int = 0
    minor_faults: int = 0
    major_faults: int = 0
    moved: bool = False
    running: bool = False
    asleep_for_s: float | None = None
    holds_gil: bool = False
    frames: tuple[Frame, ...] = ()
    unmerged_python: tuple[Frame, ...] = ()
    unmerged_native: tuple[Frame, ...] = ()
    samples: StackSamples | None = None
    stack_from: StackFrom = StackFrom.NONE
    stack_complete: bool = False
    stack_problem: str | None = None
    python_problem: str | None = None  # why Python's frames are not whole
    lock: LockFacts | None = None
    named_values: tuple[NamedValue, ...] = ()
    io_fds: tuple[int, ...] = ()
    room_fds: tuple[int, ...] = ()
    timeout_s: float | None = None
    remaining_s: float | None = None
    path: str | None = None
    semaphores: tuple[tuple[int, int], ...] = ()
    lock_request: LockRequest | None = None
    tracer_pid: int | None = None
    polls_for: str | None = None
    polled: PolledThing | None = None
    lets_go: str | None = None
    nap_unread: bool = False
    path_mount: str | None = None
    fuse_connection: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskObject:
    """The object of asyncio in one of whose methods a task is suspended.

    `count`: permits or items that are there, of a queue that is joined its unfinished pieces of work, of a barrier how
    many have come; None where it has no such number. `limit`: of how many, where the object knows that; 0: no limit.
    """

    kind: TaskObjectKind
    method: str
    address: int
    count: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSample:
    """An asyncio task, or a suspended greenlet, in one look.

    `tid` is the thread whose event loop it belongs to, None if no thread runs that loop. `current`: it runs, or
    its thread is blocked inside of it. `moved`: its thread ran while the look was taken, so that nothing here is
    sure. `awaits` is what it waits for ("Queue.get", "sleep", "task 'reader'", "gather of 3, 2 pending",
    "Future", "ready": for its turn only), None if that is not known; `awaits_address` the future or task,
    which is the `address` of another sample where that is a task. `wakes_in_s` is what is left of a
    sleep, or until a timeout of its own ends the wait. `needs` are the addresses of tasks, and of futures that other
    threads work on, all of which have to be done before it goes on; with `needs_known` nothing else would let it.
    `object` is what it waits for of asyncio's own, `lock` the asyncio.Lock among them, `holds` are locks and semaphores
    in whose `async with` it is suspended. `computes` is the future by which another thread waits for its end.
    `frames` are innermost first, from what it awaits out to the task's own coroutine; `problem` says why they
    are not whole. `exception` is the type of the exception that ended it. `lets_go`, `polls_for` and `polled` are
    those of a `ThreadSample`, the last two where a coroutine of the program naps.
    """

    pid: int
    tid: int | None = None
    kind: TaskKind = TaskKind.ASYNCIO
    name: str = ""
    address: int = 0
    current: bool = False
    done: bool = False
    moved: bool = False
    exception: str | None = None
    awaits: str | None = None
    awaits_address: int | None = None
    object: TaskObject | None = None
    needs: tuple[int, ...] = ()
    needs_known: bool = False
    lock: int | None = None
    holds: tuple[int, ...] = ()
    computes: int | None = None
    wakes_in_s: float | None = None
    lets_go: str | None = None
    polls_for: str | None = None
    polled: PolledThing | None = None
    frames: tuple[Frame, ...] = ()
    problem: str | None = None
