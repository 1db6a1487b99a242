"""Every failure a person can meet, with what to do about it and the exit code it maps to."""

from __future__ import annotations


class HangtraceError(Exception):
    """Base of all expected failures. `summary` is one sentence, `help` what to do next."""

    exit_code = 70

    def __init__(self, summary: str, help: str = "") -> None:
        super().__init__(summary)
        self.summary = summary
        self.help = help


class UsageError(HangtraceError):
    """The request itself makes no sense (an unknown suffix, a file that is not ours)."""

    exit_code = 2


class NotPermitted(HangtraceError):
    """The kernel refuses to show the target to this user."""

    exit_code = 4


class NoSuchProcess(HangtraceError):
    """The process does not exist, or is no longer the one that was asked for."""

    exit_code = 5


class OutputFailed(HangtraceError):
    """What was found could not be written to a file or to standard output."""

    exit_code = 74


class NotSupported(HangtraceError):
    """A feature asked for by name is not available here."""

    exit_code = 6
