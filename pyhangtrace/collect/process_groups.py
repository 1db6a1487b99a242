"""Process groups of torch.distributed, from the memory of the members: who is in them, and how far they have come.

Names and members are in the module dictionaries of torch.distributed.distributed_c10d (torch 1.13 to 2.15), whose keys
are the Python objects of the groups. Own rank and description are fields of c10d::ProcessGroup (ProcessGroup.hpp):
virtual table, reference counts (one word, or two up to torch 2.9), store, int rank_, int size_, backend,
std::string pg_desc_. They are taken only if they agree with the dictionaries in every group of the process. What was
begun and has not ended is what the flight recorder says, where it is on (default since torch 2.11).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyhangtrace.collect import coordinators, flight_recorder
from pyhangtrace.collect.flight_recorder import NEVER_MADE, READ, Recorder
from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.memory import Read, cpp_string, of_process
from pyhangtrace.collect.procfs import printable
from pyhangtrace.collect.stacks import native_engine
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.groups import GroupWait, PendingOperation, ProcessGroupFacts
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.processes import RankClaim
from pyhangtrace.model.recorders import RecordedOperation
from pyhangtrace.model.threads import ThreadSample

if TYPE_CHECKING:
    from pyhangtrace._native import PythonValue

PROCESS_GROUPS_TASK = "process_groups"
SOURCE = "flight recorder"
_MODULE = "torch.distributed.distributed_c10d"
_NAMES = ("_pg_names", "_pg_group_ranks", "_world._default_pg")
_TYPE = "ProcessGroup"
_MOST_MEMBERS = 1 << 13
_MOST_VALUES = 1 << 17

# rank_ and size_, and pg_desc_, by the width of the reference counts before them.
_PLACES = ((24, 40), (32, 48))
_HELD_BYTES = 80
_MAX_DESCRIPTION = 256

# Threads that c10d and its backends start, by the names they give them.
_THREADS = ("pt_gloo_runloop", "gloo_tcp_loop", "pt_tcpstore_uv", "pt_nccl_")


def takes_part(samples: Iterable[ThreadSample]) -> bool:
    """Whether a process with these threads has process groups of torch.distributed."""
    return any(
        sample.comm.startswith(_THREADS)
        or any(
            "c10d::" in frame.function or "torch/distributed/" in (frame.file or "")
            for frame in sample.frames
        )
        for sample in samples
    )


def process_groups_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: (groups of the process, why its flight recorders do not tell all, its place on the axes) per pid."""
    engine = native_engine(state)
    for pid in pids:
        progress(pid)
        memory = of_process(pid)
        values = engine.python_globals(
            pid, _MODULE, list(_NAMES), most_items=_MOST_MEMBERS, most_values=_MOST_VALUES
        )
        groups = groups_of(pid, *values, memory=memory)
        problems: list[str] = []
        if groups:
            recorders = flight_recorder.read(engine, pid)
            groups = with_operations(groups, recorders, now_ns=time.time_ns())
            problems = flight_recorder.problems(recorders)
        read = partial(_globals, engine, pid)
        place = coordinators.claim(read) if groups else None
        if place is not None:
            groups = with_names(groups, coordinators.group_names(read))
        yield pid, (groups, problems, place)


def with_names(
    groups: Sequence[ProcessGroupFacts], names: Mapping[int, str]
) -> tuple[ProcessGroupFacts, ...]:
    """The groups with what an engine calls them."""
    return tuple(
        replace(group, called=printable(names[group.address]))
        if group.address is not None and group.address in names
        else group
        for group in groups
    )


