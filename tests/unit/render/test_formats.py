"""Every format on one hand-made report; whole outputs are golden files that `make golden` writes again."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from pyhangtrace.model.codec import report_from_json, report_schema, unpack
from pyhangtrace.model.errors import UsageError
from pyhangtrace.render.clean import clean
from pyhangtrace.render.html.page import render_html
from pyhangtrace.render.registry import FORMATS, format_for
from pyhangtrace.render.stacks import stack_classes
from pyhangtrace.render.text.page import render_text
from tests.unit.render import sample

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize("name", ["report.txt", "report.folded", "report.speedscope.json", "report.json"])
def test_golden(name: str) -> None:
    written = format_for(name).write(sample.result())
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_bytes(written)
    assert written.decode() == path.read_text(encoding="utf-8")


def test_text_is_at_most_80_columns_wide_and_plain() -> None:
    text = render_text(sample.report(), color=False)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


def test_colour_changes_nothing_but_colour() -> None:
    colored = render_text(sample.report(), color=True)
    bare = "\n".join(line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", colored).splitlines()) + "\n"
    assert bare == render_text(sample.report(), color=False)


def test_longest_suffix_wins() -> None:
    assert format_for("a.speedscope.json").name == "speedscope"
    assert format_for("a.json").name == "json"
    with pytest.raises(UsageError, match="suffix"):
        format_for("a.svg")


def test_every_format_is_deterministic() -> None:
    for entry in FORMATS:
        assert entry.write(sample.result()) == entry.write(sample.result())


def test_bundle_and_json_come_back_equal() -> None:
    result = sample.result()
    assert unpack(format_for("x.hang").write(result)) == result.evidence
    assert report_from_json(format_for("x.json").write(result)) == result.report


@pytest.mark.parametrize("data", [b"", b"\x1f\x8b", b"{}", b"PK\x03\x04", b"\x1f\x8b\x08" + b"\0" * 40])
def test_foreign_bytes_are_no_bundle(data: bytes) -> None:
    with pytest.raises(UsageError, match="not an evidence bundle"):
        unpack(data)


def test_report_names_what_the_contract_names() -> None:
    written = json.loads(format_for("x.json").write(sample.result()))
    assert written["schema"] == "hangtrace.report/1"
    assert written["collectives"][0]["from"] == ["stack"]
    assert written["workload"]["phase"]["from"] == "stack"
    assert written["verdict"]["culprits"][0] == {
        "rank": 3,
        "pid": 4243,
        "tid": 4243,
        "thread": "MainThread",
        "wait": "w3",
        "part": "culprit",
    }


def test_schema_is_generated_from_the_model() -> None:
    schema = report_schema()
    assert schema["$ref"] == "#/$defs/Report"
    assert "from" in schema["$defs"]["Collective"]["properties"]


def test_classes_are_rarest_first_and_services_last() -> None:
    classes = stack_classes(sample.report())
    assert [item.ranks for item in classes] == [(3,), sample.RANKS, tuple(range(8))]
    assert [item.service for item in classes] == [None, None, "gloo loop"]


def test_page_allows_nothing_from_outside() -> None:
    page = render_html(sample.report())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert not re.search(r"(src|href)\s*=", re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.S))
    assert " style=" not in page


def test_names_of_a_target_stay_text() -> None:
    report = sample.report()
    evil = sample.frame("</script><script>alert(1)</script>", "/x/\x1b]0;pwned\x07.py", 1)
    first = report.processes[0]
    thread = structs.replace(first.threads[0], stack=(evil,), name="<img onerror=x>")
    report = replace(report, processes=(replace(first, threads=(thread,)), *report.processes[1:]))
    page = render_html(report)
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "\x1b" not in render_text(report, color=False)


@pytest.mark.parametrize(("raw", "shown"), [("a\nb", "a\\nb"), ("\x1b[31m", "\\x1b[31m"), ("é✓", "é✓")])
def test_clean(raw: str, shown: str) -> None:
    assert clean(raw) == shown
