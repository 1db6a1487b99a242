"""What threads can wait for, as data: who can be found to hold it, and how a report may call it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum


class Language(Enum):
    """What a plan is played by."""

    CPP = "C++"
    PYTHON = "Python"


class Record(IntEnum):
    """How well it is recorded who can end a wait, the worst first."""

    NONE = 0  # nowhere
    FRAMES = 1  # in memory, and by a rule about frames
    PROCESS = 2  # the kernel knows the process
    THREAD = 3  # memory or the kernel knows the thread


class Held(Enum):
    """How somebody is waited for."""

    TAKEN = "takes it"
    SIGNAL = "is to give the signal"
    ENDS = "is to end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of object. ``crosses``: processes can share it; ``inside``: threads of one process can wait for
    each other by it. ``called``: kinds of waits in a report that name it.
    """

    name: str
    record: Record
    called: frozenset[str]
    held: Held = Held.TAKEN
    crosses: bool = False
    inside: bool = True
    timed: bool = False  # can be waited for with a timeout


def _kinds(*kinds: Kind) -> dict[str, Kind]:
    return {kind.name: kind for kind in kinds}


_MUTEX = frozenset({"mutex"})
_RWLOCK = frozenset({"rwlock"})
_FILE = frozenset({"file_lock"})
_PYTHON = frozenset({"python_lock"})
#: glibc keeps a semaphore, a condition and others in words that look alike.
_SIGNALS = frozenset({"condition", "semaphore", "barrier", "queue"})

_FILES = (
    Kind(name="flock", record=Record.PROCESS, called=_FILE, crosses=True),
    Kind(name="fcntl", record=Record.PROCESS, called=_FILE, crosses=True, inside=False),
    Kind(name="ofd", record=Record.PROCESS, called=_FILE, crosses=True),
)

KINDS: dict[Language, dict[str, Kind]] = {
    Language.CPP: _kinds(
        *(
            Kind(name=f"mutex_{name}", record=Record.THREAD, called=_MUTEX, crosses=True, timed=True)
            for name in ("normal", "recursive", "errorcheck", "adaptive", "robust", "pi")
        ),
        Kind(name="rwlock", record=Record.THREAD, called=_RWLOCK, crosses=True, timed=True),
        Kind(name="std_mutex", record=Record.THREAD, called=_MUTEX),
        Kind(name="std_recursive", record=Record.THREAD, called=_MUTEX),
        Kind(name="std_shared", record=Record.THREAD, called=_RWLOCK),
        Kind(name="join", record=Record.THREAD, called=frozenset({"join"}), held=Held.ENDS),
        Kind(name="semaphore", record=Record.NONE, called=_SIGNALS, crosses=True, timed=True),
        Kind(name="condition", record=Record.NONE, called=_SIGNALS, held=Held.SIGNAL, crosses=True),
        Kind(name="barrier", record=Record.NONE, called=_SIGNALS, held=Held.SIGNAL, crosses=True),
        Kind(name="future", record=Record.NONE, called=_SIGNALS, held=Held.SIGNAL),
        *_FILES,
    ),
    Language.PYTHON: _kinds(
        Kind(name="rlock", record=Record.THREAD, called=_PYTHON),
        Kind(name="with_rlock", record=Record.THREAD, called=_PYTHON),
        Kind(name="with_lock", record=Record.FRAMES, called=_PYTHON),
        Kind(name="join", record=Record.FRAMES, called=frozenset({"join"}), held=Held.ENDS),
        Kind(name="lock", record=Record.NONE, called=_PYTHON),
        Kind(name="semaphore", record=Record.NONE, called=_SIGNALS),
        Kind(name="mp_lock", record=Record.NONE, called=_SIGNALS, crosses=True),
        Kind(name="condition", record=Record.NONE, called=_SIGNALS, held=Held.SIGNAL),
        Kind(name="event", record=Record.NONE, called=_SIGNALS, held=Held.SIGNAL),
        Kind(name="queue", record=Record.NONE, called=_SIGNALS, held=Held.SIGNAL),
        Kind(name="barrier", record=Record.NONE, called=_SIGNALS, held=Held.SIGNAL),
        Kind(name="future", record=Record.NONE, called=_SIGNALS, held=Held.SIGNAL),
        *_FILES,
    ),
}
