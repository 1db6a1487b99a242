"""GPUs, those alike in one row: how busy they are, and whatever is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator

from pyhangtrace.model.kinds import State
from pyhangtrace.model.quantities import size
from pyhangtrace.model.report import Gpu, Report
from pyhangtrace.render.clean import clean
from pyhangtrace.render.text.layout import Row
from pyhangtrace.render.text.words import numbers, plural

_WELL = (State.RUNNING, State.IDLE, State.ENDED)
_MOST_ROWS = 16


def gpu_rows(report: Report) -> Iterator[Row]:
    """Of a healthy job only GPUs with trouble; of any, none where all of them are cleared in one line."""
    cleared = any(item.suspect.startswith("gpu") for item in report.verdict.cleared)
    well = cleared or report.verdict.state in _WELL
    alike: dict[tuple[str, ...], list[int]] = {}
    for gpu in report.gpus:
        trouble = tuple(_trouble(gpu))
        if trouble or not well:
            alike.setdefault((_usage(gpu), *trouble), []).append(gpu.index)
    for lines, indexes in list(alike.items())[:_MOST_ROWS]:
        yield Row(label=numbers(indexes, "gpu"), lines=tuple(clean(line) for line in lines if line))


def _usage(gpu: Gpu) -> str:
    parts = [gpu.name] if gpu.name else []
    if gpu.utilization is not None:
        parts.append(f"{gpu.utilization} % busy")
    if gpu.memory_utilization is not None:
        parts.append(f"memory {gpu.memory_utilization} %")
    if gpu.power_w is not None:
        of = f" of {gpu.power_limit_w:.0f}" if gpu.power_limit_w is not None else ""
        parts.append(f"{gpu.power_w:.0f}{of} W")
    if gpu.memory_used is not None:
        of = f" of {size(gpu.memory_total)}" if gpu.memory_total is not None else ""
        parts.append(f"{size(gpu.memory_used)}{of} used")
    return ", ".join(parts)


def _trouble(gpu: Gpu) -> Iterator[str]:
    if gpu.problem is not None:
        yield gpu.problem
    if gpu.xids:
        yield f"the driver has logged Xid {', '.join(map(str, gpu.xids))}"
    if gpu.recovery not in (None, "none"):
        yield f"the driver asks for: {gpu.recovery}"
    if gpu.ecc_uncorrected:
        yield plural(gpu.ecc_uncorrected, "uncorrected memory error")
    if gpu.remap_failed:
        yield "a row of its memory could not be replaced"
    if gpu.links_down:
        yield f"NVLink {', '.join(map(str, gpu.links_down))} of {gpu.links} down"
    if gpu.throttled:
        clocks = ""
        if gpu.clock_sm is not None and gpu.clock_sm_max is not None:
            clocks = f" ({gpu.clock_sm} of {gpu.clock_sm_max} MHz)"
        yield f"held back by {', '.join(gpu.throttled)}{clocks}"
    if gpu.fabric == "in progress":
        yield "its fabric is not set up yet"
