"""One thread's wait, as analysis sees it while it is still finding out who could end it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from pyhangtrace.analyze.calls import Call
from pyhangtrace.analyze.progress import Progress
from pyhangtrace.analyze.scene import Key
from pyhangtrace.model.kinds import Confidence, Edge, Kind, WaitKind
from pyhangtrace.model.report import ReportHolder, WaitObject

if TYPE_CHECKING:
    from dataclasses import replace  # the same for type checkers, which know what it may be given
else:
    from msgspec.structs import replace

# From what says most to what says least.
SURENESS = (Confidence.PROVEN, Confidence.LIKELY, Confidence.POSSIBLE)


def weakest(*given: Confidence) -> Confidence:
    """Of several the one that says least."""
    return max(given, key=SURENESS.index)


def weaker(one: Confidence, than: Confidence) -> bool:
    """Whether the first says less than the second."""
    return SURENESS.index(one) > SURENESS.index(than)


class Standing(str, Enum):
    """What a wait amounts to when nobody is known who could end it."""

    FIRM = "firm"  # only another thread's act ends it
    IDLE = "idle"  # waits for work from outside: healthy for hours
    OPAQUE = "opaque"  # what it waits for is not known
    TIMER = "timer"  # ends by the clock
    RUNNING = "running"
    STOPPED = "stopped"


# Nobody else keeps such a thread from going on.
BY_ITSELF = frozenset({Standing.RUNNING, Standing.STOPPED, Standing.TIMER})
# Waits of the group for its members: the waiting has not left the group yet.
GROUP_KINDS = frozenset({WaitKind.COLLECTIVE, WaitKind.P2P, WaitKind.RENDEZVOUS})
# Name of the object of a rendezvous that does not get as far as to the store.
CONNECT = "connect"
# Locks that may be held, and initialisations that may be run, by whom nothing records.
MAY_BE_UNOWNED = frozenset({WaitKind.MUTEX, WaitKind.RWLOCK, WaitKind.PYTHON_LOCK, WaitKind.ONCE})


# A struct, as its object and its call are: a look at a large job makes thousands of them, each in several steps.
class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """`targets` are threads whose act would end the wait (all of them, or any one, by `edge`); `holder` is who is
    recorded, `candidates` who could by role. `basis` says what the wait and its targets are known from: PROVEN
    from kernel or memory, LIKELY by a rule about frames. `cause` is what to call it where the waiting leaves
    the group. `peer` is a rank that the program named itself, `group` the process group of a collective, where it is
    known. `besides` are threads that may act as well: whoever
    has a descriptor is a process, and any of its threads can use it, not only the one that speaks for it. With `asks`
    a loop of the program's own asks for it between naps, so that nothing wakes it when it could go on. `bystanders`
    sleep by the clock since before, and may give back what the targets have when they wake; where `helped`, nothing
    speaks against that.
    """

    key: Key
    kind: WaitKind
    standing: Standing
    progress: Progress
    cause: Kind
    basis: Confidence = Confidence.PROVEN
    object: WaitObject = msgspec.field(default_factory=WaitObject)
    targets: tuple[Key, ...] = ()
    holder: ReportHolder | None = None
    candidates: tuple[Key, ...] = ()
    besides: tuple[Key, ...] = ()
    bystanders: tuple[Key, ...] = ()
    helped: bool = False
    edge: Edge = Edge.ALL
    ends_by_itself: bool = False
    call: Call | None = None
    service: str | None = None
    peer: int | None = None
    group: str | None = None
    lasts_s: float | None = None  # what is left of a timed wait, or its whole length if that is unknown
    since_s: float | None = None
    # The process is recorded that can end it; which of its threads is not: a rule says so, or any of the targets is.
    thread_guessed: bool = False
    # Which operation of the group it is follows from what memory counts, not from a call that the thread is in.
    from_counters: bool = False
    note: str | None = None  # what else a person must know of it, as a clause
    asks: bool = False
    own_end: bool = False  # a pipe or pair whose only other end is in the same process
    anybodys: bool = False  # whoever knows the name or key of what it waits for may come and end it
    from_stdin: bool = False  # reads standard input, and the other end is not the job's
    gives_up: bool = False  # its caller has set a time after which it does, which is not seen
    over: bool = False  # its program has come to its end, and the process has not
    doubt: str | None = None  # what else may end it, as a clause after "unless"
    does: str | None = None  # what somebody has to do for it to end, where its kind does not say
    answer: str | None = None  # what a try to reach the object comes to, as a clause
    evidence: tuple[str, ...] = ()


# A record with other values in some of its fields.
changed = replace


def any_thread(wait: Blocked) -> bool:
    """Held by a process, and nothing says which of several threads of it is to let go."""
    return wait.thread_guessed and len(wait.targets) > 1


def any_of_its_own(wait: Blocked) -> bool:
    """Held by the process of the thread itself, and nothing says by which of its threads, itself among them."""
    return any_thread(wait) and wait.key in wait.targets


def awaits_key(wait: Blocked | None) -> bool:
    """For a key of the store of which nothing says whose it is, by a rank that others wait for."""
    key = wait is not None and wait.kind is WaitKind.RENDEZVOUS and wait.cause is Kind.UNKNOWN
    return key and wait is not None and not wait.targets and bool(wait.candidates)


def asks_for_lock(wait: Blocked) -> bool:
    """Between naps, in a loop of the program's own."""
    return wait.asks and wait.kind in (WaitKind.PYTHON_LOCK, WaitKind.MUTEX, WaitKind.FILE_LOCK)
