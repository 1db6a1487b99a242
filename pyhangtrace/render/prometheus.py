"""What a watch has come to, for the textfile collector of Prometheus' node exporter.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text-based format).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyhangtrace.model.kinds import State
from pyhangtrace.model.pace import Pace
from pyhangtrace.model.watch import WatchStatus
from pyhangtrace.render.clean import clean

Labels = Mapping[str, str]


def render_metrics(status: WatchStatus) -> bytes:
    """The whole file."""
    return "\n".join(_lines(status)).encode() + b"\n"


def _lines(status: WatchStatus) -> Iterator[str]:
    job = {"job_pid": str(status.asked[0])} if status.asked else {}
    about = job | {
        "version": status.tool_version,
        "framework": status.framework or "",
        "host": status.host,
    }
    yield from _metric("watch_info", "gauge", "What is watched.", [(about, 1)])
    yield from _metric("watch_up", "gauge", "1 while the job is watched, 0 after.", [(job, int(status.up))])
    yield from _metric("watch_processes", "gauge", "Processes of the job.", [(job, len(status.processes))])
    yield from _metric(
        "process_quiet_seconds",
        "gauge",
        "For how long a process has read, written and touched nothing to speak of.",
        [
            (job | {"pid": str(each.pid), "rank": "" if each.rank is None else str(each.rank)}, each.quiet_s)
            for each in status.processes
        ],
    )
    yield from _metric(
        "process_spinning",
        "gauge",
        "1 where a process uses the CPU, and nothing else comes of it.",
        [
            (
                job | {"pid": str(each.pid), "rank": "" if each.rank is None else str(each.rank)},
                int(each.pace is Pace.SPINNING),
            )
            for each in status.processes
        ],
    )
    yield from _metric(
        "job_state",
        "gauge",
        "1 for the verdict of the last look at a stall that still lasts, 0 for all others.",
        [
            (
                job
                | {
                    "state": state.value,
                    "cause": (status.verdict_cause or "") if state is status.verdict else "",
                },
                int(state is status.verdict),
            )
            for state in State
        ],
    )
    yield from _metric(
        "watch_stalls_total",
        "counter",
        "Stalls that were looked at, by verdict.",
        [(job | {"state": state.value}, status.stalls.get(state, 0)) for state in State],
    )
    yield from _metric("watch_reports_total", "counter", "Reports written.", [(job, status.reports)])
    yield from _metric(
        "watch_failures_total",
        "counter",
        "Looks, files and commands that have failed.",
        [(job, status.failures)],
    )
    for name, text, at in (
        ("look", "When a stall was last looked at.", status.last_look_at),
        ("report", "When a report was last written.", status.last_report_at),
    ):
        if at is not None:
            yield from _metric(f"watch_last_{name}_timestamp_seconds", "gauge", text, [(job, at)])
    yield from _metric(
        "watch_cpu_seconds_total", "counter", "CPU that the watch itself has used.", [(job, status.cpu_s)]
    )


def _metric(name: str, kind: str, text: str, samples: list[tuple[Labels, float]]) -> Iterator[str]:
    name = f"hangtrace_{name}"
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        named = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{name}{{{named}}} {_number(value)}" if named else f"{name} {_number(value)}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3f}".rstrip("0").rstrip(".")


def _escaped(text: str) -> str:
    return clean(text).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
