"""The end of what a service has written to systemd's journal, where its standard output or error leads there.

systemd.exec(5): JOURNAL_STREAM is the device and inode of the socket that they were connected with, INVOCATION_ID names
the run of the service. Only `journalctl` knows the files of the journal; it reads them, and asks nobody.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess

from pyhangtrace.collect.procfs import read_text

_LINES = 500
_TIMEOUT_S = 0.2
_RUN = re.compile(r"[0-9a-f]{32}")
_LONGEST_ENVIRON = 1 << 17
_STREAM, _INVOCATION = "JOURNAL_STREAM", "INVOCATION_ID"


def run_of(folder: str) -> tuple[tuple[int, int], str] | None:
    """(device and inode of the stream, the run) of a process that writes to the journal; None if it does not."""
    pairs = (read_text(f"{folder}/environ", _LONGEST_ENVIRON) or "").split("\0")
    values = dict(pair.split("=", 1) for pair in pairs if pair.startswith((f"{_STREAM}=", f"{_INVOCATION}=")))
    run = values.get(_INVOCATION, "")
    if _STREAM not in values or _RUN.fullmatch(run) is None:
        return None
    for descriptor in (1, 2):
        try:
            facts = os.stat(f"{folder}/fd/{descriptor}")
        except OSError:
            continue
        if stat.S_ISSOCK(facts.st_mode) and values[_STREAM] == f"{facts.st_dev}:{facts.st_ino}":
            return (facts.st_dev, facts.st_ino), run
    return None


def tail(run: str) -> str:
    """The last lines of a run of a service; "" where the journal cannot be read in time."""
    command = ["journalctl", "--quiet", "--no-pager", "--output=cat", f"--lines={_LINES}"]
    try:
        done = subprocess.run(
            [*command, f"_SYSTEMD_INVOCATION_ID={run}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
