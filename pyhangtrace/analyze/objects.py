"""Kernel objects in words: what a descriptor is, how it stands, and who else has it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from pyhangtrace.analyze import holders
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import FdKind, Kind
from pyhangtrace.model.open_files import FdFacts, SocketFacts
from pyhangtrace.model.report import WaitObject

# Said of whatever the kernel keeps no owner for; candidates are known by role only.
NO_OWNER = "no owner recorded"

_MOST_MEMBERS = 8

_ENDED_BY_WRITERS = frozenset(FdKind) - {FdKind.PIDFD, FdKind.EVENTFD, FdKind.MQUEUE}


def number(facts: FdFacts, name: str) -> int | None:
    """A number that the kernel shows of the object."""
    return dict(facts.info).get(name) if facts.info else None


def timer_left_s(facts: FdFacts) -> float | None:
    """Seconds until a timerfd fires, None if it is not set."""
    left = number(facts, "it_value_ns")
    return round(left / 1e9, 3) if left else None


def signals(facts: FdFacts) -> tuple[int, ...]:
    """Numbers of the signals that a signalfd takes."""
    mask = number(facts, "sigmask") or 0
    return tuple(bit + 1 for bit in range(64) if mask >> bit & 1)


def watched_process(facts: FdFacts) -> int | None:
    """The process of a pidfd; None if it has been reaped, or cannot be seen from here."""
    pid = number(facts, "Pid")
    return pid if pid is not None and pid > 0 else None


def thing(facts: FdFacts | None, fd: int | None) -> WaitObject:
    """What identifies it in the report."""
    if facts is None:
        return WaitObject(fd=fd)
    listening = facts.socket is not None and facts.socket.state == "LISTEN"
    return WaitObject(
        name=name(facts),
        fd=fd,
        inode=facts.inode,
        # Where it listens says more than its inode, which stands beside it.
        path=facts.socket.local or facts.target if listening and facts.socket else facts.target,
    )


def name(facts: FdFacts) -> str | None:
    """A name where the path is none."""
    about = facts.socket
    if about is not None:
        if about.state == "LISTEN":
            return "connection"
        is_inet = about.family.startswith(("tcp", "udp"))
        return (about.remote or None) if is_inet else None
    if facts.kind is FdKind.SIGNALFD:
        return f"signals {', '.join(map(str, signals(facts)))}"
    if facts.kind is FdKind.MQUEUE:
        return "message queue"
    if facts.target.startswith("anon_inode:") and facts.kind is not FdKind.EPOLL:
        return str(facts.kind.value)
    return None


def is_fifo(facts: FdFacts) -> bool:
    """A pipe that was opened by a name in the file system, so that others may have come by that, too."""
    return facts.kind is FdKind.PIPE and not facts.target.startswith("pipe:[")


def has_name(facts: FdFacts) -> bool:
    """A FIFO that whoever knows its name may still open."""
    return is_fifo(facts) and not facts.target.endswith(" (deleted)")


def cause_of_nobody(scene: Scene, pid: int) -> Kind:
    """What to call it that nobody comes to the other end of a FIFO: as things should be, but for a rank."""
    return Kind.IDLE if scene.who.rank(pid) is None else Kind.IPC_PEER_SILENT


def others(facts: FdFacts) -> tuple[int, ...]:
    """Other processes that have it open."""
    return tuple(sorted({holder.pid for holder in facts.others if holder.pid != facts.pid}))


def condition(facts: FdFacts) -> str | None:
    """How the object stands, in a few words; None if the kernel does not tell."""
    if facts.socket is not None:
        return socket_words(facts.socket)
    if facts.kind is FdKind.EVENTFD:
        count = number(facts, "eventfd-count")
        return f"counter {count}" if count is not None else None
    if facts.kind is FdKind.TIMERFD:
        left = timer_left_s(facts)
        return f"fires in {left:g} s" if left is not None else "not set"
    if facts.kind is FdKind.IO_URING:
        return _ring(facts)
    if facts.kind is FdKind.MQUEUE and facts.queued is not None:
        return f"{facts.queued} bytes in it"
    if facts.kind is FdKind.PIPE and facts.queued is not None and facts.capacity is not None:
        return f"{facts.queued} of {facts.capacity} bytes in it"
    if facts.kind is FdKind.USERFAULTFD:
        return "a fault waits in it"
    return None


def _ring(facts: FdFacts) -> str | None:
    taken, done = number(facts, "CachedSqHead"), number(facts, "CachedCqTail")
    if taken is None or done is None:
        return None
    unseen = (number(facts, "CqTail") or 0) - (number(facts, "CqHead") or 0)
    thread = number(facts, "SqThread")
    polled = f", polled by thread {thread}" if thread is not None and thread > 0 else ""
    return f"{max(0, taken - done)} requests pending, {max(0, unseen)} completions not taken{polled}"


def socket_words(about: SocketFacts) -> str | None:
    """State and queues of a socket."""
    words = [] if about.state in ("", "ESTABLISHED") else [about.state]
    if about.state != "LISTEN":
        if about.rx_queue is not None:
            words.append(f"{about.rx_queue} bytes unread here")
        if about.tx_queue is not None:
            words.append(f"{about.tx_queue} bytes sent and not taken")
        if about.peer_rx_queue is not None:
            words.append(f"{about.peer_rx_queue} bytes unread at the other end")
    return ", ".join(words) or None


def members(watched: Sequence[FdFacts], room: Collection[int] = ()) -> tuple[str, ...]:
    """A line for each of the first few members of a set of descriptors: what it is, and who could make it ready.

    `room`: those that are watched for room to write.
    """
    lines = [_member(facts, room=facts.fd in room) for facts in watched[:_MOST_MEMBERS]]
    if len(watched) > 1:
        lines.insert(0, f"any of {len(watched)} descriptors ends it")
    if len(watched) > _MOST_MEMBERS:
        lines.append(f"and {len(watched) - _MOST_MEMBERS} more")
    return tuple(lines)


def _member(facts: FdFacts, *, room: bool) -> str:
    words = [f"fd {facts.fd}: {facts.target}"]
    if room:
        words.append("watched for room to write")
    state = condition(facts)
    if state is not None:
        words.append(state)
    who = [pid for pid in ends(facts) if pid != facts.pid]
    if who:
        words.append(f"could be made ready by pid {_pids(who)}")
    elif facts.socket is not None and facts.socket.state != "LISTEN" and facts.socket.remote:
        words.append(f"other end {facts.socket.remote}")
    return ", ".join(words)


def is_write_end(facts: FdFacts) -> bool:
    """A pipe's end for writing: only who reads, or closes the other end, makes it ready for anything."""
    return facts.kind is FdKind.PIPE and facts.mode == "w"


def ends(facts: FdFacts) -> tuple[int, ...]:
    """Processes that could make a descriptor ready."""
    if is_write_end(facts):
        return holders.readers(facts)
    if facts.kind in _ENDED_BY_WRITERS:
        return holders.writers(facts)
    if facts.kind is FdKind.PIDFD:
        pid = watched_process(facts)
        return (pid,) if pid is not None else ()
    return others(facts)


def seen(scene: Scene, pids: Iterable[int], *, besides: int) -> tuple[Key, ...]:
    """As candidates: those that were looked at. Nobody is looked for only because he might have a hand in it."""
    return tuple((pid, 0) for pid in sorted(set(pids)) if pid != besides and pid in scene.processes)


def _pids(pids: Iterable[int]) -> str:
    return ", ".join(map(str, pids))