def _globals(engine: Any, pid: int, module: str, names: Sequence[str]) -> Sequence[PythonValue]:
    found: Sequence[PythonValue] = engine.python_globals(
        pid, module, list(names), most_items=_MOST_MEMBERS, most_values=_MOST_VALUES
    )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The groups, by pid and name, what became of the flight recorder, and what threads wait for in them. They were
    read `after` so many looks. `places` are where members are on the axes of an engine.
    """

    groups: tuple[ProcessGroupFacts, ...] = ()
    coverage: tuple[SourceStatus, ...] = ()
    waits: tuple[GroupWait, ...] = ()
    after: int = 0
    places: Mapping[int, RankClaim] = field(default_factory=dict)


def collect(
    reader: GuardedReader,
    pids: Sequence[int],
    samples: Iterable[ThreadSample],
    *,
    after: int,
    deadline_s: float,
) -> Found:
    """The groups of those of the processes whose threads show that they have any."""
    threads: dict[int, list[ThreadSample]] = {}
    for sample in samples:
        threads.setdefault(sample.pid, []).append(sample)
    members = [pid for pid in pids if pid in threads and takes_part(threads[pid])]
    if not members:
        return Found(after=after)
    answers = reader.run(PROCESS_GROUPS_TASK, members, None, deadline_s=deadline_s)
    groups = [group for pid in sorted(answers.values) for group in answers.values[pid][0]]
    problems = sorted(
        {*answers.problems.values()}.union(*(problems for _, problems, _ in answers.values.values()))
    )
    status = SourceStatus(
        source=SOURCE,
        state=_state(groups, problems),
        reason="; ".join(problems) or ("" if groups else "no process group was found in memory"),
        fix="start the job with TORCH_FR_BUFFER_SIZE=2000" if flight_recorder.OFF in problems else "",
    )
    places = {pid: found[2] for pid, found in answers.values.items() if found[2] is not None}
    return Found(groups=tuple(groups), coverage=(status,), after=after, places=places)


def _state(groups: Iterable[ProcessGroupFacts], problems: Collection[str]) -> SourceState:
    if any(group.recorded for group in groups):
        return SourceState.USED
    unknown = any(flight_recorder.is_refusal(problem) for problem in problems)
    return SourceState.REFUSED if unknown else SourceState.ABSENT


def groups_of(
    pid: int, names: PythonValue, ranks: PythonValue, default: PythonValue, *, memory: Read
) -> tuple[ProcessGroupFacts, ...]:
    """The groups that a process is in, by name; only those of which the members make sense."""
    members = {key["address"]: _in_order(value) for key, value in _items(ranks) if _is_group(key)}
    default_address = default["address"] if isinstance(default, dict) and _is_group(default) else None
    found: dict[str, ProcessGroupFacts] = {}
    held: dict[str, _Held] = {}
    for key, name in _items(names):
        if not _is_group(key) or not isinstance(name, str) or not members.get(key["address"]):
            continue
        name = printable(name)
        found[name] = ProcessGroupFacts(
            pid=pid,
            name=name,
            address=key["address"],
            ranks=members[key["address"]],
            is_default=key["address"] == default_address,
        )
        content = memory(key["held"], _HELD_BYTES) if key.get("held") else None
        if content is not None:
            held[name] = _Held(key["held"], content)
    own = _own_rank(found, held, memory)
    return tuple(own[name] for name in sorted(own))


@dataclass(frozen=True, slots=True)
class _Held:
    """The object of C++ that one of Python holds, and where it lies."""

    address: int
    content: bytes


def _own_rank(
    groups: Mapping[str, ProcessGroupFacts], held: Mapping[str, _Held], memory: Read
) -> dict[str, ProcessGroupFacts]:
    """With own rank and description, if one layout fits all groups and they agree about who this is."""
    for numbers, text in _PLACES:
        places = {}
        for name, each in held.items():
            rank, size = struct.unpack_from("<ii", each.content, numbers)
            ranks = groups[name].ranks
            if size == len(ranks) and 0 <= rank < size:
                places[name] = ranks[rank]
        if len(places) == len(groups) and len(set(places.values())) == 1:
            return {
                name: replace(
                    group,
                    rank=places[name],
                    description=_description(held[name], text, memory),
                )
                for name, group in groups.items()
            }
    return dict(groups)


def _description(held: _Held, at: int, memory: Read) -> str:
    raw = cpp_string(memory, held.content, at, held.address, longest=_MAX_DESCRIPTION)
    text = (raw or b"").decode("utf-8", "replace")
    # "undefined" is what torch calls a group that the program gave no description.
    return text if text.isprintable() and text != "undefined" else ""


def _items(value: PythonValue) -> list[tuple[Any, Any]]:
    if not isinstance(value, dict) or value.get("type") != "dict":
        return []
    items = value.get("items", [])
    return list(zip(items[::2], items[1::2], strict=False))


def _is_group(value: Any) -> bool:
    return isinstance(value, dict) and value["type"].rpartition(".")[2].startswith(_TYPE)


def _in_order(value: PythonValue) -> tuple[int, ...]:
    """{global rank: rank in group} as global ranks in order; () if it is not one of each."""
    pairs = _items(value)
    if not all(isinstance(number, int) and number >= 0 for pair in pairs for number in pair):
        return ()
    by_place = {place: rank for rank, place in pairs}
    if sorted(by_place) != list(range(len(pairs))) or len({rank for rank, _ in pairs}) != len(pairs):
        return ()
    return tuple(by_place[place] for place in range(len(pairs)))


def with_operations(
    groups: Iterable[ProcessGroupFacts], recorders: Sequence[Recorder], *, now_ns: int | None = None
) -> tuple[ProcessGroupFacts, ...]:
    """With what the recorders say of each. `now_ns`: since the epoch; without it nothing is said of what is left."""
    read = [each.facts for each in recorders if each.outcome == READ]
    # One that could not be read may know of a group of which the others do not.
    whole = bool(read) and all(
        each.facts.whole if each.outcome == READ else each.outcome == NEVER_MADE for each in recorders
    )
    operations: dict[str, list[RecordedOperation]] = {}
    for facts in read:
        for operation in facts.operations:
            operations.setdefault(printable(operation.group), []).append(operation)
    result = []
    for group in groups:
        own = operations.get(group.name, [])
        # Nothing of a group in a ring that has gone round says nothing: it may have been overwritten.
        if not (own or whole):
            result.append(group)
            continue
        collective = [operation.sequence for operation in own if not operation.is_p2p]
        result.append(
            replace(
                group,
                recorded=True,
                begun=max(collective, default=0),
                pending=tuple(_pending(operation, now_ns) for operation in own if not operation.done),
                description=group.description or _named(own),
            )
        )
    return tuple(result)


def _named(operations: Collection[RecordedOperation]) -> str:
    found = {operation.description for operation in operations} - {"undefined", ""}
    return printable(found.pop()) if len(found) == 1 else ""


def _pending(operation: RecordedOperation, now_ns: int | None) -> PendingOperation:
    limited = now_ns is not None and operation.timeout_ms > 0 and operation.created_ns > 0
    age_s = ((now_ns or 0) - operation.created_ns) / 1e9
    types = {flight_recorder.dtype_name(name) for name in operation.input_dtypes}
    return PendingOperation(
        op=printable(operation.operation),
        backend=printable(operation.backend),
        sequence=operation.sequence,
        is_p2p=operation.is_p2p,
        inputs=operation.inputs,
        outputs=operation.outputs,
        dtype=types.pop() if len(types) == 1 else None,
        left_s=round(operation.timeout_ms / 1e3 - age_s, 3) if limited else None,
    )
