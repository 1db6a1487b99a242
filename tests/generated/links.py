"""What programs are made of: ways in which one thread waits for another, and what the last one is in.

A chain is a row of actors, each a thread. Actor `k` waits for actor `k + 1` by a link; the last one is in an end.
Code fragments hold names in braces: ``{it}`` is what the two share, ``{ready}`` tells the waiter that its holder
is in place, the others are fresh names. What is said here about kinds follows from the construction alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tests.hangs.facts import Waits


class Place(Enum):
    """Where the actor that is waited for lives, and how it comes there."""

    THREAD = "a thread of the same process"
    FUTURE = "a worker of a thread pool"
    FORK = "a child made by os.fork"
    PROCESS = "a child made by multiprocessing"
    EXEC = "a child that is a program of its own"
    FOREIGN = "a process that was there before"

    @property
    def same_process(self) -> bool:
        return self in (Place.THREAD, Place.FUTURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One wait for another actor.

    ``make``: what the waiter prepares. ``hold``: what the holder does before it says that it is ready; with
    ``inside`` the rest of it is within that block. ``then``: what it does once it is ready. ``after``: what it
    would do in the end. ``connect``: what the waiter does when the holder is ready, ``want``: the wait itself.
    ``recorded``: kernel or memory say who the holder is, or a frame of it does; else a report may leave open
    what comes of it.
    """

    kind: str
    places: tuple[Place, ...]
    waits: Waits
    causes: frozenset[str]
    make: tuple[str, ...] = ()
    hold: tuple[str, ...] = ()
    inside: bool = False
    then: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    want: tuple[str, ...] = ()
    recorded: bool = True
    ready_words: str = ""


LOCKS = frozenset({"lock.held"})
FILE_LOCKS = frozenset({"file_lock.held"})
# A signal that its giver cannot give: what counts is what the giver is in.
SIGNALS = frozenset({"unknown"})
SILENT = frozenset({"ipc.peer_silent", "child.stuck", "worker.stuck"})
CHILDREN = frozenset({"child.stuck", "worker.stuck"})

THREAD = (Place.THREAD,)
_FLOCK = ("{fd} = os.open({it}, os.O_RDWR | os.O_CREAT)", "fcntl.flock({fd}, fcntl.LOCK_EX)")
_LOCKF = ("{fd} = open({it}, 'a+b')", "fcntl.lockf({fd}, fcntl.LOCK_EX)")
_PATH = ("{it} = os.path.join(FOLDER, {text})",)
_MUTEX = ("LIBC.pthread_mutex_lock({it})",)
_MADE_MUTEX = ("{it} = ctypes.create_string_buffer(64)",)

