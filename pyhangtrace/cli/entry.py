"""Where the program starts. Imports next to nothing, so that an interrupt at any later moment ends it cleanly."""

from __future__ import annotations

import io
import os
import sys

EXIT_INTERRUPTED = 130


def start() -> int:
    """Runs the command line and returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # Names of files and the ellipsis must not fail where the locale cannot say them.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        from pyhangtrace.cli.main import main

        return main()
    except KeyboardInterrupt:
        # Not a return: an interrupt met inside exec() (dataclasses use it) makes the interpreter end itself by
        # the signal later, whatever the exit code.
        sys.stdout.flush()
        sys.stderr.write("interrupted; everything is detached\n")
        sys.stderr.flush()
        os._exit(EXIT_INTERRUPTED)
