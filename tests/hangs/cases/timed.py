"""Waits that end by the clock: taken up again they are as hung as others, and a nap is no hang."""

from __future__ import annotations

from dataclasses import replace

from tests.hangs.cases.locks import case, cycle
from tests.hangs.facts import Case, Facts, Program, Waits, healthy, hung, may_withhold

PYTHON = "{python}"
LOCK, ANY = Waits.LOCK, Waits.ANY
# What may be said of one that lets go, or works, in between.
NOT_HUNG = ("running", "idle", "slow", "busy", "unknown")
PAIR = {"debit": LOCK, "credit": LOCK}
# On a crowded machine one of them may be met on the CPU all the time.
WELL_PAIR = healthy(*NOT_HUNG, may_name=tuple(PAIR))


def waits(what: str, members: dict[str, Waits], facts: Facts, summary: str, *, slow: bool = False) -> Case:
    argv = (PYTHON, "{programs}/timed_waits.py", what, "{scratch}")
    kind = f"{'well-' if 'hung' not in facts.state else ''}timed-{what}"
    return case(kind, summary, argv, members, facts, slow=slow)


def locks(kind: str, how: str, facts: Facts, summary: str, *, slow: bool = False) -> Case:
    name = f"{'well-' if 'hung' not in facts.state else ''}timed-{kind}-{how}"
    return case(name, summary, ("{programs}/timed_locks.c", kind, how), PAIR, facts, slow=slow)


def withheld(*parties: str) -> Facts:
    """Nothing records who should end such a wait."""
    return may_withhold(
        ("lock.cycle", "lock.held", None), ("lock.cycle", "lock.held", "unknown", None), may_name=parties
    )


def late(cause: str, *, symptoms: tuple[str | None, ...]) -> Facts:
    return Facts(
        state=frozenset({"slow"}),
        symptom=frozenset(symptoms),
        cause=frozenset({cause}),
        culprit=("sleeper",),
    )


_POLLS = {"parent": Waits.POLL, "child": Waits.POLL}
_LOOKS = {"main": LOCK, "worker": LOCK}
_WORKS = {"main": ANY, "worker": ANY}
_ASK = {"debit": ANY, "credit": ANY}
_NAP = {"main": ANY, "sleeper": Waits.SLEEP}

