"""Words for parts of the report: ages, sizes, waits, names of processes."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pyhangtrace.model.kinds import Role, StackFrom, WaitKind
from pyhangtrace.model.live import WakerNote
from pyhangtrace.model.ranks import fold
from pyhangtrace.model.report import (
    ANSWERS,
    APPEARS,
    RESULTS,
    Collective,
    Report,
    ReportProcess,
    ReportThread,
    Wait,
)
from pyhangtrace.model.stacks import Frame
from pyhangtrace.render.clean import clean
from pyhangtrace.render.stacks import frame_label, python_frames
from pyhangtrace.render.text.layout import shorten

_KIND_WORDS: dict[WaitKind, str] = {
    WaitKind.COLLECTIVE: "waits in a collective",
    WaitKind.P2P: "waits in a send or receive",
    WaitKind.RENDEZVOUS: "waits for the group to come together",
    WaitKind.MUTEX: "waits for a mutex",
    WaitKind.RWLOCK: "waits for a read-write lock",
    WaitKind.CONDITION: "waits for a condition",
    WaitKind.SEMAPHORE: "waits for a semaphore",
    WaitKind.BARRIER: "waits at a barrier",
    WaitKind.ONCE: "waits for an initialisation",
    WaitKind.GIL: "waits for the GIL",
    WaitKind.PYTHON_LOCK: "waits for a Python lock",
    WaitKind.IMPORT_LOCK: "waits for an import lock",
    WaitKind.JOIN: "waits for a thread to end",
    WaitKind.FILE_LOCK: "waits for a file lock",
    WaitKind.LOCK_FILE: "waits for a lock file to vanish",
    WaitKind.PIPE: "waits on a pipe",
    WaitKind.SOCKET: "waits on a socket",
    WaitKind.QUEUE: "waits for a queue",
    WaitKind.CHILD: "waits for a child process",
    WaitKind.TIMER: "sleeps",
    WaitKind.POLL: "polls descriptors",
    WaitKind.IO: "waits for I/O",
    WaitKind.PAGE_FAULT: "waits in a page fault",
    WaitKind.GPU: "waits for the GPU",
    WaitKind.STOPPED: "is stopped",
    WaitKind.THROTTLED: "is throttled by its CPU quota",
    WaitKind.RUNNING: "is on the CPU",
}


_WITH_HOLDER: dict[WaitKind, str] = {
    WaitKind.JOIN: "waits for the end of",
    WaitKind.CHILD: "waits for the child",
    WaitKind.GIL: "waits for the GIL, held by",
}
# Names of the object of an event loop whose tasks wait for each other.
_TASKS = ("task ", "tasks ")

# By the name that a wait for a signal or a queue carries.
_NAMED = {
    "futex word": "waits for a futex word",
    "atomic": "waits for an atomic",
    "std::future": "waits for a std::future",
    "worker": "waits for its next piece of work",
    "_worker_loop": "waits for its next piece of work",
    "_process_worker": "waits for its next piece of work",
    "map": "waits for the result of map",
}

# What nobody of the job ends, by the name that the wait carries.
_OUTSIDE = {"connection": "waits for a connection", "signal": "waits for a signal"}
_STACKS_FROM = {
    StackFrom.REPAIRED: "(stack repaired)",
    StackFrom.BPF: "(registers from eBPF)",
    StackFrom.STOP: "(stopped for a moment)",
}
_SAYS_ITS_KIND = ("pipe:[", "socket:[")

# Of a file lock: evidence that somebody beside the holder who is named has it.
_OTHERS_HAVE_IT = (" has it by the same open file", " has a lock of it as well; all must give it back")


def age(seconds: float | None) -> str:
    """A duration for people: `0.4 s`, `74 s`, `6 min`, `2.5 h`; "" if unknown."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} d"


def since(seconds: float | None) -> str:
    """`since 74 s`, or "" if unknown."""
    text = age(seconds)
    return f"since {text}" if text else ""


