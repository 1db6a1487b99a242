"""The verdict in half a line, and what its cause means where the waits alone do not say it."""

from __future__ import annotations

from pyhangtrace.model.kinds import Confidence, Kind, Part, State, WaitKind
from pyhangtrace.model.report import Culprit, Report, Wait
from pyhangtrace.render.text.words import is_full, numbers, plural, plural_verb, thread_label

_MOST_NAMED = 4

# Of several parties nobody is singled out: what they are in together.
_TOGETHER: dict[Kind, str] = {
    Kind.LOCK_CYCLE: "deadlock",
    Kind.IPC_CYCLE: "each waits for the other one",
    Kind.P2P_CYCLE: "each waits for a message of the other one",
    Kind.RENDEZVOUS_UNREACHABLE: "the store of the job does not answer",
    Kind.P2P_UNMATCHED: "a message and a call that do not meet",
    Kind.COLLECTIVE_OP_MISMATCH: "different collectives at the same time",
    Kind.COLLECTIVE_SIZE_MISMATCH: "one collective with different sizes",
    Kind.COLLECTIVE_ROOT_MISMATCH: "one collective with different roots",
    Kind.COLLECTIVE_GROUP_CYCLE: "collectives of several groups in different order",
    Kind.COLLECTIVE_NONE_COMPLETES: "a collective that everybody entered and none completes",
    Kind.FILE_LOCK_STALE: "a lock file that nobody alive holds",
    Kind.LOCK_HANDOFF_LOST: "a wait that nobody is left to end",
    Kind.LOCK_OWNER_GONE: "a lock whose owner is gone",
    Kind.LOCK_AFTER_FORK: "a lock that was held during fork",
}

# Of one process for which nobody else waits.
_ALONE: dict[Kind, str] = {
    Kind.PEER_EXITED: "waits for a process that has ended",
    Kind.PEER_STOPPED: "is stopped",
    Kind.LOCK_HELD: "waits for a lock",
    Kind.LOCK_GIL: "waits for the GIL",
    Kind.LOCK_IMPORT: "waits for an import",
    Kind.LOCK_TEARDOWN: "does not come to its end",
    Kind.FILE_LOCK_HELD: "waits for a file lock",
    Kind.COMPILE_RUNNING: "waits for a compiler",
    Kind.IPC_NO_EOF: "reads from a pipe that only it could write to",
    Kind.IPC_PIPE_FULL: "writes to a full pipe",
    Kind.IPC_PEER_SILENT: "waits for the other end of a connection",
    Kind.WORKER_STUCK: "waits for a worker",
    Kind.WORKER_DEAD: "waits for a worker that has ended",
    Kind.CHILD_STUCK: "waits for a child process",
    Kind.TIMER: "sleeps",
    Kind.CPU_SPIN: "spins",
    Kind.CPU_BUSY: "computes",
    Kind.CPU_THROTTLED: "has used up its CPU quota",
    Kind.IO_STALLED: "waits for storage",
    Kind.GPU_FAULT: "waits for a GPU that has failed",
}

_CAUSES: dict[Kind, str] = {
    Kind.LOCK_AFTER_FORK: "another thread of the parent held it during fork; that thread does not exist here",
    Kind.LOCK_OWNER_GONE: "the thread that locked it has ended without unlocking it",
    Kind.FILE_LOCK_STALE: "nobody alive holds it: who made it has ended without removing it",
    Kind.IPC_NO_EOF: "it holds the only write end itself: the end of the pipe never comes",
    Kind.IPC_PIPE_FULL: "it is full, and nobody reads from it",
    Kind.LOCK_HANDOFF_LOST: "nobody is left who could end this wait",
    Kind.PEER_OOM_KILLED: "killed for want of memory",
    Kind.GPU_FAULT: "its GPU has failed",
}


