"""What a healthy program is: commands, what they need, and what a look may say of them."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.hangs.facts import Program

PROGRAMS = Path(__file__).parent / "programs"

#: Of any healthy program, with load and without.
WELL = frozenset({"running", "idle", "unknown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Well:
    """One healthy program, alone or with what loads it.

    Its commands are started one after the other, each when the members of the one before have announced
    themselves. Looks go to all of their processes in turn.
    """

    name: str
    summary: str
    programs: tuple[Program, ...]
    states: frozenset[str] = WELL
    commands: tuple[str, ...] = ()  # needed in the path
    modules: tuple[str, ...] = ()  # needed by Python
    postgres: bool = False
    slow: bool = False  # not in the normal suite

    def needs(self) -> str | None:
        """What is missing here, or None."""
        for command in self.commands:
            if shutil.which(command) is None:
                return f"needs the program {command}"
        for module in self.modules:
            if importlib.util.find_spec(module) is None:
                return f"needs the Python package {module}"
        if self.postgres and (postgres_binaries() is None or os.geteuid() != 0 or not _has_user("postgres")):
            return "needs the server and the tools of PostgreSQL, its user, and root to become that"
        return None


def postgres_binaries() -> Path | None:
    """The folder of the newest PostgreSQL, server and pgbench, as Debian and others install it."""
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if all((folder / name).exists() for name in ("initdb", "postgres", "pgbench")):
            return folder
    return None


def _has_user(name: str) -> bool:
    return any(line.startswith(name + ":") for line in Path("/etc/passwd").read_text().splitlines())