def plural(count: int, noun: str) -> str:
    """`1 rank`, `7 ranks`, `2 processes`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}es" if noun.endswith("s") else f"{count} {noun}s"


def plural_verb(words: str) -> str:
    """`waits for a lock` as several do it: `wait for a lock`."""
    verb, _, rest = words.partition(" ")
    plurals = {
        "waits": "wait",
        "sleeps": "sleep",
        "polls": "poll",
        "writes": "write",
        "reads": "read",
        "is": "are",
        "has": "have",
    }
    return f"{plurals.get(verb, verb)} {rest}".rstrip()


def numbers(values: Iterable[int], singular: str) -> str:
    """`rank 3`, `ranks 0-2,4`."""
    listed = sorted(set(values))
    return f"{singular} {listed[0]}" if len(listed) == 1 else f"{singular}s {fold(listed)}"


def process_title(process: ReportProcess) -> str:
    """Its command line without the folder of the program: `python warmup.py, outside the job`."""
    program, space, arguments = clean(process.title or "?").partition(" ")
    title = shorten((program.rpartition("/")[2] or program) + space + arguments, 48)
    outsider = ", outside the job" if process.role is Role.OUTSIDER else ""
    return title + outsider


def process_words(process: ReportProcess) -> str:
    """`pid 9911 (python warmup.py, outside the job)`."""
    return f"pid {process.pid} ({process_title(process)})"


def collective_words(collective: Collective) -> str:
    """`all_reduce #418 of tp (4096 x bfloat16)`."""
    words = collective.op
    if collective.seq is not None:
        words += f" #{collective.seq}"
    # A barrier of multiprocessing is its own group: "barrier of barrier" says nothing.
    if collective.group != collective.op:
        words += f" of {collective.group}"
    if collective.count is not None:
        words += f" ({collective.count} x {collective.dtype or '?'})"
    return clean(words)


def frame_words(frame: Frame) -> str:
    """`step (train.py:12)`, safe to show."""
    return clean(frame_label(frame))


def stack_notes(thread: ReportThread | None) -> tuple[str, ...]:
    """Where a stack is from, if that is not just what the kernel shows of every thread that sleeps: `5 samples: same
    leaf spin_here`, `(registers from eBPF)`.
    """
    if thread is None:
        return ()
    samples = thread.samples
    if samples is not None:
        leaves = samples.leaves
        place = f"same leaf {clean(leaves[0])}" if len(leaves) == 1 else f"in {len(leaves)} functions"
        return (f"{plural(samples.count, 'sample')}: {place}",)
    # Python's own frames are read from its memory, whatever the registers are.
    if any(python_frames(thread)):
        return (f"({clean(thread.python_problem)})",) if thread.python_problem else ()
    words = _STACKS_FROM.get(thread.stack_from)
    cut = f"(no caller found: {clean(thread.stack_problem)})" if thread.stack_problem else None
    return tuple(note for note in (words, cut) if note is not None)


def _lacking(collective: Collective) -> str:
    """`rank 2 has not launched all_reduce #3 of tp (4096 x float32)`."""
    has = "has" if len(collective.missing) == 1 else "have"
    return f"{numbers(collective.missing, 'rank')} {has} not launched {collective_words(collective)}"


def wait_words(wait: Wait, report: Report, *, known: Collection[int] = ()) -> str:
    """What one wait is, without saying who has it: `waits for a file lock /x/lock, held by pid 9911 (…)`.

    `known` are processes that the reader has met: they get no title.
    """
    thing = wait.object
    collective = next((item for item in report.collectives if item.id == thing.collective), None)
    if wait.kind is WaitKind.COLLECTIVE and collective is not None:
        return f"waits in {collective_words(collective)}"
    words = _KIND_WORDS[wait.kind]
    if wait.kind is WaitKind.STOPPED and wait.holder is not None:
        return f"is stopped by its tracer, pid {wait.holder.pid}"
    if wait.kind in (WaitKind.POLL, WaitKind.SOCKET) and thing.name in _OUTSIDE:
        at = f" on {clean(thing.path)}" if thing.path and not thing.path.startswith(_SAYS_ITS_KIND) else ""
        return f"{_OUTSIDE[thing.name]}{at}"
    if wait.kind in (WaitKind.POLL, WaitKind.CONDITION) and thing.name and thing.name.startswith(_TASKS):
        alone = "," not in thing.name
        return f"waits for {clean(thing.name)}, which {'awaits itself' if alone else 'await each other'}"
    if wait.kind is WaitKind.POLL and not thing.path and not wait.holder:
        asked = thing.name is not None and thing.name.startswith(ANSWERS)
        return f"waits for {clean(thing.name)}" if asked and thing.name else "waits for events"
    if wait.kind is WaitKind.RENDEZVOUS:
        if thing.name == "connect":
            return f"waits for an answer of the store{f' at {clean(thing.path)}' if thing.path else ''}"
        within = f", in {clean(thing.name)}" if thing.name else ""
        return "waits for a key of the store" if thing.name == "store" else words + within
    if thing.name in (APPEARS, RESULTS):
        return f"waits for {thing.name}"
    holder = holder_words(wait, report, known=known)
    if wait.kind in (WaitKind.CONDITION, WaitKind.QUEUE) and thing.name in _NAMED:
        at = f" at {thing.address}" if thing.address and wait.kind is WaitKind.CONDITION else ""
        return f"{_NAMED[thing.name]}{at}"
    if wait.kind is WaitKind.CONDITION and thing.name == "Future":
        return f"waits for the result of a future{f' that {holder} works on' if holder else ''}"
    if holder and wait.kind in (WaitKind.JOIN, WaitKind.CHILD, WaitKind.GIL):
        return f"{_WITH_HOLDER[wait.kind]} {holder}"
    if wait.kind is WaitKind.TIMER and thing.remaining_s is not None:
        words += f" for another {age(thing.remaining_s)}"
    named = thing.path or thing.name
    if wait.kind is WaitKind.P2P:
        words = f"waits in {clean(named)}" if named else words
        return f"{words} with rank {thing.peer_rank}" if thing.peer_rank is not None else words
    if wait.kind is WaitKind.GPU:
        words = f"{words}, in {clean(named)}" if named else words
        return f"{words}; {_lacking(collective)}" if collective is not None and collective.missing else words
    if named and named.startswith(_SAYS_ITS_KIND) and wait.kind in (WaitKind.PIPE, WaitKind.SOCKET):
        words = f"{'writes into' if is_full(wait) else 'waits on'} {clean(named)}"
    elif wait.kind is WaitKind.FILE_LOCK and thing.name == "lease":
        words = (
            f"waits for a lease on {clean(thing.path)} to be given back"
            if thing.path
            else "waits for a lease"
        )
    elif wait.kind is WaitKind.QUEUE and thing.name == _SHARED_QUEUE:
        words = f"waits for a {_SHARED_QUEUE}{f', {clean(thing.path)}' if thing.path else ''}"
    elif named:
        words += f" {clean(named)}"
    elif thing.address and wait.kind is not WaitKind.GIL:
        words += f" at {thing.address}"
    if thing.fd is not None and wait.kind in (WaitKind.PIPE, WaitKind.SOCKET, WaitKind.IO):
        words += f" (fd {thing.fd})"
    if not holder:
        return words
    other_end = wait.kind in (WaitKind.PIPE, WaitKind.SOCKET, WaitKind.POLL) or bool(
        wait.kind is WaitKind.QUEUE and thing.path
    )
    also = "".join(f" ({line})" for line in wait.evidence if line.endswith(_OTHERS_HAVE_IT))
    return f"{words}, {'other end with' if other_end else 'held by'} {holder}{also}"


_SHARED_QUEUE = "queue in shared memory"


def is_full(wait: Wait) -> bool:
    """Whether a thread writes into a pipe or socket that takes no more."""
    ends = wait.kind in (WaitKind.PIPE, WaitKind.SOCKET)
    return ends and any(line.endswith(" is full") for line in wait.evidence)


def thread_label(report: Report, pid: int | None, tid: int | None, name: str) -> str:
    """The name of a thread, with its tid where another one of the process has the same."""
    process = next((item for item in report.processes if item.pid == pid), None)
    alike = [
        thread
        for thread in (process.threads if process is not None else ())
        if thread.service is None and (thread.name or thread.comm) == name
    ]
    return f"{clean(name)} ({tid})" if len(alike) > 1 and tid is not None else clean(name)


def holder_words(wait: Wait, report: Report, *, known: Collection[int] = ()) -> str:
    """Who is recorded as holding the object, or "" if nobody is."""
    holder = wait.holder
    if holder is None or wait.kind in (WaitKind.STOPPED, WaitKind.RUNNING, WaitKind.TIMER):
        return ""
    gone = "" if holder.alive else ", which is gone"
    process = next((item for item in report.processes if item.pid == holder.pid), None)
    if process is None:
        return f"pid {holder.pid}{gone}"
    if holder.pid == wait.pid and holder.tid is None and not holder.alive:
        return "a thread that does not exist in this process"
    if holder.pid == wait.pid and holder.tid is not None:
        thread = next((item for item in process.threads if item.tid == holder.tid), None)
        if thread is None:
            return f"thread {holder.tid}, which does not exist in this process"
        return f"thread {clean(thread.name or thread.comm)} ({holder.tid})"
    if process.rank is not None:
        return (
            f"rank {process.rank}{gone}"
            if holder.pid in known
            else f"rank {process.rank} (pid {holder.pid}){gone}"
        )
    return (f"pid {holder.pid}" if holder.pid in known else process_words(process)) + gone


def waker_words(note: WakerNote) -> str:
    """`Consumer (pid 70) was woken by Producer (72), 340 of 341 times`."""
    other = f"pid {note.waker_pid}, " if note.waker_pid not in (None, note.pid) else ""
    return (
        f"{note.thread} (pid {note.pid}) was woken by {note.waker} ({other}{note.waker_tid}), "
        f"{note.count} of {note.of} times"
    )