LINKS = (
    Link(
        kind="with-lock",
        places=THREAD,
        waits=Waits.LOCK,
        causes=LOCKS,
        make=("{it} = threading.Lock()",),
        hold=("with {it}:",),
        inside=True,
        want=("with {it}:", "    pass"),
    ),
    Link(
        kind="acquired-by-with-lock",
        places=THREAD,
        waits=Waits.LOCK,
        causes=LOCKS,
        make=("{it} = threading.Lock()",),
        hold=("with {it}:",),
        inside=True,
        want=("{it}.acquire()",),
    ),
    Link(
        kind="acquire-lock",
        places=THREAD,
        waits=Waits.LOCK,
        causes=LOCKS,
        make=("{it} = threading.Lock()",),
        hold=("{it}.acquire()",),
        after=("{it}.release()",),
        want=("{it}.acquire()",),
        recorded=False,
    ),
    Link(
        kind="with-rlock",
        places=THREAD,
        waits=Waits.LOCK,
        causes=LOCKS,
        make=("{it} = threading.RLock()",),
        hold=("with {it}, {it}:",),
        inside=True,
        want=("with {it}:", "    pass"),
    ),
    Link(
        kind="acquire-rlock",
        places=THREAD,
        waits=Waits.LOCK,
        causes=LOCKS,
        make=("{it} = threading.RLock()",),
        hold=("{it}.acquire()",),
        after=("{it}.release()",),
        want=("{it}.acquire()",),
    ),
    Link(
        kind="mutex",
        places=THREAD,
        waits=Waits.LOCK,
        causes=LOCKS,
        make=_MADE_MUTEX,
        hold=_MUTEX,
        after=("LIBC.pthread_mutex_unlock({it})",),
        want=_MUTEX,
    ),
    Link(
        kind="condition",
        places=THREAD,
        waits=Waits.LOCK,
        causes=SIGNALS,
        make=("{it} = threading.Condition()",),
        after=("with {it}:", "    {it}.notify()"),
        want=("with {it}:", "    {it}.wait()"),
        recorded=False,
    ),
    Link(
        kind="event",
        places=THREAD,
        waits=Waits.LOCK,
        causes=SIGNALS,
        make=("{it} = threading.Event()",),
        after=("{it}.set()",),
        want=("{it}.wait()",),
        recorded=False,
    ),
    Link(
        kind="queue",
        places=THREAD,
        waits=Waits.LOCK,
        causes=SIGNALS,
        make=("{it} = queue.Queue()",),
        after=("{it}.put({text})",),
        want=("{it}.get()",),
        recorded=False,
    ),
    Link(
        kind="simple-queue",
        places=THREAD,
        waits=Waits.LOCK,
        causes=SIGNALS,
        make=("{it} = queue.SimpleQueue()",),
        after=("{it}.put({text})",),
        want=("{it}.get()",),
        recorded=False,
    ),
    Link(
        kind="thread-pipe",
        places=THREAD,
        waits=Waits.READ,
        causes=SIGNALS | {"ipc.peer_silent", "ipc.no_eof"},
        make=("{it} = os.pipe()",),
        after=("os.write({it}[1], b'x')",),
        want=("os.read({it}[0], 1)",),
        recorded=False,
    ),
    Link(
        kind="join",
        places=THREAD,
        waits=Waits.LOCK,
        causes=LOCKS,
        want=("{holder}.join()",),
    ),
    Link(
        kind="future",
        places=(Place.FUTURE,),
        waits=Waits.LOCK,
        causes=SIGNALS,
        want=("{holder}.result()",),
        recorded=False,
    ),
    Link(
        kind="flock",
        places=(Place.EXEC, Place.FORK, Place.FOREIGN),
        waits=Waits.FILE_LOCK,
        causes=FILE_LOCKS,
        make=_PATH,
        hold=_FLOCK,
        want=_FLOCK,
    ),
    Link(
        kind="lockf",
        places=(Place.EXEC, Place.PROCESS, Place.FOREIGN),
        waits=Waits.FILE_LOCK,
        causes=FILE_LOCKS,
        make=_PATH,
        hold=_LOCKF,
        want=_LOCKF,
    ),
    Link(
        kind="wait-program",
        places=(Place.EXEC,),
        waits=Waits.CHILD,
        causes=CHILDREN,
        want=("{holder}.wait()",),
    ),
    Link(
        kind="wait-child",
        places=(Place.FORK,),
        waits=Waits.CHILD,
        causes=CHILDREN,
        want=("os.waitpid({holder}, 0)",),
    ),
    Link(
        kind="join-process",
        places=(Place.PROCESS,),
        waits=Waits.CHILD,
        causes=CHILDREN,
        want=("{holder}.join()",),
    ),
    Link(
        kind="read-program",
        places=(Place.EXEC,),
        waits=Waits.READ,
        causes=SILENT,
        want=("{holder}.stdout.readline()",),
    ),
    Link(
        kind="read-child",
        places=(Place.FORK,),
        waits=Waits.READ,
        causes=SILENT,
        want=("os.read({reader}, 1)",),
    ),
    Link(
        kind="receive-object",
        places=(Place.PROCESS,),
        waits=Waits.READ,
        causes=SILENT,
        want=("{pipe}[0].recv()",),
    ),
    Link(
        kind="fill-program",
        places=(Place.EXEC,),
        waits=Waits.WRITE,
        causes=frozenset({"ipc.pipe_full", "child.stuck"}),
        want=("{holder}.stdin.write(bytes(1 << 20))",),
    ),
    Link(
        kind="unix-socket",
        places=(Place.EXEC,),
        waits=Waits.READ,
        causes=SILENT,
        make=_PATH,
        hold=("{server} = socket.socket(socket.AF_UNIX)", "{server}.bind({it})", "{server}.listen(1)"),
        then=("{caller}, _ = {server}.accept()", "{caller}.recv(100)"),
        connect=(
            "{connection} = socket.socket(socket.AF_UNIX)",
            "{connection}.connect({it})",
            "{connection}.sendall({text}.encode())",
        ),
        want=("{connection}.recv(1)",),
    ),
    Link(
        kind="tcp-socket",
        places=(Place.EXEC,),
        waits=Waits.READ,
        causes=SILENT,
        hold=("{server} = socket.create_server(('127.0.0.1', 0))",),
        ready_words="{server}.getsockname()[1]",
        then=("{caller}, _ = {server}.accept()", "{caller}.recv(100)"),
        connect=(
            "{connection} = socket.create_connection(('127.0.0.1', int({said})))",
            "{connection}.sendall({text}.encode())",
        ),
        want=("{connection}.recv(1)",),
    ),
)


