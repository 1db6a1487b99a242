"""Flight recorders as the files that torch's own analyser reads (python -m torch.distributed.flight_recorder.fr_trace).

Format: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, dumps of version 2.10. What torch does not write
for gloo, or writes wrongly, is right here: `pg_config` has every group with its members.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.groups import ProcessGroupFacts
from pyhangtrace.model.recorders import RecordedOperation, RecorderFacts

SOURCE = "flight recorder"  # in the coverage of evidence
VERSION = "2.10"
PREFIX = "fr_"
_PROTOCOL = 2  # what torch writes
_UNNAMED = "undefined"  # what torch calls a group without a description


def dumps(evidence: Evidence) -> dict[str, bytes]:
    """Files by name, one for each rank that is known and each recorder: `fr_0`; `fr_cuda_0` and `fr_cpu_0` where ranks
    have recorders of several backends, which count apart. Empty if no recorder was read.

    Operations of a group whose members are not known, since it was destroyed, are left out: the analyser takes none.
    """
    groups: dict[int, list[ProcessGroupFacts]] = {}
    for facts in evidence.groups:
        groups.setdefault(facts.pid, []).append(facts)
    used = [each for each in evidence.recorders if each.operations]
    libraries = {each.library for each in used}
    # A rank that has recorded nothing yet is one that came to nothing: the analyser must know it.
    shown = [each for each in evidence.recorders if not libraries or each.library in libraries]
    files: dict[str, bytes] = {}
    # A child that was forked has its parent's recorder as it was then.
    for recorder in sorted(shown, key=lambda each: (each.recorded, -each.pid)):
        own = groups.get(recorder.pid, [])
        ranks = {facts.rank for facts in own if facts.rank is not None}
        if len(ranks) == 1:
            prefix = PREFIX if len(libraries) <= 1 else f"{PREFIX}{_short(recorder.library)}_"
            name = f"{prefix}{ranks.pop()}"
            files[name] = pickle.dumps(_shared(dump(recorder, own), {}), protocol=_PROTOCOL)
    return files


def _shared(value: Any, texts: dict[str, str]) -> Any:
    """The same, with equal texts as one object: a pickle tells objects apart, and equal evidence gives equal bytes."""
    if isinstance(value, str):
        return texts.setdefault(value, value)
    if isinstance(value, dict):
        return {_shared(key, texts): _shared(each, texts) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_shared(each, texts) for each in value)
    return value


def dump(recorder: RecorderFacts, groups: Iterable[ProcessGroupFacts]) -> dict[str, Any]:
    """What torch would have dumped for one process, with its groups as they are."""
    known = {facts.name: facts for facts in groups}
    operations = [each for each in recorder.operations if each.group in known]
    return {
        "version": VERSION,
        "pg_config": {name: _group(facts, operations) for name, facts in sorted(known.items())},
        "comm_lib_version": recorder.library_version,
        "pg_status": {
            str(each.pg_id): {
                "last_enqueued_collective": each.enqueued,
                "last_started_collective": each.started,
                "last_completed_collective": each.completed,
            }
            for each in recorder.progress
        },
        "entries": [entry(each) for each in operations],
    }


def entry(operation: RecordedOperation) -> dict[str, Any]:
    """One operation, with the keys and values of torch's dump."""
    made: dict[str, Any] = {
        "frames": [
            {"name": frame.function.rpartition(".")[2], "filename": frame.file, "line": frame.line}
            for frame in operation.frames
        ],
        "record_id": operation.id,
        "pg_id": operation.pg_id,
        "process_group": (operation.group, operation.description),
        "thread_name": operation.thread_name,
        "thread_id": str(operation.thread_id),
        "collective_seq_id": operation.collective,
        "p2p_seq_id": operation.p2p,
        "op_id": operation.op_id,
        "profiling_name": operation.name,
        "time_created_ns": operation.created_ns,
        "input_sizes": [list(shape) for shape in operation.inputs],
        "input_dtypes": list(operation.input_dtypes),
        "output_sizes": [list(shape) for shape in operation.outputs],
        "output_dtypes": list(operation.output_dtypes),
        "state": _state(operation),
        "time_discovered_started_ns": operation.started_ns,
        "time_discovered_completed_ns": operation.completed_ns,
        "retired": operation.retired,
        "timeout_ms": operation.timeout_ms,
        "is_p2p": operation.is_p2p,
    }
    if operation.duration_ms is not None:
        made["duration_ms"] = operation.duration_ms
    return made


def _state(operation: RecordedOperation) -> str:
    if operation.completed_ns is not None:
        return "completed"
    return "started" if operation.started_ns is not None else "scheduled"


def _group(facts: ProcessGroupFacts, operations: Iterable[RecordedOperation]) -> Mapping[str, str]:
    """The description as the entries have it, by which the analyser compares."""
    said = next((each.description for each in operations if each.group == facts.name), "")
    return {
        "name": facts.name,
        "desc": said or facts.description or _UNNAMED,
        "ranks": str(list(facts.ranks)),
    }


def _short(library: str) -> str:
    """`libtorch_cuda.so` is cuda."""
    return library.partition("_")[2].partition(".")[0] or library