CASES = (
    locks(
        "mutex",
        "keep",
        cycle(("debit", "credit")),
        "two threads of a C program, each keeps a mutex and asks for the other one's again and again",
    ),
    locks("mutex", "give-up", WELL_PAIR, "the same, but each gives up its own before it tries again"),
    locks(
        "rwlock",
        "keep",
        cycle(("debit", "credit")),
        "the same with read-write locks that are kept",
        slow=True,
    ),
    locks("rwlock", "give-up", WELL_PAIR, "and with such that are given up", slow=True),
    replace(
        locks(
            "mutex",
            "ask",
            withheld("debit", "credit"),
            "two threads of a C program, each keeps a mutex and asks for the other one's between naps",
        ),
        programs=(Program(argv=("{programs}/timed_locks.c", "mutex", "ask"), members=_ASK),),
    ),
    replace(
        locks("mutex", "ask-give-up", WELL_PAIR, "the same, but each gives up its own for its nap"),
        programs=(Program(argv=("{programs}/timed_locks.c", "mutex", "ask-give-up"), members=_ASK),),
    ),
    waits(
        "keep",
        PAIR,
        cycle(("debit", "credit")),
        "two Python threads, each keeps an RLock; one asks for the other one's again and again",
    ),
    waits("give-up", PAIR, healthy(*NOT_HUNG), "both try, and each gives up its own before it tries again"),
    waits(
        "join",
        _LOOKS,
        cycle(("main", "worker")),
        "a thread looks now and then whether another one has ended, which wants its lock",
    ),
    waits("join-works", _WORKS, healthy(*NOT_HUNG), "the same with one that is at work"),
    *(
        each
        for what, thing in (("event", "an event"), ("items", "a queue"), ("condition", "a condition"))
        for each in (
            waits(
                what,
                _LOOKS,
                # Which one it is that could is a rule about frames, and needs to be seen at rest.
                replace(withheld("main", "worker"), cycle=True),
                f"a thread looks now and then for {thing} that comes from one which wants its lock",
                slow=what != "event",
            ),
            waits(
                f"{what}-works", _WORKS, healthy(*NOT_HUNG), "the same with one that is at work", slow=True
            ),
        )
    ),
    case(
        "signal-needs-lock",
        "a thread waits for an event that only one could set, which wants its lock",
        (PYTHON, "{programs}/timed_waits.py", "signal"),
        _LOOKS,
        cycle(("main", "worker")),
    ),
    case(
        "trylock-naps",
        "a thread naps until a lock is free, whose holder wants its own lock",
        (PYTHON, "{programs}/timed_waits.py", "trylock"),
        {"main": ANY, "worker": LOCK},
        withheld("main", "worker"),
    ),
    waits(
        "retry",
        PAIR,
        healthy(*NOT_HUNG),
        "one keeps a lock while it tries so many times for another one's, and lets go then",
    ),
    waits(
        "ask",
        {"debit": ANY, "credit": ANY},
        replace(withheld("debit", "credit"), cycle=True),
        "two Python threads, each keeps a lock, and asks for the other one's between naps",
    ),
    waits(
        "ask-give-up",
        {"debit": ANY, "credit": ANY},
        healthy(*NOT_HUNG),
        "the same, but each gives up its own before it naps",
    ),
    waits(
        "ask-join",
        {"main": ANY, "worker": LOCK},
        replace(withheld("main", "worker"), cycle=True),
        "a thread asks between naps whether another one has ended, which wants its lock",
    ),
    waits("ask-join-works", _WORKS, healthy(*NOT_HUNG), "the same with one that is at work"),
    waits(
        "tasks",
        {"main": ANY},
        withheld("main"),
        "two tasks, each keeps a lock and tries for the other one's again and again",
    ),
    waits(
        "tasks-give-up", {"main": ANY}, healthy(*NOT_HUNG), "the same, but each gives up its own in between"
    ),
    waits(
        "own-loop",
        {"main": ANY},
        withheld("main"),
        "a coroutine asks between naps whether a task of its own event loop is done",
    ),
    waits(
        "ask-child",
        {"main": ANY, "child": ANY},
        may_withhold(
            ("lock.cycle", "child.stuck", "file_lock.held", None),
            ("lock.cycle", "file_lock.held", "child.stuck", "unknown", None),
            may_name=("main", "child"),
        ),
        "a program asks between naps whether its child has ended, which asks in vain for a file that it has locked",
    ),
    waits(
        "child",
        {"main": ANY, "child": Waits.FILE_LOCK},
        hung(
            ("lock.cycle", "child.stuck", "file_lock.held", None),
            ("lock.cycle", "file_lock.held", "child.stuck"),
            parties=("main", "child"),
            cycle=True,
        ),
        "a program looks now and then whether its child has ended, which wants a file that it has locked",
        slow=True,
    ),
    waits(
        "poll",
        _POLLS,
        may_withhold(
            ("ipc.cycle", "ipc.peer_silent", None),
            ("ipc.cycle", "unknown", None),
            may_name=("parent", "child"),
        ),
        "two processes, each polls for what the other one is to send",
        slow=True,
    ),
    waits(
        "poll-beats", _POLLS, healthy(*NOT_HUNG), "the same, but each sends something now and then", slow=True
    ),
    waits("nap-join", _NAP, late("timer", symptoms=("timer", "lock.held")), "a thread that sleeps is joined"),
    replace(
        waits(
            "nap-child",
            _NAP,
            late("timer", symptoms=("timer", "child.stuck")),
            "a child that sleeps is waited for",
        ),
        attach=("main",),  # the one that sleeps is a job of its own
    ),
    waits(
        "nap-pool",
        _NAP,
        late("worker.stuck", symptoms=("worker.stuck",)),
        "a piece of work of a process pool sleeps",
        slow=True,
    ),
    waits("nap-gil", _NAP, late("lock.gil", symptoms=("lock.gil",)), "an extension sleeps and keeps the GIL"),
    Case(
        kind="well-timed-nap-beside",
        summary="a worker without work and a timer, while commands come from standard input",
        programs=(
            Program(
                argv=(PYTHON, "{programs}/timed_waits.py", "nap-beside"),
                members={"main": Waits.READ},
                stdin_open=True,
            ),
        ),
        attach=("main",),
        facts=healthy("idle"),
    ),
)
