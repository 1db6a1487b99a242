"""Locks inside a process, and those that a fork copies."""

from __future__ import annotations

from tests.hangs.facts import Case, Facts, Program, Waits, hung, may_withhold

PYTHON = "{python}"
LOCK = Waits.LOCK


def case(
    kind: str,
    summary: str,
    argv: tuple[str, ...],
    members: dict[str, Waits],
    facts: Facts,
    *,
    slow: bool = False,
) -> Case:
    """One process and perhaps a child of it; any thread's process may be attached to."""
    program = Program(argv=argv, members=members)
    return Case(
        kind=kind, summary=summary, programs=(program,), attach=tuple(members), facts=facts, slow=slow
    )


def threads(what: str) -> tuple[str, ...]:
    return (PYTHON, "{programs}/thread_locks.py", what)


def cycle(members: tuple[str, ...]) -> Facts:
    return hung(("lock.cycle", "lock.held", None), "lock.cycle", parties=members, cycle=True)


CASES = (
    case(
        "mutex-cycle",
        "two threads of a C program, each holds a mutex that the other one wants",
        ("{programs}/mutex_cycle.c", "2"),
        {"thread0": LOCK, "thread1": LOCK},
        cycle(("thread0", "thread1")),
    ),
    case(
        "mutex-cycle-4",
        "the same with four",
        ("{programs}/mutex_cycle.c", "4"),
        {f"thread{number}": LOCK for number in range(4)},
        cycle(tuple(f"thread{number}" for number in range(4))),
        slow=True,
    ),
    case(
        "mutex-cycle-python",
        "two Python threads in C code, each holds a mutex that the other one wants",
        threads("mutex-cycle"),
        {"debit": LOCK, "credit": LOCK},
        cycle(("debit", "credit")),
    ),
    case(
        "rlock-cycle",
        "two Python threads, each holds an RLock that the other one wants",
        threads("rlock-cycle"),
        {"debit": LOCK, "credit": LOCK},
        cycle(("debit", "credit")),
    ),
    case(
        "lock-cycle",
        "the same with plain locks, which do not record their owner",
        threads("lock-cycle"),
        {"debit": LOCK, "credit": LOCK},
        may_withhold(
            ("lock.cycle", "lock.held", None),
            ("lock.cycle", "lock.held", "unknown", None),
            may_name=("debit", "credit"),
        ),
        slow=True,
    ),
    case(
        "gil-mutex",
        "one thread holds a mutex and wants the GIL, the other one the GIL and wants the mutex",
        threads("gil-mutex"),
        {"callback": LOCK, "flush": LOCK},
        hung(
            ("lock.cycle", "lock.gil", "lock.held", None),
            ("lock.cycle", "lock.gil"),
            parties=("callback", "flush"),
            cycle=True,
        ),
    ),
    case(
        "gil-sleep",
        "an extension sleeps for an hour and keeps the GIL",
        threads("gil-sleep"),
        {"server": LOCK, "extension": Waits.SLEEP},
        hung(
            ("lock.gil", None),
            ("lock.gil", "timer"),
            culprit=("extension",),
            holder="extension",
        ),
    ),
    case(
        "mutex-held",
        "a thread holds a mutex and reads from a pipe that nobody writes to",
        ("{programs}/mutex_held.c", "reads"),
        {"main": LOCK, "holder": Waits.READ},
        hung(
            ("lock.held", None),
            ("lock.held", "ipc.no_eof", "ipc.peer_silent"),
            culprit=("holder", "main"),
            holder="holder",
        ),
    ),
    case(
        "mutex-owner-gone",
        "the thread that locked a mutex has ended",
        ("{programs}/mutex_held.c", "exits"),
        {"main": LOCK},
        hung(("lock.owner_gone", None), "lock.owner_gone", may_name=("main",)),
    ),
    case(
        "mutex-fork",
        "a mutex was held by another thread when the process forked",
        ("{programs}/mutex_fork.c",),
        {"child": LOCK, "parent": Waits.CHILD},
        hung(
            ("lock.after_fork", "child.stuck", None),
            "lock.after_fork",
            culprit=("child",),
        ),
    ),
    case(
        "lock-fork",
        "the same with a Python lock",
        (PYTHON, "{programs}/fork_lock.py"),
        {"child": LOCK, "parent": Waits.CHILD},
        hung(
            ("lock.after_fork", "child.stuck", None),
            "lock.after_fork",
            culprit=("child",),
        ),
    ),
)
