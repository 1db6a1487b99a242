"""`hangtrace report`."""

from __future__ import annotations

from pathlib import Path

import click

from pyhangtrace.cli.memory import check_memory_outputs, deliver_memory
from pyhangtrace.cli.output import (
    check_outputs,
    check_recording_outputs,
    deliver,
    deliver_recording,
    exit_code,
    recording_output_option,
)
from pyhangtrace.cli.recorders import check_folder, fr_dump_option, write_dumps
from pyhangtrace.model.errors import UsageError


@click.command(name="report", short_help="Render saved evidence again.")
@click.argument("file", metavar="FILE.hang", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@recording_output_option
@fr_dump_option
@click.option("--exit-code", "hang_is_failure", is_flag=True, help="Return 1 if the evidence shows a hang.")
def command(
    *, file: str, as_json: bool, outputs: tuple[str, ...], fr_dump: str | None, hang_is_failure: bool
) -> int:
    """Analyses evidence saved with `attach -o FILE.hang` or `memory -o FILE.hang`, or a recording saved with
    `record -o FILE.hang`, on any machine. The same evidence gives the same report, byte for byte."""
    folder = check_folder(fr_dump)
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file!r}: {error.strerror}") from error
    from pyhangtrace.analyze import analyze
    from pyhangtrace.model.codec import unpack_any
    from pyhangtrace.model.recording import Recording
    from pyhangtrace.render.result import Result

    evidence = unpack_any(data)
    if isinstance(evidence, Recording):
        if folder is not None:
            raise UsageError(f"{file!r} is a recording, which has no flight recorders")
        from pyhangtrace.cli.record import analyzed

        deliver_recording(analyzed(evidence), check_recording_outputs(outputs), as_json=as_json)
        return 0
    if evidence.memory_alone:
        if folder is not None or hang_is_failure:
            raise UsageError(f"{file!r} is of memory alone: it has no flight recorders, and tells of no hang")
        return deliver_memory(evidence, check_memory_outputs(outputs), as_json=as_json)
    files = check_outputs(outputs)
    result = Result(report=analyze(evidence), evidence=evidence)
    deliver(result, files, as_json=as_json)
    write_dumps(result, folder)
    return exit_code(result, hang_is_failure=hang_is_failure)
