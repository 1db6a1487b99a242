"""What goes from hand to hand in a program that works with several processes: orders, answers, pieces of work.

Who waits for an order is in no hurry, who waits for an answer is kept waiting by whoever is at it; and what was handed
on between two looks shows a program at work, however many of its threads nap when one looks.
"""

from __future__ import annotations

from pyhangtrace.analyze.blocked import Blocked, Standing
from pyhangtrace.analyze.calls import Meaning
from pyhangtrace.analyze.fates import Fate
from pyhangtrace.analyze.finding import Case
from pyhangtrace.analyze.progress import Progress
from pyhangtrace.analyze.scene import Key
from pyhangtrace.analyze.services import LAUNCHER, POOL_MANAGER
from pyhangtrace.model.kinds import Kind, WaitKind

# What wakes nobody by itself.
_SIGNALLED = frozenset({WaitKind.SEMAPHORE, WaitKind.CONDITION, WaitKind.QUEUE})
# Threads that serve, and that only a new piece of work wakes.
_FED = frozenset({"thread pool worker", "queue feeder"})

# Locks that go from hand to hand: to wait for one, twice, is no wait for work.
_HANDED_ON = frozenset({WaitKind.MUTEX, WaitKind.RWLOCK, WaitKind.PYTHON_LOCK, WaitKind.FILE_LOCK})


def awaiting_answers(case: Case) -> list[Key]:
    """Who has started workers and waits for what one of them, which works, is to put into a queue.

    Beside workers that wait for orders that is all there is to it: while nobody works it is no wait in vain.
    """
    return [
        key
        for key, wait in sorted(case.waits.items())
        if wait.service == LAUNCHER
        and _gets(wait)
        and wait.standing is Standing.FIRM
        and case.judged.fate(key) is Fate.BUSY
    ]


def awaits_orders(case: Case, key: Key) -> bool:
    """Reads what the program that started it has to say: that one is in no hurry to say it. Nor are its brothers, who
    were forked with the same queue, nor is who has it to read before its turn comes.
    """
    wait = case.waits[key]
    if case.scene.who.rank(key[0]) is not None or not wait.targets:
        return False
    if wait.kind is WaitKind.SEMAPHORE and wait.holder is not None:
        return _gets(wait) and wait.targets != (key,) and _reads_orders(case, wait.targets[0])
    return _reads_orders(case, key)


def _reads_orders(case: Case, key: Key) -> bool:
    wait = case.waits.get(key)
    if wait is None or wait.kind not in (WaitKind.PIPE, WaitKind.POLL):
        return False
    if wait.cause is not Kind.IPC_PEER_SILENT or not wait.targets:
        return False
    above = [pid for pid, _ in wait.targets if key[0] in case.scene.descendants(pid)]
    if not _gets(wait):
        return len(above) == len(wait.targets)
    brothers = {pid for each in above for pid in case.scene.descendants(each)}
    return bool(above) and all(pid in above or pid in brothers for pid, _ in wait.targets)


def _gets(wait: Blocked) -> bool:
    return wait.call is not None and wait.call.meaning is Meaning.SHARED_QUEUE_GET


def handed_on(case: Case) -> bool:
    """Whether somebody who waits for what another one has, or does for him, was given it between the looks, and waits
    for it again: a program at work, however short its steps are, while its threads nap in between. So is one that waits
    for pieces of work which somebody is at.
    """
    return any(
        case.scene.is_member(key[0])
        and (_was_given(case, wait) or _is_worked_for(case, wait) or _was_woken(wait))
        for key, wait in case.waits.items()
    )


def _was_given(case: Case, wait: Blocked) -> bool:
    if wait.progress is not Progress.MOVING or wait.standing is not Standing.FIRM:
        return False
    if wait.service is None and (
        wait.kind in _HANDED_ON or wait.cause in (Kind.IPC_PIPE_FULL, Kind.WORKER_STUCK)
    ):
        return True
    # Nothing but what another one of the job has sent ends a read without a timeout.
    reads = wait.kind in (WaitKind.PIPE, WaitKind.SOCKET) and wait.cause is Kind.IPC_PEER_SILENT
    told = reads and wait.service in (None, LAUNCHER, POOL_MANAGER) and not wait.ends_by_itself
    return told and bool(wait.targets) and all(case.scene.is_member(pid) for pid, _ in wait.targets)


def _was_woken(wait: Blocked) -> bool:
    """By a permit of a semaphore, a signal, or a piece of work, which record nobody: whoever gave it is at work, as is
    who took it and wants the next.
    """
    of_signals = wait.kind in _SIGNALLED and wait.progress is Progress.MOVING
    return of_signals and wait.service in (None, *_FED) and not wait.ends_by_itself


def _is_worked_for(case: Case, wait: Blocked) -> bool:
    asked = wait.service is None and _of_pool(wait) and wait.standing is Standing.FIRM
    return asked and case.judged.fate(wait.key) in (Fate.MOVING, Fate.SHORT, Fate.BUSY)


def _of_pool(wait: Blocked) -> bool:
    return wait.call is not None and wait.call.meaning is Meaning.POOL_RESULT


def gets_results(case: Case, key: Key) -> bool:
    """Waits for pieces of work of a pool of which some have come between the looks: of those who are at the others
    nobody is late.
    """
    return _of_pool(case.waits[key]) and any(
        wait.service == POOL_MANAGER
        and wait.kind is WaitKind.PIPE
        and wait.cause is Kind.IPC_PEER_SILENT
        and wait.progress is Progress.MOVING
        for other, wait in case.waits.items()
        if other[0] == key[0]
    )
