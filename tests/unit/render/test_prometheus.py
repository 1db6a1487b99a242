"""The file for the textfile collector, read as its format says."""

from __future__ import annotations

import re
from dataclasses import replace

from pyhangtrace.model.kinds import State
from pyhangtrace.model.pace import Pace
from pyhangtrace.model.watch import WatchedProcess, WatchStatus
from pyhangtrace.render.prometheus import render_metrics

STATUS = WatchStatus(
    tool_version="1.2",
    host="node-1",
    asked=(70,),
    framework="torch",
    up=True,
    processes=(
        WatchedProcess(pid=70, rank=None, pace=Pace.QUIET, quiet_s=100.0),
        WatchedProcess(pid=71, rank=0, pace=Pace.SPINNING, quiet_s=61.5),
    ),
    verdict=State.HUNG,
    verdict_cause="lock.cycle",
    stalls={State.HUNG: 1, State.IDLE: 3},
    reports=1,
    last_look_at=1767225600.25,
    cpu_s=0.5,
)

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SAMPLE = re.compile(rf'({_NAME})(?:\{{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\}})? (\S+)')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def parsed(data: bytes) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples by name. Fails on anything the text format does not allow."""
    assert data.endswith(b"\n")
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    typed: set[str] = set()
    for line in data.decode().splitlines():
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in ("gauge", "counter")
            assert name not in typed, "all samples of a metric come in one group"
            assert (kind == "counter") is name.endswith("_total")
            typed.add(name)
            continue
        found = _SAMPLE.fullmatch(line)
        assert found, line
        assert found[1] in typed
        samples.setdefault(found[1], []).append((dict(_LABEL.findall(found[2] or "")), float(found[3])))
    return samples


def value(samples: dict[str, list[tuple[dict[str, str], float]]], name: str, **labels: str) -> float:
    found = [number for has, number in samples[f"hangtrace_{name}"] if labels.items() <= has.items()]
    assert len(found) == 1
    return found[0]


def test_what_is_known_is_there() -> None:
    samples = parsed(render_metrics(STATUS))
    assert value(samples, "watch_up") == 1
    assert value(samples, "watch_processes") == 2
    assert value(samples, "process_quiet_seconds", pid="71", rank="0") == 61.5
    assert value(samples, "process_quiet_seconds", pid="70", rank="") == 100
    assert value(samples, "process_spinning", pid="71") == 1
    assert value(samples, "job_state", state="hung", cause="lock.cycle") == 1
    assert value(samples, "job_state", state="idle", cause="") == 0
    assert value(samples, "watch_stalls_total", state="idle") == 3
    assert value(samples, "watch_stalls_total", state="busy") == 0
    assert value(samples, "watch_last_look_timestamp_seconds") == 1767225600.25
    assert "hangtrace_watch_last_report_timestamp_seconds" not in samples


def test_odd_names_stay_labels() -> None:
    host = 'a"} evil 1\n\\'
    samples = parsed(render_metrics(replace(STATUS, host=host)))
    assert len(samples["hangtrace_watch_info"]) == 1
    assert "evil" not in samples


def test_every_sample_is_one_of_its_kind() -> None:
    samples = parsed(render_metrics(STATUS))
    for name, of_one in samples.items():
        labels = [tuple(sorted(has.items())) for has, _ in of_one]
        assert len(labels) == len(set(labels)), name
