"""What a scene is: a small program in which the kernel knows what is waited for, and what a report must say of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from tests.hangs.facts import Program
from tests.hangs.processes import Running

#: Something done to the running programs, and undone before they end: freezing them, say.
Around = Callable[[Running], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What must be said of one thread's wait. Texts are regular expressions, looked for."""

    kind: tuple[str, ...]
    path: str | None = None  # in the object's path
    name: str | None = None  # in the object's name
    says: tuple[str, ...] = ()  # in the lines of evidence
    holder: str | None = None  # the role that is recorded as the holder
    candidates: tuple[str, ...] = ()  # roles that must be among the candidates; nobody must be recorded
    holder_by_bpf: bool = False  # recorded where eBPF programs may be loaded; elsewhere there are candidates
    child: bool = False  # it waits for a child of its own that announces nothing
    nobody: bool = False  # nobody is recorded, and the evidence says so
    timed: bool = False
    left_s: tuple[float, float] | None = None  # bounds of what is left of a timed wait
    since: bool = True  # how long it has been asleep is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Programs that wait, and what is true of them. `states` are the verdicts that are right; `may_name` who may be
    named in one of those that name somebody."""

    name: str
    programs: tuple[Program, ...]
    waits: Mapping[str, Expected]  # by role
    attach: str = "waiter"
    states: tuple[str, ...] = ("hung", "idle", "unknown")
    may_name: tuple[str, ...] = ()
    around: Around | None = None
    needs: Callable[[], str | None] = field(default=lambda: None)  # why it cannot be staged here
    leaves: tuple[str, ...] = ()  # files that stay when the programs are killed
    slow: bool = False
    limit: str | None = None  # why this cannot be right: it must be wrong, until that has changed
