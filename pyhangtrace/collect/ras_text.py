"""RAS's report for people, as NCCL 2.24 to 2.32 write it, read line by line. Pure.

Source of the format: NCCL's documentation ("RAS", troubleshooting) and the answers of its releases. Whatever is not
known is kept as it stands, so that a newer NCCL loses detail and never gains a meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from pyhangtrace.model.ras import (
    RasAnswer,
    RasCommunicator,
    RasFormat,
    RasGroup,
    RasPeer,
    RasProblem,
    RasRow,
)

_MOST_LINES = 200_000
_MOST_UNKNOWN = 8
_LONGEST_LINE = 1024

_VERSION = re.compile(r"NCCL version (\S+)")
_CUDA = re.compile(r"CUDA runtime version (\d+), driver version (\d+)")
_ROW = re.compile(r"\d+\s+(\d+)\s+([\d-]+)\s+([\d-]+)\s+([\d-]+)\s+(\d+)\s+([A-Z,]+)\s+([A-Z,]+)$")
_COMMUNICATOR = re.compile(r"#\d+-\d+ \(([0-9a-f]+)\) ([A-Z][A-Z,]*)$")
_JOB_PROBLEM = re.compile(r"(INCOMPLETE|DEAD|TIMEOUT)$")
_COUNTED = re.compile(r"(\d+) communication timeouts?")
_WHAT_DIFFERS = re.compile(r"Communicator ranks have different (?:(\w+) operation counts|status)")
_MANY = re.compile(
    r"(\d+) ranks (have launched up to operation|have not launched|have status|reported) ?(.*)"
)
_ONE = re.compile(r"Rank (\d+) (has launched up to operation|has not launched|has status|reported) ?(.*)")
_OF_GROUP = re.compile(r"Rank (\d+)$")
_MISSING = re.compile(r"Missing communicator data from (\d+) ranks?")
_MISSING_LIST = re.compile(r"The missing ranks?: ([\d, ]+)")
_GPU = re.compile(r"GPU (.+) managed by process (\d+) on node (.+)")
_PROCESS = re.compile(r"Process (\d+) on node (\S+) managing GPUs? (.+)")
_HEADINGS = frozenset({"Job summary", "Errors", "Warnings"})
# Lines that say nothing which is not said by the others.
_PLAIN = re.compile(
    r"=+$|Nodes\s|\(total\)|Group\s|#\s+in group|Communicators\.\.\.|(Initialization|Asynchronous) error|"
    r"\d+ job process|Missing communicator data from \d+ job process|\[(could not find|process information)"
)
_END = " -- "


@dataclass(slots=True)
class _Communicator:
    hash: str
    problems: tuple[str, ...]
    counts: list[_Group] = field(default_factory=list)
    states: list[_Group] = field(default_factory=list)
    errors: list[_Group] = field(default_factory=list)
    missing: list[RasPeer] = field(default_factory=list)
    missing_count: int = 0

    def done(self) -> RasCommunicator:
        return RasCommunicator(
            hash=self.hash,
            problems=self.problems,
            counts=tuple(group.done() for group in self.counts),
            states=tuple(group.done() for group in self.states),
            errors=tuple(group.done() for group in self.errors),
            missing=tuple(self.missing),
            missing_count=max(self.missing_count, len(self.missing)),
        )


@dataclass(slots=True)
class _Group:
    op: str = ""
    launched: int | None = None
    text: str | None = None
    number: int = 1
    ranks: list[RasPeer] = field(default_factory=list)

    def done(self) -> RasGroup:
        return RasGroup(
            op=self.op, launched=self.launched, text=self.text, number=self.number, ranks=tuple(self.ranks)
        )


@dataclass(slots=True)
class _Problem:
    kind: str
    text: list[str] = field(default_factory=list)
    processes: list[RasPeer] = field(default_factory=list)


@dataclass(slots=True)
class _Reading:
    version: str = ""
    runtime: int | None = None
    driver: int | None = None
    rows: list[RasRow] = field(default_factory=list)
    communicators: dict[str, _Communicator] = field(default_factory=dict)
    problems: list[_Problem] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    no_data: bool = False
    timeouts: int = 0
    unknown: list[str] = field(default_factory=list)
    communicator: _Communicator | None = None  # whose block this is
    problem: _Problem | None = None
    group: _Group | None = None  # to which the ranks of the next lines belong
    listing_missing: bool = False
    op: str = ""


def parse(text: str, *, closed: bool) -> RasAnswer:
    """The answer. `closed`: the server ended it, as it does behind the last line."""
    reading = _Reading()
    for line in _lines(text):
        if not _read(reading, line):
            reading.unknown.append(line.strip())
    return RasAnswer(
        format=RasFormat.TEXT,
        nccl_version=reading.version,
        cuda_runtime=reading.runtime,
        cuda_driver=reading.driver,
        # The last heading is always there, whether or not anything follows.
        complete=closed and text.endswith("\n") and {"Errors", "Warnings"} <= reading.seen,
        communicators=tuple(each.done() for each in reading.communicators.values()),
        table=tuple(reading.rows),
        problems=tuple(
            RasProblem(kind=each.kind, text="; ".join(each.text), processes=tuple(each.processes))
            for each in reading.problems
        ),
        no_data=reading.no_data,
        timeouts=reading.timeouts,
        unknown=tuple(reading.unknown[:_MOST_UNKNOWN]),
    )


def _lines(text: str) -> Iterator[str]:
    for number, line in enumerate(text.split("\n")):
        if number >= _MOST_LINES:
            return
        line = line.rstrip("\r ")[:_LONGEST_LINE]
        if line:
            yield line


def _read(reading: _Reading, line: str) -> bool:
    """Takes in one line; False if it is of no known kind."""
    if line.startswith(" "):
        indented = line.strip()
        if _row(reading, indented) or _detail(reading, indented):
            return True
        return bool(_PLAIN.match(indented))
    reading.group = None
    if line in _HEADINGS:
        reading.seen.add(line)
        reading.communicator = reading.problem = None
        return True
    found = _COMMUNICATOR.match(line)
    if found:
        words = tuple(found[2].split(","))
        known = reading.communicators.setdefault(found[1], _Communicator(found[1], ()))
        known.problems = tuple(dict.fromkeys((*known.problems, *words)))
        reading.communicator, reading.problem, reading.op = known, None, ""
        reading.listing_missing = False
        return True
    found = _JOB_PROBLEM.match(line)
    if found:
        reading.problem, reading.communicator = _Problem(found[1]), None
        reading.problems.append(reading.problem)
        return True
    return _head(reading, line) or bool(_PLAIN.match(line))


def _head(reading: _Reading, line: str) -> bool:
    version, cuda = _VERSION.match(line), _CUDA.match(line)
    if version:
        reading.version = version[1]
    elif cuda:
        reading.runtime, reading.driver = _number(cuda[1]), _number(cuda[2])
    elif line.startswith("No communicator data collected"):
        reading.no_data = True
    else:
        return False
    return True


def _row(reading: _Reading, line: str) -> bool:
    found = _ROW.match(line)
    if found is None or "Errors" in reading.seen:
        return False
    reading.rows.append(
        RasRow(
            communicators=_number(found[1]),
            nodes=found[2],
            ranks_per_node=found[3],
            ranks_per_communicator=found[4],
            ranks=_number(found[5]),
            status=tuple(found[6].split(",")),
            errors=tuple(found[7].split(",")),
        )
    )
    return True


def _detail(reading: _Reading, line: str) -> bool:
    if reading.problem is not None:
        return _of_job(reading, reading.problem, line)
    if reading.communicator is not None:
        return _of_communicator(reading, reading.communicator, line)
    # The numbers under "Job summary".
    return bool(re.fullmatch(r"[\d\s-]+", line))


def _of_job(reading: _Reading, problem: _Problem, line: str) -> bool:
    process = _PROCESS.match(line)
    if process:
        problem.processes.append(RasPeer(host=process[2], pid=_number(process[1]), gpu=process[3]))
        return True
    problem.text.append(line)
    counted = _COUNTED.search(line)
    if counted and problem.kind == "TIMEOUT":
        reading.timeouts = _number(counted[1])
    return True


def _of_communicator(reading: _Reading, communicator: _Communicator, line: str) -> bool:
    what, _, where = line.partition(_END)
    many, one, of_group = _MANY.match(what), _ONE.match(what), _OF_GROUP.match(what)
    if one:
        group = _group(reading, communicator, one[2], one[3], number=1)
        group.ranks.append(_peer(one[1], where))
        reading.group = None
    elif many:
        reading.group = _group(reading, communicator, many[2], many[3], number=_number(many[1]))
    elif of_group:
        peer = _peer(of_group[1], where)
        if reading.group is not None:
            reading.group.ranks.append(peer)
        elif reading.listing_missing:
            communicator.missing.append(peer)
        else:
            return False
    else:
        return _headline(reading, communicator, what)
    return True


def _headline(reading: _Reading, communicator: _Communicator, line: str) -> bool:
    """What the following lines are about."""
    differs, missing, ranks = _WHAT_DIFFERS.match(line), _MISSING.match(line), _MISSING_LIST.match(line)
    if differs:
        # "collective": one counter for all of them.
        reading.op = "" if differs[1] in (None, "collective") else differs[1]
        reading.group, reading.listing_missing = None, False
    elif missing:
        communicator.missing_count = _number(missing[1])
        reading.group, reading.listing_missing = None, True
    elif ranks:
        communicator.missing += [RasPeer(rank=_number(rank)) for rank in re.findall(r"\d+", ranks[1])]
    else:
        return False
    return True


def _group(reading: _Reading, communicator: _Communicator, verb: str, rest: str, *, number: int) -> _Group:
    if verb.endswith("launched up to operation"):
        group = _Group(op=reading.op, launched=_number(rest.partition(" ")[0]), number=number)
        communicator.counts.append(group)
    elif verb.endswith("not launched"):
        group = _Group(op=reading.op, launched=0, number=number)
        communicator.counts.append(group)
    elif verb.endswith(("have status", "has status")):
        group = _Group(text=rest, number=number)
        communicator.states.append(group)
    else:
        group = _Group(text=rest, number=number)
        communicator.errors.append(group)
    return group


def _peer(rank: str, where: str) -> RasPeer:
    found = _GPU.match(where)
    if found is None:
        return RasPeer(rank=_number(rank))
    return RasPeer(rank=_number(rank), host=found[3], pid=_number(found[2]), gpu=found[1])


def _number(text: str) -> int:
    """Digits as a number; more of them than any counter has are cut."""
    digits = re.match(r"\d{1,19}", text)
    return int(digits[0]) if digits else 0
