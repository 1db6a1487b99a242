"""The rings in which torch.distributed notes its operations, out of a process' memory, without asking the process.

What lies where, and that it is what it looks like, is the business of native/torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.stacks import native_engine
from pyhangtrace.model.recorders import GroupProgress, RecordedFrame, RecordedOperation, RecorderFacts

if TYPE_CHECKING:
    from pyhangtrace._native import Engine, OperationCapture, RecorderCapture

RECORDERS_TASK = "recorders"
OFF = "it is off"
READ = "read"
NEVER_MADE = "never_made"

# By what became of a recorder. One that was never made has nothing to say: its backend makes it with its first group.
PROBLEMS = {
    "off": OFF,
    "no_symbol": "{library} does not say where it is: it is stripped, or older than torch 2.8",
    "unreadable": "that of {library} cannot be read",
    "unknown_layout": "that of {library} has a layout that is not known",
    "moving": "that of {library} went on faster than it could be read",
}

# c10's names of types that the program knows by another one; all others differ in case only.
_DTYPES = {
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """What became of the recorder in one of torch's libraries: "read", "never_made", or one of PROBLEMS; and what of it
    was asked for.
    """

    outcome: str
    facts: RecorderFacts


def dtype_name(name: str) -> str:
    """What a program calls a type: `Float` is float32."""
    return _DTYPES.get(name, name.lower())


def is_refusal(problem: str) -> bool:
    """Whether it is one that we do not dare to read."""
    return problem.endswith(PROBLEMS["unknown_layout"].partition("}")[2])


def read(engine: Engine, pid: int, *, whole: bool = False) -> list[Recorder]:
    """Those of a process. `whole`: all they hold, with frames; else of each group what has not ended, and the last
    operation. Empty: no library of torch is loaded that could have one.
    """
    return [_recorder(pid, each) for each in engine.recorders(pid, all=whole, frames=whole)]


def problems(recorders: Iterable[Recorder]) -> list[str]:
    """Why some tell nothing, or not all."""
    return sorted(
        {
            PROBLEMS[each.outcome].format(library=each.facts.library)
            for each in recorders
            if each.outcome in PROBLEMS
        }
    )


def recorders_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, tuple[RecorderFacts, ...]]]:
    """Task: all that the recorders of each pid hold."""
    engine = native_engine(state)
    for pid in pids:
        progress(pid)
        yield pid, tuple(each.facts for each in read(engine, pid, whole=True) if each.outcome == READ)


def collect(reader: GuardedReader, pids: Sequence[int], *, deadline_s: float) -> tuple[RecorderFacts, ...]:
    """All that the recorders of these processes hold, of those that could be read in time."""
    answers = reader.run(RECORDERS_TASK, pids, None, deadline_s=deadline_s)
    return tuple(facts for pid in sorted(answers.values) for facts in answers.values[pid])


def _recorder(pid: int, found: RecorderCapture) -> Recorder:
    # Operations are begun at few places: one tuple for all that were begun at the same.
    stacks: dict[tuple[tuple[str, str, int], ...], tuple[RecordedFrame, ...]] = {}
    facts = RecorderFacts(
        pid=pid,
        library=found["library"],
        most=found["most"],
        recorded=found["recorded"],
        resets=found["resets"],
        whole=found["whole"],
        operations=tuple(_operation(each, stacks) for each in found["operations"]),
        progress=tuple(
            GroupProgress(pg_id=pg_id, enqueued=enqueued, started=started, completed=completed)
            for pg_id, enqueued, started, completed in found["status"]
        ),
        library_version=found["library_version"],
    )
    return Recorder(outcome=found["outcome"], facts=facts)


def _operation(
    found: OperationCapture, stacks: dict[tuple[tuple[str, str, int], ...], tuple[RecordedFrame, ...]]
) -> RecordedOperation:
    where = tuple(found["frames"])
    if where not in stacks:
        stacks[where] = tuple(
            RecordedFrame(function=function, file=file, line=line) for function, file, line in where
        )
    return RecordedOperation(
        id=found["id"],
        pg_id=found["pg_id"],
        group=found["group"],
        description=found["description"],
        name=found["name"],
        collective=found["collective"],
        p2p=found["p2p"],
        op_id=found["op_id"],
        is_p2p=found["is_p2p"],
        created_ns=found["created_ns"],
        timeout_ms=found["timeout_ms"],
        duration_ms=found["duration_ms"],
        started_ns=found["started_ns"],
        completed_ns=found["completed_ns"],
        retired=found["retired"],
        inputs=tuple(map(tuple, found["inputs"])),
        outputs=tuple(map(tuple, found["outputs"])),
        input_dtypes=tuple(found["input_dtypes"]),
        output_dtypes=tuple(found["output_dtypes"]),
        thread_id=found["thread_id"],
        thread_name=found["thread_name"],
        frames=stacks[where],
    )
