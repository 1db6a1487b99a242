"""`hangtrace memory`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyhangtrace.cli.arguments import process_ids, seconds
from pyhangtrace.cli.output import EXIT_PARTIAL, wants_color, write_all
from pyhangtrace.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyhangtrace.model.evidence import Evidence
    from pyhangtrace.model.report import MemoryAnswer

_SUFFIXES = (".json", ".txt", ".hang")


@click.command(name="memory", short_help="Say what memory a job really holds.")
@click.argument("pids", metavar="PID...", nargs=-1, callback=process_ids)
@click.option(
    "-p", "--pid", "more", multiple=True, callback=process_ids, help="The same as PID, for habit's sake."
)
@click.option(
    "--exact",
    is_flag=True,
    help="Walk the page tables of all members: what the group holds to the page (with CAP_SYS_ADMIN), PSS and USS. "
    "Costs 50 to 150 ns a mapped page, in which a member can map and unmap nothing.",
)
@click.option(
    "--budget",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1, max=600.0),
    callback=seconds,
    help="With --exact: begin no walk that would not be over by then; members left out are told. Default: 30.",
)
@click.option(
    "-d",
    "--duration",
    metavar="SECONDS",
    type=click.FloatRange(min=0.0, max=600.0),
    default=0.5,
    show_default=True,
    callback=seconds,
    help="Count page faults, reads and stalls for so long.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as one JSON object.")
@click.option(
    "-o",
    "--output",
    "outputs",
    metavar="FILE",
    type=click.Path(),
    multiple=True,
    help="Write FILE in the format of its suffix (" + " ".join(_SUFFIXES) + ").",
)
def command(
    *,
    pids: tuple[int, ...],
    more: tuple[int, ...],
    exact: bool,
    budget: float | None,
    duration: float,
    as_json: bool,
    outputs: tuple[str, ...],
) -> int:
    """Finds the job that PID belongs to and says what physical memory it holds, which pages the sum of RSS counts many
    times, which files they belong to, what its control group is charged with, and whether memory holds it up.

    Without --exact no page table is walked where that takes longer than milliseconds. Nobody is stopped or written to.
    """
    wanted = tuple(dict.fromkeys((*pids, *more)))
    if not wanted:
        raise click.UsageError("Missing argument 'PID...'.")
    if budget is not None and not exact:
        raise click.UsageError("--budget is for the walk of page tables, which only --exact makes")
    files = check_memory_outputs(outputs)
    from pyhangtrace.weighing import BUDGET_S, WeighOptions, collect

    evidence = collect(
        wanted,
        WeighOptions(window_s=duration, exact=exact, budget_s=budget if budget is not None else BUDGET_S),
        progress=lambda message: click.echo(message, err=True),
    )
    return deliver_memory(evidence, files, as_json=as_json)


def check_memory_outputs(names: Sequence[str]) -> list[Path]:
    """Resolves formats and folders before any work is done. Raises UsageError."""
    return [_check(name) for name in names]


def deliver_memory(evidence: Evidence, files: Sequence[Path], *, as_json: bool) -> int:
    """Writes the answer that evidence gives, as `output.deliver`, and gives the exit code."""
    from pyhangtrace.analyze.memory_answer import answer as answer_of

    answer = answer_of(evidence)

    def show() -> None:
        sys.stdout.buffer.write(
            _content(".json" if as_json else ".txt", answer, evidence, color=wants_color())
        )
        sys.stdout.buffer.flush()

    write_all(
        [(path, partial(_content, path.suffix, answer, evidence, color=False)) for path in files],
        show,
        always=as_json,
    )
    whole = answer.memory.complete and all(
        process.problem in (None, "gone", "zombie") for process in answer.processes
    )
    return 0 if whole else EXIT_PARTIAL


def _check(name: str) -> Path:
    path = Path(name)
    if path.suffix not in _SUFFIXES:
        known = " ".join(_SUFFIXES)
        raise UsageError(f"cannot tell the format of {name!r} from its suffix", f"known suffixes: {known}")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {name!r}: there is no folder {str(path.parent)!r}")
    return path


def _content(suffix: str, answer: MemoryAnswer, evidence: Evidence, *, color: bool) -> bytes:
    if suffix == ".hang":
        from pyhangtrace.model.codec import pack

        return pack(evidence)
    if suffix == ".json":
        from pyhangtrace.model.codec import memory_to_json

        return memory_to_json(answer)
    from pyhangtrace.render.memory import render_memory

    return render_memory(answer, color=color).encode()
