"""What scripts rely on: the object on stdout, its schema, saved evidence that says the same, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from pyhangtrace import demo
from pyhangtrace.model.codec import report_schema

START = "import sys; from pyhangtrace.cli.entry import start; sys.exit(start())"


def hangtrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def stopped_rank() -> Iterator[demo.Running]:
    """A job whose rank 2 was stopped by a signal: a hang that needs no longer window."""
    with demo.start("stopped") as running:
        yield running


def test_json_is_all_of_stdout_and_follows_the_schema(stopped_rank: demo.Running) -> None:
    done = hangtrace("attach", "--json", "--no-bpf", str(stopped_rank.attach_pid))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    jsonschema.Draft202012Validator.check_schema(report_schema())
    jsonschema.validate(report, report_schema())
    assert report["verdict"]["state"] == "hung"
    assert report["verdict"]["cause"] == "peer.stopped"
    assert [culprit["rank"] for culprit in report["verdict"]["culprits"]] == [2]
    pids = {str(process["pid"]) for process in report["processes"]}
    assert report["cost"]["stopped_us"] == dict.fromkeys(pids, 0)
    assert all(source["reason"] for source in report["coverage"] if source["state"] != "used")


def test_saved_evidence_says_the_same_bytes(stopped_rank: demo.Running, tmp_path: Path) -> None:
    suffixes = (".hang", ".json", ".html", ".folded", ".speedscope.json", ".txt")
    first = [str(tmp_path / f"first{suffix}") for suffix in suffixes]
    again = [str(tmp_path / f"again{suffix}") for suffix in suffixes]
    done = hangtrace(
        "attach", str(stopped_rank.attach_pid), *(word for name in first for word in ("-o", name))
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    done = hangtrace("report", first[0], *(word for name in again for word in ("-o", name)))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for one, other in zip(first, again, strict=True):
        assert Path(one).read_bytes() == Path(other).read_bytes(), other
    assert hangtrace("report", first[0]).stdout == Path(first[-1]).read_text()
    assert hangtrace("report", first[0], "--json").stdout == Path(first[1]).read_text()


def test_a_hang_is_a_failure_only_if_asked(stopped_rank: demo.Running) -> None:
    attach = ("attach", "--no-bpf", str(stopped_rank.attach_pid))
    assert hangtrace(*attach).returncode == 0
    assert hangtrace(*attach, "--exit-code").returncode == 1


def test_any_member_leads_to_the_same_verdict(stopped_rank: demo.Running) -> None:
    reports = [
        json.loads(hangtrace("attach", "--json", "--no-bpf", str(pid)).stdout) for pid in stopped_rank.pids
    ]
    assert {json.dumps(report["verdict"]["culprits"]) for report in reports} == {
        json.dumps(reports[0]["verdict"]["culprits"])
    }
