"""Real evidence with facts missing or wrong: the verdict stays a verdict, and nobody else is blamed for it."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyhangtrace.analyze import analyze, more_time_wanted, outsiders_wanted
from pyhangtrace.model.codec import pack, report_to_json, unpack
from pyhangtrace.model.errors import UsageError
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import Part, State
from pyhangtrace.model.report import Report
from tests.fuzz.budget import budget
from tests.fuzz.changes import distort, lose
from tests.fuzz.conftest import Recorded

pytestmark = [pytest.mark.slow, pytest.mark.hangs, pytest.mark.root, pytest.mark.timeout(1200)]


def report_of(evidence: Evidence) -> Report:
    """The report; the same twice, and the same from the saved bundle."""
    report = analyze(evidence)
    more_time_wanted(evidence)
    outsiders_wanted(evidence)
    assert report_to_json(report) == report_to_json(analyze(evidence))
    assert report_to_json(report) == report_to_json(analyze(unpack(pack(evidence))))
    return report


def check_form(report: Report, evidence: Evidence) -> None:
    """What holds for any report: it names only what is in it, and blames nobody where nothing hangs."""
    verdict = report.verdict
    waits = {wait.id: wait for wait in report.waits}
    assert set(verdict.chain) | set(verdict.cycle) <= set(waits)
    known = {process.pid for process in evidence.processes}
    known |= {one.pid for look in evidence.looks for one in look.threads}
    recorded_holders = {wait.holder.pid for wait in report.waits if wait.holder is not None}
    for who in verdict.culprits:
        if who.part is Part.ABSENT:
            assert who.pid is None
            continue
        assert who.pid in known | recorded_holders
    if verdict.state in (State.RUNNING, State.IDLE):
        assert not verdict.culprits
    if verdict.state is State.UNKNOWN:
        assert all(who.part is not Part.CULPRIT for who in verdict.culprits)


@budget(1500)
@given(st.data())
def test_what_was_not_seen_incriminates_nobody(recorded: tuple[Recorded, ...], data: st.DataObject) -> None:
    one = data.draw(st.sampled_from(recorded).map(lambda found: found.name), label="recording")
    found = next(each for each in recorded if each.name == one)
    evidence = lose(data, found.evidence)
    report = report_of(evidence)
    check_form(report, evidence)
    accused = {who.pid for who in report.verdict.culprits if who.part is not Part.ABSENT}
    assert accused <= found.to_blame, report.verdict.summary
    assert all(who.part is not Part.ABSENT for who in report.verdict.culprits), report.verdict.summary


@budget(1500)
@given(st.data())
def test_wrong_facts_break_nothing(recorded: tuple[Recorded, ...], data: st.DataObject) -> None:
    one = data.draw(st.sampled_from(recorded).map(lambda found: found.name), label="recording")
    evidence = next(each for each in recorded if each.name == one).evidence
    for _ in range(data.draw(st.integers(1, 12), label="changes")):
        evidence = distort(data, evidence)
    if evidence.looks:
        check_form(report_of(evidence), evidence)


@budget(1000)
@given(st.data())
def test_damaged_bundles_are_refused_or_read(recorded: tuple[Recorded, ...], data: st.DataObject) -> None:
    whole = pack(recorded[0].evidence)
    broken = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 5), label="flips")):
        broken[data.draw(st.integers(0, len(broken) - 1))] ^= data.draw(st.integers(1, 255))
    damaged = bytes(broken[: data.draw(st.integers(0, len(broken)))]) + data.draw(st.binary(max_size=20))
    try:
        evidence = unpack(damaged)
    except UsageError:
        return
    report_of(evidence)


@budget(1500)
@given(st.data())
def test_bundles_with_other_values_are_refused_or_read(
    recorded: tuple[Recorded, ...], data: st.DataObject
) -> None:
    content = json.loads(gzip.decompress(pack(recorded[0].evidence)))
    for _ in range(data.draw(st.integers(1, 4), label="changes")):
        _change(data, content)
    try:
        evidence = unpack(gzip.compress(json.dumps(content).encode(), 1))
    except UsageError:
        return
    check_form(report_of(evidence), evidence)


def _change(data: st.DataObject, at: Any) -> None:
    """Replaces, removes or adds something, some levels down."""
    for _ in range(data.draw(st.integers(0, 6), label="depth")):
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        inner = [key for key in keys if isinstance(at[key], dict | list) and at[key]]
        if not inner:
            break
        at = at[data.draw(st.sampled_from(inner), label="into")]
    keys = list(at) if isinstance(at, dict) else list(range(len(at)))
    key = data.draw(st.sampled_from(keys), label="what")
    if data.draw(st.booleans(), label="remove"):
        del at[key]
    else:
        at[key] = data.draw(
            st.one_of(
                st.none(),
                st.booleans(),
                st.integers(-(1 << 70), 1 << 70),
                st.floats(),
                st.text(max_size=5),
                st.just([]),
                st.just({}),
                st.just({"pid": 1, "tid": 1, "comm": "x"}),
            ),
            label="value",
        )
