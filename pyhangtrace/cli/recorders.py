"""Where the files for torch's own analyser go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyhangtrace.model.errors import NotSupported, UsageError

if TYPE_CHECKING:
    from pyhangtrace.render.result import Result

fr_dump_option = click.option(
    "--fr-dump",
    "fr_dump",
    metavar="FOLDER",
    type=click.Path(),
    help="Write what torch's flight recorders hold into this new folder, for torch's own analyser "
    "(python -m torch.distributed.flight_recorder.fr_trace FOLDER).",
)


def check_folder(name: str | None) -> Path | None:
    """Before any work is done: the analyser takes whatever lies there. Raises UsageError."""
    if name is None:
        return None
    path = Path(name)
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {name!r}: there is no folder {str(path.parent)!r}")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{name!r} is there, and is no empty folder")
    return path


def write_dumps(result: Result, folder: Path | None) -> None:
    """One file for each rank. Raises NotSupported if there is nothing to write, UsageError if it cannot be written."""
    if folder is None:
        return
    from pyhangtrace.render.flight_recorder import SOURCE, dumps

    files = dumps(result.evidence)
    if not files:
        said = next((each for each in result.evidence.coverage if each.source == SOURCE), None)
        why = (
            said.reason if said is not None and said.reason else "no process has one, or it was not asked for"
        )
        raise NotSupported(f"no flight recorder to write: {why}", said.fix if said is not None else "")
    try:
        folder.mkdir(exist_ok=True)
        for name, content in sorted(files.items()):
            (folder / name).write_bytes(content)
    except OSError as error:
        raise UsageError(f"cannot write {str(folder)!r}: {error.strerror}") from error
    click.echo(f"wrote {len(files)} file{'s' if len(files) != 1 else ''} to {folder}", err=True)
