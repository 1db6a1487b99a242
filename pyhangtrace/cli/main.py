"""`hangtrace`: the group of commands, and the one place where failures become exit codes."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from pyhangtrace import __version__
from pyhangtrace.model.errors import HangtraceError

EXIT_INTERNAL = 70
EXIT_BROKEN_PIPE = 141  # what a shell says of a program that SIGPIPE has ended

# Loaded when asked for, so that `--help` does not pay for what it does not use.
_COMMANDS = {
    "attach": "pyhangtrace.cli.attach",
    "record": "pyhangtrace.cli.record",
    "watch": "pyhangtrace.cli.watch",
    "memory": "pyhangtrace.cli.memory",
    "report": "pyhangtrace.cli.report",
    "demo": "pyhangtrace.cli.demo",
    "doctor": "pyhangtrace.cli.doctor",
    "schema": "pyhangtrace.cli.schema",
    "completion": "pyhangtrace.cli.completion",
    "man": "pyhangtrace.cli.man",
}


class _ReaderGone(Exception):
    """The reader of our output went away. Not an OSError: of those click makes exit code 1, which means a hang."""


@contextlib.contextmanager
def _told_apart() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _ReaderGone from error


class LazyGroup(click.Group):
    """A group whose commands are imported by name; each module has one called `command`."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """As click does, but for a pipe that was closed: `--help` is printed here."""
        with _told_apart():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> object:
        """As click does, but for a pipe that was closed."""
        with _told_apart():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order a newcomer wants them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or of the only one that begins so."""
        matches = [cmd_name] if cmd_name in _COMMANDS else [n for n in _COMMANDS if n.startswith(cmd_name)]
        if len(matches) != 1:
            return None
        command = importlib.import_module(_COMMANDS[matches[0]]).command
        assert isinstance(command, click.Command)
        return command


@click.command(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="hangtrace")
def cli() -> None:
    """Says which rank of a silent job hangs, on what, and why: from outside, without stopping anybody.

    Start with: hangtrace attach PID
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; raises nothing but KeyboardInterrupt."""
    try:
        outcome = cli.main(
            args=None if arguments is None else list(arguments), prog_name="hangtrace", standalone_mode=False
        )
        return outcome if isinstance(outcome, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort as abort:
        # What click makes of an interrupt; the start of the program ends all of them in one way.
        raise KeyboardInterrupt from abort
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except HangtraceError as error:
        click.echo(f"hangtrace: {error.summary}", err=True)
        if error.help:
            click.echo(error.help, err=True)
        return error.exit_code
    except _ReaderGone:  # `| head`
        # What is still buffered would be a failure again when the interpreter ends.
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        return EXIT_BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the last line of defence: a sentence instead of a traceback
        import traceback

        click.echo(f"hangtrace: internal error: {type(error).__name__}: {error}", err=True)
        frame = traceback.extract_tb(error.__traceback__)[-1]
        click.echo(f"  at {frame.filename}:{frame.lineno} in {frame.name}; please report it", err=True)
        return EXIT_INTERNAL


if __name__ == "__main__":
    sys.exit(main())