def headline_title(report: Report) -> str:
    """The verdict in half a line: `rank 3 keeps 7 ranks waiting`."""
    verdict = report.verdict
    absent = [item.rank for item in verdict.culprits if item.part is Part.ABSENT and item.rank is not None]
    parties = [item for item in verdict.culprits if item.part is Part.PARTY]
    named = [item for item in verdict.culprits if item.part is Part.CULPRIT]
    what = verdict.cause or verdict.symptom
    kind = what.value if what else ""
    waiting = len({victim.pid for victim in verdict.victims})
    ranked = all(victim.rank is not None for victim in verdict.victims)
    who = plural(waiting, "rank" if ranked else "process")
    if absent and verdict.culprits[0].part is Part.ABSENT:
        came = what is not Kind.RENDEZVOUS_MISSING_RANK
        verb = ("is gone" if len(absent) == 1 else "are gone") if came else "never came"
        return f"{numbers(absent, 'rank')} {verb}" + (f", {who} waiting" if waiting else "")
    late = sorted({item.rank for item in (*named, *parties) if item.rank is not None})
    if named and waiting and len(late) > 1:
        return f"{numbers(late, 'rank')} keep {who} waiting"
    if named and verdict.state is State.ENDED:
        return f"{_name(report, named[0])} has ended, a part of the server"
    if named:
        first = _name(report, named[0])
        others = {victim.pid for victim in verdict.victims} - {named[0].pid}
        if not others and waiting:
            return f"{first} keeps the other threads of its process waiting"
        who = plural(len(others), "rank" if ranked else "process")
        return f"{first} keeps {who} waiting" if waiting else _alone(first, what)
    if parties and waiting and what is Kind.UNKNOWN:
        # It has not come, and nothing records who owes it what it waits for.
        return f"{_names(report, parties)} {'has' if len(parties) == 1 else 'have'} not come, {who} waiting"
    if parties:
        names = _names(report, parties)
        if what is Kind.IPC_PIPE_FULL:
            return _into_full_pipes(report, parties)
        if what is Kind.LOCK_CYCLE and verdict.confidence is Confidence.POSSIBLE:
            return f"{names} {'wait' if len(parties) > 1 else 'waits'} in a circle that one may yet leave"
        return _together(names, what, several=len(parties) > 1)
    if what is Kind.IO_STALLED and waiting:
        return f"{who} waiting for the disk"
    words = {
        State.RUNNING: "everything moves",
        State.IDLE: "everybody waits for work from outside",
        State.ENDED: "the job or a part of it has ended",
        State.UNKNOWN: "the evidence does not decide",
    }
    return words.get(verdict.state, kind or verdict.state.value)


def _into_full_pipes(report: Report, parties: list[Culprit]) -> str:
    """Who of a circle writes, and who waits for what he is to do meanwhile."""
    full = {wait.id for wait in report.waits if is_full(wait)}
    writers = [item for item in parties if item.wait in full]
    others = [item for item in parties if item not in writers]
    if not writers or not others:
        return _together(_names(report, parties), Kind.IPC_PIPE_FULL, several=len(parties) > 1)
    words = _together(_names(report, writers), Kind.IPC_PIPE_FULL, several=len(writers) > 1)
    behind = [item for item in others if item.pid not in {writer.pid for writer in writers}]
    if not behind:
        return words
    return f"{words}, {_names(report, behind)} {'wait' if len(behind) > 1 else 'waits'} for that"


def cause_words(report: Report) -> str:
    """One clause about the cause, or "" where the wait itself says it."""
    cause = report.verdict.cause
    if cause is Kind.IPC_NO_EOF and _kept_open_elsewhere(report):
        return (
            "it inherited the write end from a child that has exited: until it closes it, the end never comes"
        )
    return _CAUSES.get(cause, "") if cause is not None else ""


def is_told_of(report: Report, wait: Wait) -> bool:
    """Whether the clause about the cause is about this wait: that a pipe is full is said of who writes."""
    return report.verdict.cause is not Kind.IPC_PIPE_FULL or is_full(wait)


def _kept_open_elsewhere(report: Report) -> bool:
    """Whether somebody else has the write end of what a thread on the chain reads."""
    readers = (WaitKind.PIPE, WaitKind.SOCKET, WaitKind.POLL)
    return any(
        wait.id in report.verdict.chain
        and wait.kind in readers
        and any(one.pid != wait.pid for one in (wait.holder, *wait.candidates) if one is not None)
        for wait in report.waits
    )


def _alone(name: str, kind: Kind | None) -> str:
    """`pid 7 waits for a lock`."""
    if kind is None:
        return f"{name} waits without end"
    does = _ALONE.get(kind)
    return f"{name} {does}" if does else f"{name}: {_TOGETHER.get(kind) or _plain(kind)}"


def _together(names: str, kind: Kind | None, *, several: bool) -> str:
    """`deadlock: ranks 0-1`, `threads a, b of pid 7 wait for a lock`."""
    if kind is None or kind not in _ALONE:
        return f"{_TOGETHER.get(kind) or _plain(kind) if kind else 'stuck together'}: {names}"
    return f"{names} {plural_verb(_ALONE[kind]) if several else _ALONE[kind]}"


def _plain(kind: Kind) -> str:
    return kind.value.replace(".", " ").replace("_", " ")


def _names(report: Report, parties: list[Culprit]) -> str:
    ranks = [item.rank for item in parties if item.rank is not None]
    if len(ranks) == len(parties):
        return numbers(ranks, "rank")
    pids = {item.pid for item in parties}
    threads = [thread_label(report, item.pid, item.tid, item.thread) for item in parties if item.thread]
    if len(pids) == 1 and len(threads) == len(parties) > 1:
        more = ", …" if len(threads) > _MOST_NAMED else ""
        return f"threads {', '.join(threads[:_MOST_NAMED])}{more} of pid {parties[0].pid}"
    names = list(dict.fromkeys(_name(report, item) for item in parties))
    return ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")


def _name(report: Report, culprit: Culprit) -> str:
    if culprit.rank is not None:
        return f"rank {culprit.rank}"
    if culprit.thread and culprit.tid is not None and culprit.tid != culprit.pid:
        thread = thread_label(report, culprit.pid, culprit.tid, culprit.thread)
        return f"thread {thread} of pid {culprit.pid}"
    return f"pid {culprit.pid}"
