"""What command lines tell of ranks: which word is a rank's number, and which ones run the same program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyhangtrace.discover import recognise

_RANK = re.compile(
    r"^--?(?P<name>((global|local|node|machine|worker|dist)[-_]?)?rank|process[-_]id|task[-_]index)(?P<equals>=|$)"
)
_WORLD_SIZE = re.compile(r"^--?world[-_]?size(?P<equals>=|$)")
_GLOBAL = frozenset({"rank", "global-rank"})
# Bare numbers that may be ranks; larger ones are ports, sizes, seeds.
_MOST_RANKS = 1024
_LONGEST = 9


@dataclass(frozen=True, slots=True)
class RankWord:
    """A word of a command line that says a rank: the option's name in one spelling, its value, where that stands."""

    name: str
    value: int
    at: int


def rank_words(arguments: Sequence[str]) -> tuple[RankWord, ...]:
    """Options that say a rank, of whatever kind; what `--rank` means (of a matrix?) is for others to judge."""
    return tuple(
        RankWord(match["name"].replace("_", "-"), value, at)
        for match, value, at in _options(_RANK, arguments)
    )


def global_rank(arguments: Sequence[str]) -> int | None:
    """The value of `--rank`, if there is exactly one."""
    said = {word.value for word in rank_words(arguments) if word.name in _GLOBAL}
    return said.pop() if len(said) == 1 else None


def world_size(arguments: Sequence[str]) -> int | None:
    """The value of `--world-size`, if there is exactly one."""
    said = {value for _, value, _ in _options(_WORLD_SIZE, arguments)}
    return said.pop() if len(said) == 1 else None


def limits(arguments: Sequence[str], variables: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """Time limits in seconds that a program was given, by option or variable; the last one of an option counts."""
    found = {
        name: int(variables[name])
        for name in recognise.LIMIT_VARIABLES
        if _is_seconds(variables.get(name, ""))
    }
    # A program that gives itself a title leaves its arguments in one word.
    words = arguments[0].split() if len(arguments) == 1 else arguments
    for name in recognise.LIMIT_OPTIONS:
        for index, argument in enumerate(words):
            option, equals, value = argument.partition("=")
            if option != name:
                continue
            value = value if equals else "".join(words[index + 1 : index + 2])
            # They are numbers with a fraction, of which nobody needs to know.
            whole = value.partition(".")[0]
            if _is_seconds(whole):
                found[name] = int(whole)
    return tuple(sorted(found.items()))


def _is_seconds(word: str) -> bool:
    return word.isdecimal() and len(word) <= _LONGEST


def program(arguments: Sequence[str]) -> str | None:
    """What a command line runs: the script or module of an interpreter, else the program; None if that is not told."""
    if not arguments:
        return None
    if recognise.is_python(arguments):
        return recognise.script_of(arguments) or recognise.module_of(arguments)
    return recognise.base_name(arguments[0])


def numbers(arguments: Sequence[str]) -> tuple[int, ...]:
    """Bare words that could be ranks."""
    return tuple(int(word) for word in arguments if _is_small_number(word))


def shape(arguments: Sequence[str]) -> tuple[str, ...]:
    """The command line without its ranks: equal for all ranks of a job. Where no option says the rank, bare numbers
    may.
    """
    words = list(arguments)
    said = rank_words(arguments)
    for word in said:
        words[word.at] = words[word.at].partition("=")[0] if "=" in words[word.at] else ""
    return tuple(words if said else ["#" if _is_small_number(word) else word for word in words])


def _is_small_number(word: str) -> bool:
    return word.isdecimal() and len(word) <= _LONGEST and int(word) < _MOST_RANKS


def _options(pattern: re.Pattern[str], arguments: Sequence[str]) -> Iterator[tuple[re.Match[str], int, int]]:
    """(match, value, where the value stands) of options with a number."""
    for index, argument in enumerate(arguments):
        match = pattern.match(argument)
        if match is None:
            continue
        at = index if match["equals"] else index + 1
        value = arguments[at].rpartition("=")[2] if at < len(arguments) else ""
        if value.isdecimal() and len(value) <= _LONGEST:
            yield match, int(value), at
