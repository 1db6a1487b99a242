"""A report against the truth of a plan, thread by thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.hangs.facts import Facts
from tests.hangs.judge import Judgement, Outcome, judge
from tests.hangs.processes import Member
from tests.lockgraphs.kinds import Record
from tests.lockgraphs.plan import Plan
from tests.lockgraphs.truth import Owner, Ring, Truth, Wait

Report = Mapping[str, Any]
Thread = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How one wait came out. `None`: there was nothing to say."""

    kind: str
    named: bool
    right: bool | None
    wrong: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The judgement, each wait, and for each ring that had to be found whether it was, and proven."""

    judgement: Judgement
    rows: tuple[Row, ...]
    rings: tuple[tuple[Ring, bool, bool], ...]


@dataclass(slots=True)
class _Reasons:
    accused: list[str]
    wrong: list[str]
    open: list[str]


def compare(report: Report, plan: Plan, truth: Truth, members: Mapping[str, Member]) -> Compared:
    """Judges one report."""
    verdict = report["verdict"]
    threads = {name: (member.pid, member.tid) for name, member in members.items()}
    hard = [ring for ring in truth.rings if ring.recorded]
    facts = Facts(
        state=truth.states,
        may_name=tuple(truth.may_name),
        parties=tuple(sorted(hard[0].members)) if len(hard) == 1 else (),
        cycle=bool(hard) or (bool(truth.rings) and bool(verdict["cycle"])),
    )
    before = judge(report, facts, members)
    reasons = _Reasons([], [], [])
    _named(verdict, truth, threads, reasons)
    rings = _rings(report, truth, threads, reasons)
    _chain(report, truth, threads, reasons)
    rows = tuple(
        row for name, wait in truth.waits.items() if (row := _row(report, name, wait, threads, reasons))
    )
    outcome = before.outcome
    if reasons.accused:
        outcome = Outcome.INNOCENT
    elif reasons.wrong and outcome is not Outcome.INNOCENT:
        outcome = Outcome.WRONG
    elif reasons.open and outcome is Outcome.RIGHT:
        outcome = Outcome.ABSTAINED
    told = (*reasons.accused, *reasons.wrong, *before.reasons, *reasons.open)
    return Compared(judgement=Judgement(outcome, told), rows=rows, rings=rings)


def _who(thread: Thread, threads: Mapping[str, Thread]) -> str:
    name = next((name for name, other in threads.items() if other == thread), "a stranger")
    return f"{name} (pid {thread[0]}, tid {thread[1]})"


def _named(verdict: Report, truth: Truth, threads: Mapping[str, Thread], reasons: _Reasons) -> None:
    allowed = {threads[name] for name in truth.may_name if name in threads}
    for entry in verdict["culprits"]:
        thread = (entry["pid"], entry["tid"])
        whole = entry["tid"] is None and entry["pid"] in {pid for pid, _ in allowed}
        if thread not in allowed and not whole:
            reasons.accused.append(f"names {_who(thread, threads)} as {entry['part']}")


def _rings(
    report: Report, truth: Truth, threads: Mapping[str, Thread], reasons: _Reasons
) -> tuple[tuple[Ring, bool, bool], ...]:
    verdict = report["verdict"]
    waits = {wait["id"]: (wait["pid"], wait["tid"]) for wait in report["waits"]}
    shown = [frozenset(waits[one] for one in ring) for ring in _cycles(verdict)]
    true = {frozenset(threads[name] for name in ring.members): ring for ring in truth.rings}
    for ring in shown:
        if ring not in true and not any(_same_processes(ring, one, truth, threads) for one in truth.rings):
            reasons.wrong.append(f"claims a cycle of {', '.join(_who(one, threads) for one in sorted(ring))}")
    proven = verdict["confidence"] == "proven"
    found = []
    for keys, ring in true.items():
        here = keys in shown
        if here and proven and not ring.may_prove:
            reasons.wrong.append("claims as proven a cycle that is not recorded for good")
        if ring.recorded and not here:
            reasons.open.append(f"does not show the cycle of {', '.join(sorted(ring.members))}")
        if ring.sure and here and not proven:
            reasons.open.append(f"shows the cycle of {', '.join(sorted(ring.members))} without proof")
        if ring.recorded:
            found.append((ring, here, here and proven))
    if (
        proven
        and verdict["state"] == "hung"
        and truth.rings
        and not any(ring.recorded or ring.may_prove for ring in truth.rings)
    ):
        reasons.wrong.append("claims as proven what is recorded nowhere")
    return tuple(found)


def _same_processes(
    shown: frozenset[Thread], ring: Ring, truth: Truth, threads: Mapping[str, Thread]
) -> bool:
    """Of a file lock the process is recorded: whichever of its threads is shown, the circle goes through it."""
    waits = [truth.waits[name] for name in ring.members]
    kept = {threads[wait.owner][0] for wait in waits if wait.record is Record.PROCESS and wait.owner}
    members = {threads[name] for name in ring.members}
    return ring.may_prove and all(thread in members or thread[0] in kept for thread in shown)


def _cycles(verdict: Report) -> list[list[str]]:
    return [ring for ring in (verdict["cycle"], *verdict["other_cycles"]) if ring]


def _chain(report: Report, truth: Truth, threads: Mapping[str, Thread], reasons: _Reasons) -> None:
    """Each wait of the chain must be ended by the next one, as far as that is recorded."""
    verdict = report["verdict"]
    if verdict["state"] in ("unknown", "running", "idle"):
        return
    waits = {wait["id"]: (wait["pid"], wait["tid"]) for wait in report["waits"]}
    names = {thread: name for name, thread in threads.items()}
    chain = [waits[one] for one in verdict["chain"] if one in waits]
    for one, two in pairwise(chain):
        wait = truth.waits.get(names.get(one, ""))
        if wait is None or wait.owner is None or wait.record is Record.NONE:
            continue
        owner = threads[wait.owner]
        if two != owner and not (wait.record is Record.PROCESS and two[0] == owner[0]):
            reasons.wrong.append(
                f"the chain goes from {_who(one, threads)} to {_who(two, threads)}, not {wait.owner}"
            )


def _row(
    report: Report, name: str, wait: Wait, threads: Mapping[str, Thread], reasons: _Reasons
) -> Row | None:
    found = next((one for one in report["waits"] if (one["pid"], one["tid"]) == threads[name]), None)
    if found is None:
        reasons.open.append(f"does not show the wait of {name}")
        return Row(kind=wait.kind.name, named=False, right=None, wrong=False)
    thing = found["object"]
    identified = (
        any(thing[key] is not None for key in ("address", "path", "inode")) or found["kind"] == "join"
    )
    named = found["kind"] in wait.kind.called and identified
    if not named:
        reasons.open.append(f"calls the {wait.kind.name} of {name} a {found['kind']}")
    holder = found["holder"]
    if holder is None:
        missed = wait.record is not Record.NONE
        if missed:
            reasons.open.append(f"knows no holder of the {wait.kind.name} of {name}")
        return Row(kind=wait.kind.name, named=named, right=False if missed else None, wrong=False)
    wrong = _wrong_holder(holder, wait, threads)
    if wrong:
        reasons.wrong.append(
            f"says that pid {holder['pid']}, tid {holder['tid']} holds the {wait.kind.name} of {name}, not "
            f"{wait.owner and _who(threads[wait.owner], threads)}"
        )
    return Row(kind=wait.kind.name, named=named, right=not wrong, wrong=wrong)


def _wrong_holder(holder: Report, wait: Wait, threads: Mapping[str, Thread]) -> bool:
    if wait.owner is None:
        return True
    owner = threads[wait.owner]
    if wait.is_here is not Owner.HERE:
        # The id is what is recorded; the process it was copied into is where it is recorded.
        return holder["tid"] not in (None, owner[1]) or holder["alive"] is not False
    if wait.record is Record.PROCESS:
        return bool(holder["pid"] != owner[0] or holder["tid"] not in (None, owner[1]))
    return (holder["pid"], holder["tid"]) != owner
