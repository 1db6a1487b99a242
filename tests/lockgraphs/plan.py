"""A lock graph as plain data, and the few lines of text by which a program plays it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tests.lockgraphs.kinds import Language


class Shape(Enum):
    """What a plan is about."""

    CYCLE = "cycle"
    CYCLE_APART = "cycle over processes"
    SOFT_CYCLE = "cycle without owners"
    TWO_CYCLES = "two cycles"
    ITSELF = "waits for itself"
    SINK = "held by a sleeper"
    WORKING = "held by a worker"
    READING = "held by a reader"
    AFTER_FORK = "held before a fork"
    OWNER_GONE = "owner has ended"
    TURNS = "healthy turns"
    FED = "healthy workers"
    CROSSED = "healthy, crossed processes"
    FILE_KEPT = "file kept by a thread"
    FILES = "files of several threads"


class Last(Enum):
    """What a thread is in once all are where they should be. The values are the words of the plan's text."""

    WANT = "want"
    SHARE = "share"  # wants it as one reader among several
    TIMED = "timed"
    REARM = "rearm"  # timed, again and again
    AWAIT = "await"
    JOIN = "join"
    CHILD = "child"
    SLEEP = "sleep"
    NAPS = "naps"
    PAUSE = "pause"
    ACCEPT = "accept"
    COMPUTE = "compute"
    EXIT = "exit"
    WATCHED = "watched"  # naps, and has a watchdog of the standard library look after it
    TURNS = "turns"
    EAT = "eat"
    FEED = "feed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """An object. ``signaller``: who would give the signal if it could, of one that is no lock."""

    name: str
    kind: str
    shared: bool = False  # between processes
    signaller: str | None = None
    amount: int = 0  # first value, or how many are to meet
    reader: int = 0  # of a pipe: processes at its ends
    writer: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """``late``: forked when all threads of the parent have taken what they take."""

    parent: int = -1
    late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Something taken before the end."""

    thing: str
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """A thread. ``on`` is the name of a thing, or of a player to join. A decoy has no part in what is wrong."""

    name: str
    process: int
    last: Last
    on: str | None = None
    amount: int = 0
    takes: tuple[Take, ...] = ()
    decoy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One program. The first player of a process is its main thread."""

    seed: int
    language: Language
    shape: Shape
    things: tuple[Thing, ...]
    processes: tuple[Process, ...]
    players: tuple[Player, ...]

    def thing(self, name: str | None) -> Thing | None:
        """The thing of that name, if there is one."""
        return next((thing for thing in self.things if thing.name == name), None)

    def player(self, name: str) -> Player:
        """The player of that name. Raises KeyError when there is none."""
        return {player.name: player for player in self.players}[name]

    def text(self) -> str:
        """What `lockplay` reads."""
        lines = [
            f"object {thing.name} {thing.kind} {thing.shared:d} {thing.reader} {thing.writer} {thing.amount}"
            for thing in self.things
        ]
        lines += [f"process {process.parent} {process.late:d}" for process in self.processes]
        for player in self.players:
            takes = [f" {'share' if take.shared else 'take'}:{take.thing}" for take in player.takes]
            on = player.on or "-"
            lines.append(
                f"player {player.name} {player.process} {player.last.value} {on} {player.amount}{''.join(takes)}"
            )
        return "\n".join(lines) + "\n"

    def describe(self) -> str:
        """The plan in one line."""
        mine = [player for player in self.players if not player.decoy]
        waits = [self._words(player) for player in mine]
        return (
            f"{self.language.value}, {self.shape.value}, {len(self.processes)} processes, "
            f"{len(self.players)} threads: {'; '.join(waits)}"
        )

    def _words(self, player: Player) -> str:
        thing = self.thing(player.on)
        on = (
            f" {thing.kind}{' (shared)' if thing.shared else ''} {thing.name}"
            if thing
            else f" {player.on or ''}"
        )
        takes = ",".join(take.thing for take in player.takes)
        return f"{player.name}@{player.process}[{takes}] {player.last.value}{on}".rstrip()
