"""What a program's log says of how far it has come. Of the log itself nothing is kept."""

from __future__ import annotations

from dataclasses import dataclass

#: The phase of a server that has noticed that a part of it is gone, and ends.
SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMark:
    """The last line of a log that tells a phase. `pids` write to that log; `ended`: the line says that the phase is
    over. `detail` is how far it was: "2 of 4 shards".
    """

    pids: tuple[int, ...]
    phase: str
    ended: bool = False
    detail: str | None = None
