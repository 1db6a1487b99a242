"""What to do about a cycle, and about a wait that nobody is recorded to end: by the kinds of waits in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyhangtrace.analyze.blocked import GROUP_KINDS, Blocked
from pyhangtrace.analyze.calls import path_has
from pyhangtrace.analyze.finding import Case, Finding, threads_of_cycle
from pyhangtrace.analyze.retries import is_young, who_tries
from pyhangtrace.analyze.scene import Key
from pyhangtrace.analyze.words import bystander, ended_by, waiting, where, who
from pyhangtrace.model.kinds import Confidence, Kind, WaitKind

_FILES = frozenset({WaitKind.FILE_LOCK, WaitKind.LOCK_FILE})
_MEETINGS = GROUP_KINDS | {WaitKind.BARRIER}
_SIGNALS = frozenset({WaitKind.CONDITION, WaitKind.SEMAPHORE, WaitKind.QUEUE})
_SIGNALLED = "release the lock before waiting for what only a thread can give that needs the lock"
_TASKS = "let all tasks take the locks in the same order, and none await one that awaits it"
_IPC = frozenset({WaitKind.PIPE, WaitKind.SOCKET, WaitKind.POLL, WaitKind.QUEUE})

_LOCKS = _FILES | {
    WaitKind.MUTEX,
    WaitKind.RWLOCK,
    WaitKind.PYTHON_LOCK,
    WaitKind.SEMAPHORE,
    WaitKind.CONDITION,
    WaitKind.IMPORT_LOCK,
    WaitKind.GIL,
}

_DEBUGGERS = ("pdb.py", "bdb.py", "ipdb/__main__.py", "IPython/core/debugger.py", "debugpy/", "pydevd.py")


def for_cycle(case: Case, finding: Finding) -> list[str]:
    """How the program has to change so that this cycle cannot close."""
    members = threads_of_cycle(case, finding.cycle)
    kinds = {case.waits[key].kind for key in members if key in case.waits}
    if not kinds or finding.cause is Kind.IPC_PIPE_FULL:
        return []
    if kinds == {WaitKind.P2P}:
        return [_messages(case, finding.cycle)]
    if kinds <= _MEETINGS:
        return []
    if _among_tasks(case, finding):
        return [_TASKS, _cancel_one(finding)]
    alone = len(members) == 1
    if kinds & _SIGNALS and len({key[0] for key in finding.cycle}) == 1 and not alone:
        return [_SIGNALLED, _end_one(case, finding)]
    return [_for_kinds(kinds, alone=alone), _end_one(case, finding)]


def _for_kinds(kinds: set[WaitKind], *, alone: bool) -> str:
    if WaitKind.IMPORT_LOCK in kinds:
        return "import both modules before the first thread starts, or remove the circular import"
    if WaitKind.GIL in kinds:
        return "release the GIL (Py_BEGIN_ALLOW_THREADS, gil_scoped_release) before taking the other lock"
    if WaitKind.JOIN in kinds:
        return "join no thread while holding what it needs to end, and never from the thread itself"
    if kinds & _FILES and kinds & _MEETINGS:
        return "release the file lock before meeting the other ranks: one of them waits for it"
    if kinds & _MEETINGS and not kinds & _LOCKS:
        return "let one of them do its part first: each waits for what the other does later"
    if kinds & _MEETINGS:
        return "release the lock before meeting the others: one of them waits for it"
    if kinds <= _IPC:
        return "let one side write before it reads: each waits for the other one to begin"
    if not kinds & _LOCKS and kinds & (_IPC | {WaitKind.CHILD}):
        return "let one of them do its part first: each waits for what the other does later"
    if alone:
        return "the thread holds the lock that it waits for: use a recursive lock, or release it before"
    if kinds & _IPC or WaitKind.CHILD in kinds:
        return "release the lock before waiting for the other process, which needs it"
    return "take the locks in the same order everywhere"


def _end_one(case: Case, finding: Finding) -> str:
    trying = who_tries(case, finding.cycle)
    if is_young(case, finding.cycle):
        told = "; ".join(f"{who(case, key)}{where(case, key)}" for key in trying[:4])
        return f"see for how long it is tried again: it ends only if one of these stops trying: {told}"
    pids = sorted({key[0] for key in finding.cycle})
    nap = next((nap for key in finding.cycle if (nap := bystander(case, key))), None)
    unless = ", unless one stops trying" if trying else ""
    doubt = next((case.waits[key].doubt for key in finding.cycle if case.waits[key].doubt), None)
    if nap is not None:
        how = f" ({doubt})" if doubt is not None else ""
        unless = f", unless {who(case, nap)}, which {waiting(case, nap)}, lets one go on then{how}"
    elif doubt is not None:
        unless = f", unless {doubt}"
    return f"it does not recover by itself{unless}: end {' or '.join(f'pid {pid}' for pid in pids[:4])}"


def _among_tasks(case: Case, finding: Finding) -> bool:
    """Tasks of one event loop that wait for each other."""
    return any(
        wait.kind is WaitKind.POLL and wait.cause is Kind.LOCK_CYCLE
        for key in finding.cycle
        if (wait := case.waits.get(key)) is not None
    )


def _cancel_one(finding: Finding) -> str:
    pids = " or ".join(f"pid {pid}" for pid in sorted({key[0] for key in finding.cycle})[:4])
    if finding.confidence is Confidence.POSSIBLE:
        return f"none of them goes on unless one is cancelled, which a timer of the loop in {pids} may do"
    return f"none of them goes on unless one is cancelled: if nothing does that, end {pids}"


def _messages(case: Case, keys: Sequence[Key]) -> str:
    told = [f"{who(case, key)} {waiting(case, key)}{where(case, key)}" for key in keys]
    receives = all((case.waits[key].object.name or "").endswith("recv") for key in keys)
    sends = [key for key in keys if (case.waits[key].object.name or "").endswith("send")]
    if len(told) == 2 and len(sends) == 1:
        return f"{'; '.join(told)}: one sends what the other one does not expect, by tag, group or type"
    missing = "one of them has to send first" if receives else "one of them has to take the other part first"
    return f"{'; '.join(told[:4])}: {missing}"


def for_message(case: Case, key: Key) -> str:
    """The call that is missing on the other side of a send or a receive."""
    wait = case.waits[key]
    own = case.scene.who.rank(key[0])
    peer = wait.object.peer_rank
    receives = (wait.object.name or "").endswith("recv")
    call = "send" if receives else "recv"
    other = f"rank {peer}" if peer is not None else "its peer"
    mine = f"rank {own}" if own is not None else f"pid {key[0]}"
    return f"find the {call} of {other} that belongs to the call of {mine}{where(case, key)}: it is never reached"


def for_end(case: Case, key: Key) -> str | None:
    """What has to happen at the end of a chain that leads to nobody; None where no thread was seen."""
    wait = case.waits.get(key)
    if wait is None:
        return None
    if wait.kind is WaitKind.P2P:
        return for_message(case, key)
    if wait.kind is WaitKind.COLLECTIVE and _all_in(case, wait):
        return (
            f"compare what each rank passes to {wait.object.name or 'the operation'}{where(case, key)}: root, sizes"
            " and types; and see that the ranks reach each other over the network"
        )
    if wait.cause is Kind.LOCK_OWNER_GONE:
        owner = wait.holder.tid or wait.holder.pid if wait.holder is not None else None
        name = f" ({owner})" if owner else ""
        return (
            f"find why the owner of the lock{name} ended without unlocking it, and end pid {key[0]}:"
            " nobody else can unlock it"
        )
    does = ended_by(wait)
    if does is None:
        return None
    return f"find who should {does} that {who(case, key)} waits for{where(case, key)}"


def _all_in(case: Case, wait: Blocked) -> bool:
    told = next((each for each in case.matched.collectives if each.id == wait.object.collective), None)
    return told is not None and bool(told.expected) and set(told.expected) <= set(told.entered)


def debugged(case: Case, keys: Iterable[Key]) -> str | None:
    """Somebody on the way stands in a debugger."""
    for key in keys:
        sample = case.scene.thread(key)
        if sample is not None and any(
            path_has(frame.file, debugger) for frame in sample.frames for debugger in _DEBUGGERS
        ):
            return f"{who(case, key)} is in a debugger: continue it there, or end pid {key[0]}"
    return None
