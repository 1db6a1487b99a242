"""What a case is: programs that hang, how to see that they do, and the facts the report must hold."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

#: One kind, several that are all right, or none at all.
Kinds: TypeAlias = "str | tuple[str | None, ...] | None"


class Waits(Enum):
    """Where the kernel must show a member before the case counts as reached."""

    LOCK = "a futex"
    FILE_LOCK = "flock or fcntl"
    READ = "read or recv"
    WRITE = "write or send"
    POLL = "poll, select or epoll"
    ACCEPT = "accept"
    SLEEP = "a timer or pause"
    CHILD = "wait for a child"
    ASLEEP = "asleep at one place in the kernel, whatever the call"
    STOPPED = "stopped"
    TRACED = "stopped by a tracer"
    RUNNING = "on the CPU"
    COMPILER = "a compiler below it is on the CPU"
    ENDED = "ended and not yet reaped"
    ANY = "only announced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One command, or one command a rank.

    In ``argv`` and ``env``: ``{python}``, ``{programs}`` (their folder), ``{scratch}`` (a fresh folder),
    ``{port}`` (a free one); a word that ends in ``.c`` is compiled and replaced by the executable, one that ends in
    ``.mpi.c`` by the compiler that belongs to the ``mpirun`` of the command.
    """

    argv: tuple[str, ...]
    members: Mapping[str, Waits]  # by the role they announce
    env: Mapping[str, str] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()  # start one such command for each of these, with RANK set
    variables: bool = True  # with ranks: told so; else nothing but "{rank}" in argv tells
    stdin_open: bool = False  # standard input is a pipe that stays open and empty; else /dev/null
    world_size: int | None = None  # with ranks: what they are told; else their number


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a reasonable reader of the report's contract would demand. Members are named by role."""

    state: frozenset[str]
    symptom: frozenset[str | None] | None = None  # None: anything
    cause: frozenset[str | None] | None = None
    culprit: tuple[str, ...] = ()  # the first one named must be one of these (threads of one rank, say)
    may_name: tuple[str, ...] = ()  # may be named beside it; "rank1/*" are the descendants of rank1
    parties: tuple[str, ...] = ()  # each must be named, as a party
    absent: tuple[int, ...] = ()  # ranks without a process, each must be named so
    victims: tuple[str, ...] = ()  # each must be listed
    holder: str | None = None  # a wait of the chain must name it as the holder
    chain_end: tuple[str, ...] = ()  # the last wait of the chain is one of theirs
    cycle: bool = False
    confidence: frozenset[str] | None = None  # None: any
    missing: frozenset[int] | None = None  # of one of the collectives
    op: str | None = None  # of that collective
    group: str | None = None  # of that collective
    says: tuple[str, ...] = ()  # words that the summary must have
    memory: frozenset[str] = frozenset({"normal", "rss_illusion"})
    cleared: tuple[str, ...] = ()  # suspects that must be cleared, by prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of hang, or one healthy program."""

    kind: str
    summary: str
    programs: tuple[Program, ...]
    attach: tuple[str, ...]  # roles to attach to, one a run, in turn
    facts: Facts
    torch: bool = False
    needs: tuple[str, ...] = ()  # commands
    modules: tuple[str, ...] = ()  # of Python
    slow: bool = False


def lacking(case: Case) -> str | None:
    """What a case needs and this machine does not have."""
    commands = (command for command in case.needs if shutil.which(command) is None)
    modules = (module for module in case.modules if importlib.util.find_spec(module) is None)
    return next(itertools.chain(commands, modules), None)


def hung(symptom: Kinds, cause: Kinds, **facts: object) -> Facts:
    """Facts of a hang: the symptoms and causes allowed, and the other fields of `Facts`."""
    return Facts(
        state=frozenset({"hung"}),
        symptom=_set(symptom),
        cause=_set(cause),
        **facts,  # type: ignore[arg-type]
    )


def may_withhold(symptom: Kinds, cause: Kinds, **facts: object) -> Facts:
    """Facts of a hang of which memory does not record the holder: `unknown` is right as well."""
    return dataclasses.replace(hung(symptom, cause, **facts), state=frozenset({"hung", "unknown"}))


def busy(symptom: Kinds, cause: Kinds, **facts: object) -> Facts:
    """Facts of somebody who works while the others wait."""
    return Facts(
        state=frozenset({"busy"}),
        symptom=_set(symptom),
        cause=_set(cause),
        **facts,  # type: ignore[arg-type]
    )


def healthy(*states: str, may_name: tuple[str, ...] = ()) -> Facts:
    """Facts of a program that must not be called hung: the states allowed."""
    return Facts(state=frozenset(states), may_name=may_name)


def _set(kinds: Kinds) -> frozenset[str | None]:
    return frozenset(kinds if isinstance(kinds, tuple) else (kinds,))
