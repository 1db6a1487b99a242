"""`hangtrace man`: the manual page, written from the commands themselves so that it cannot be out of date."""

from __future__ import annotations

import re

import click

from pyhangtrace import __version__

_OVERHEAD = (
    "attach reads /proc and memory of the target and stops nobody. With eBPF it counts futex waits and page "
    "faults of the job for at most half a second; a traced futex call costs the target some 0.6 microseconds "
    "more, and every system call of the machine some 0.1 while the probes are attached."
)
_CANNOT_SEE = (
    "An owner that nobody recorded (a plain lock taken with acquire(), a semaphore); ranks on other hosts; what "
    "runs inside a GPU kernel; processes of other users without root. Each missing source is a line under "
    "'could not see' with what would help."
)


@click.command(name="man", short_help="Print the manual page (troff).")
def command() -> None:
    """Prints the manual page. To read it: hangtrace man | man -l -"""
    from pyhangtrace.cli.main import cli

    click.echo(render_man(cli))


def render_man(group: click.Group) -> str:
    """The whole page in man macros."""
    context = click.Context(group, info_name="hangtrace")
    out = [
        f'.TH HANGTRACE 1 "" "hangtrace {__version__}" "User Commands"',
        ".SH NAME",
        r"hangtrace \- say which rank of a silent job hangs, on what, and why",
        ".SH SYNOPSIS",
        ".B hangtrace",
        r"\fICOMMAND\fR [\fIOPTIONS\fR] ...",
        ".SH DESCRIPTION",
        *_text(group.help or ""),
        ".SH COMMANDS",
    ]
    for name in group.list_commands(context):
        entry = group.get_command(context, name)
        if entry is not None and not entry.hidden:
            out += _command(entry, click.Context(entry, info_name=name, parent=context))
    out += [".SH EXIT STATUS"]
    for code, meaning in _EXIT_CODES:
        out += [".TP", f".B {code}", _escape(meaning)]
    out += [".SH OVERHEAD", *_text(_OVERHEAD), ".SH WHAT IT CANNOT SEE", *_text(_CANNOT_SEE)]
    return "\n".join(out)


_EXIT_CODES = (
    ("0", "done"),
    ("1", "a hang was found and --exit-code was given"),
    ("2", "wrong usage"),
    ("3", "the report is complete but some process gave nothing"),
    ("4", "not permitted"),
    ("5", "no such process"),
    ("6", "a feature asked for by name is not available here"),
    ("70", "internal error"),
    ("74", "a file or standard output could not be written"),
    ("130", "interrupted, after detaching cleanly"),
    ("141", "whoever read standard output has closed it, as if ended by SIGPIPE"),
)


def _command(entry: click.Command, context: click.Context) -> list[str]:
    usage = " ".join(entry.collect_usage_pieces(context))
    out = [f'.SS "hangtrace {context.info_name} {_escape(usage)}"', *_text(entry.help or "")]
    for parameter in entry.params:
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None:
            out += [".TP", rf"\fB{_escape(record[0])}\fR", _escape(record[1])]
    return out


def _text(text: str) -> list[str]:
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return [line for part in paragraphs for line in (".PP", _escape(" ".join(part.split())))]


def _escape(text: str) -> str:
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    # A dot or quote at the start of a line would be a request.
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped
