"""Two that wait for each other beside a third one that naps, and lets them go on when it wakes up, or does not."""

from __future__ import annotations

from dataclasses import replace

from tests.hangs.cases.locks import case, cycle
from tests.hangs.facts import Case, Facts, Waits, healthy

LOCK, NAPS = Waits.LOCK, Waits.SLEEP
NOT_HUNG = ("running", "idle", "slow", "unknown")
PAIR = ("debit", "credit")
TRIO = {"debit": LOCK, "credit": LOCK, "third": NAPS}


def in_c(what: str, facts: Facts, summary: str) -> Case:
    members = {"debit": LOCK, "credit": LOCK, "main": NAPS}
    return case(f"bystander-{what}", summary, ("{programs}/bystander.c", what), members, facts)


def in_python(
    what: str, members: dict[str, Waits], facts: Facts, summary: str, *, slow: bool = False
) -> Case:
    kind = f"{'well-' if 'hung' not in facts.state else ''}bystander-{what}"
    return case(kind, summary, ("{python}", "{programs}/bystander.py", what), members, facts, slow=slow)


def of_files(how: str, facts: Facts, summary: str) -> Case:
    kind = f"{'well-' if 'hung' not in facts.state else ''}file-cycle-{how}"
    files = {"debit": Waits.FILE_LOCK, "credit": Waits.FILE_LOCK}
    members = {**files, "main": NAPS if how in ("watched", "shared") else Waits.CHILD}
    return case(kind, summary, ("{programs}/file_cycle.c", "{scratch}", how), members, facts)


def with_confidence(word: str) -> Facts:
    return replace(cycle(PAIR), confidence=frozenset({word}))


_LIKELY = with_confidence("likely")

CASES = (
    in_c("unlocks", _LIKELY, "a third thread of a C program naps, and unlocks a mutex of another one then"),
    in_c("cancels", _LIKELY, "a third thread of a C program naps, and cancels one of the two then"),
    in_c(
        "beats",
        with_confidence("proven"),
        "a third thread of a C program naps again and again",
    ),
    in_c(
        "signals",
        _LIKELY,
        "a third thread naps, and sends a signal whose handler unlocks a recursive mutex then",
    ),
    in_c(
        "stands",
        with_confidence("proven"),
        "a third thread naps beside recursive mutexes, which it cannot unlock",
    ),
    of_files("alone", with_confidence("proven"), "two processes want each other's files"),
    of_files("watched", with_confidence("proven"), "a third process naps, and kills one of them then"),
    of_files("timed", with_confidence("proven"), "one of them has a timer whose signal ends it"),
    of_files(
        "shared", healthy(*NOT_HUNG), "a third process has an open file of one, naps, and unlocks it then"
    ),
    in_python("interrupt", TRIO, _LIKELY, "a third thread naps, and sends SIGINT to the main thread then"),
    in_python(
        "lock",
        TRIO,
        # Its main thread waits for the end of that one.
        healthy(*NOT_HUNG, may_name=("third",)),
        "a third thread naps, and releases a plain Lock then",
    ),
    in_python(
        "lock-counts",
        TRIO,
        healthy(*NOT_HUNG, may_name=("third",)),
        "a third thread naps so many times, and releases a plain Lock then",
    ),
    in_python(
        "lock-child",
        {**TRIO, "third": Waits.CHILD, "child": NAPS},
        healthy(*NOT_HUNG, may_name=("third", "child")),
        "a third thread waits for a child that naps, and releases a plain Lock then",
    ),
    in_python("lock-beats", TRIO, cycle(PAIR), "a third thread naps again and again"),
    in_python(
        "shared-lock",
        TRIO,
        healthy(*NOT_HUNG, may_name=("third",)),
        "a third process naps, and releases a Lock of both then",
    ),
    in_python("shared-lock-beats", TRIO, cycle(PAIR), "a third process naps again and again", slow=True),
    in_python(
        "task",
        {"main": Waits.POLL, "third": NAPS},
        healthy(*NOT_HUNG),
        "two tasks wait for each other, and a thread naps, and cancels one of them then",
    ),
    in_python(
        "task-child",
        {"main": Waits.POLL, "child": NAPS},
        healthy(*NOT_HUNG, may_name=("child",)),
        "two tasks wait for each other, and a third one for a child that naps, and cancels one of them then",
    ),
)