class Becomes(Enum):
    """What a report must call a group whose late member is held up by this end."""

    HUNG = "hung"
    SLOW = "slow"
    BUSY = "busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """What the last actor is in. ``alone``: it must be the first thread of its process."""

    kind: str
    waits: Waits
    causes: frozenset[str]
    before: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    becomes: Becomes = Becomes.HUNG
    recorded: bool = True
    alone: bool = False


TIMER = frozenset({"timer"})
CPU = frozenset({"cpu.busy", "cpu.spin"})

ENDS = (
    End(kind="sleep", waits=Waits.SLEEP, causes=TIMER, code=("time.sleep({long})",)),
    End(
        kind="select",
        waits=Waits.SLEEP,
        causes=TIMER,
        code=("select.select([], [], [], {long})",),
    ),
    End(
        kind="naps",
        waits=Waits.SLEEP,
        causes=TIMER,
        code=("while True:", "    time.sleep({short})"),
        becomes=Becomes.SLOW,
    ),
    End(
        kind="loop",
        waits=Waits.RUNNING,
        causes=CPU,
        code=("{n} = 0", "while True:", "    {n} += 1"),
        becomes=Becomes.BUSY,
    ),
    End(
        kind="hash",
        waits=Waits.RUNNING,
        causes=CPU,
        code=("{n} = b''", "while True:", "    {n} = hashlib.sha256({n} * 3000).digest()"),
        becomes=Becomes.BUSY,
    ),
    End(
        kind="stopped",
        waits=Waits.STOPPED,
        causes=frozenset({"peer.stopped"}),
        code=("os.kill(os.getpid(), signal.SIGSTOP)",),
        alone=True,
    ),
    End(
        kind="own-pipe",
        waits=Waits.READ,
        causes=frozenset({"ipc.no_eof", "ipc.peer_silent"}),
        before=("{pipe} = os.pipe()",),
        code=("os.read({pipe}[0], 1)",),
    ),
    End(
        kind="lost-event",
        waits=Waits.LOCK,
        causes=frozenset({"lock.handoff_lost", "unknown"}),
        code=("threading.Event().wait()",),
        recorded=False,
    ),
    End(
        kind="owner-gone",
        waits=Waits.LOCK,
        causes=frozenset({"lock.owner_gone"}),
        before=(
            "{it} = ctypes.create_string_buffer(64)",
            "{holder} = threading.Thread(target=LIBC.pthread_mutex_lock, args=({it},))",
            "{holder}.start()",
            "{holder}.join()",
        ),
        code=_MUTEX,
    ),
)

#: What an actor can keep, so that the last one wants it back: within a process, and between processes.
BACK_INSIDE = ("with-lock", "acquire-lock", "with-rlock", "mutex")
BACK_OUTSIDE = ("flock",)


def link(kind: str) -> Link:
    """The link of that kind. Raises KeyError when there is none."""
    return {one.kind: one for one in LINKS}[kind]


def end(kind: str) -> End:
    """The end of that kind. Raises KeyError when there is none."""
    return {one.kind: one for one in ENDS}[kind]
