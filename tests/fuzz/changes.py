"""What may have been seen differently: facts that are missing, and facts that are wrong."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any, TypeVar

from hypothesis import strategies as st

from pyhangtrace.model.evidence import Evidence, Look
from pyhangtrace.model.processes import ProcessFacts
from pyhangtrace.model.threads import ThreadSample

T = TypeVar("T")


def lose(data: st.DataObject, evidence: Evidence) -> Evidence:
    """Takes facts away, as a collector that was refused or too late would: never a whole process."""
    for _ in range(data.draw(st.integers(1, 6), label="losses")):
        evidence = data.draw(st.sampled_from(_LOSSES), label="loss")(data, evidence)
    return evidence


def _some_threads(change: Callable[[ThreadSample], ThreadSample]) -> Callable[[Any, Evidence], Evidence]:
    """A loss that befalls a thread in all looks, for about a third of the threads or for one."""

    def lossy(data: st.DataObject, evidence: Evidence) -> Evidence:
        keys = sorted({(one.pid, one.tid) for look in evidence.looks for one in look.threads})
        hit = data.draw(
            st.sets(st.sampled_from(keys), min_size=1, max_size=max(1, len(keys) // 3)), label="who"
        )
        return _each_look(
            evidence,
            lambda look: replace(
                look,
                threads=tuple(change(one) if (one.pid, one.tid) in hit else one for one in look.threads),
            ),
        )

    return lossy


def _each_look(evidence: Evidence, change: Callable[[Look], Look]) -> Evidence:
    return replace(evidence, looks=tuple(map(change, evidence.looks)))


def _drop_some(field: str) -> Callable[[Any, Evidence], Evidence]:
    def lossy(data: st.DataObject, evidence: Evidence) -> Evidence:
        whole = data.draw(st.booleans(), label="all of it")

        def change(look: Look) -> Look:
            items = getattr(look, field)
            kept = () if whole else tuple(one for one in items if data.draw(st.booleans(), label=field))
            return replace(look, **{field: kept})

        return _each_look(evidence, change)

    return lossy


def _partial_search(data: st.DataObject, evidence: Evidence) -> Evidence:
    def change(look: Look) -> Look:
        fds = tuple(replace(one, others=(), peers=(), holders_complete=False) for one in look.fds)
        return replace(look, fds=fds)

    return _each_look(evidence, change)


def _fewer_frames(data: st.DataObject, evidence: Evidence) -> Evidence:
    keep = data.draw(st.integers(0, 3), label="frames kept")

    def cut(one: ThreadSample) -> ThreadSample:
        return replace(one, frames=one.frames[:keep], stack_complete=False)

    return _some_threads(cut)(data, evidence)


def _one_look(data: st.DataObject, evidence: Evidence) -> Evidence:
    return replace(evidence, looks=(data.draw(st.sampled_from(evidence.looks), label="look"),))


def _processes(**fields: Any) -> Callable[[Any, Evidence], Evidence]:
    def lossy(data: st.DataObject, evidence: Evidence) -> Evidence:
        hit = data.draw(
            st.sets(st.sampled_from(range(len(evidence.processes))), min_size=1), label="processes"
        )

        def change(number: int, process: ProcessFacts) -> ProcessFacts:
            return replace(process, **fields) if number in hit else process

        return replace(
            evidence, processes=tuple(change(number, one) for number, one in enumerate(evidence.processes))
        )

    return lossy


_LOSSES = (
    _some_threads(lambda one: replace(one, frames=(), unmerged_python=(), stack_complete=False)),
    _fewer_frames,
    _some_threads(lambda one: replace(one, lock=None)),
    _some_threads(
        lambda one: replace(one, lock=one.lock and replace(one.lock, owner_tid=None, owner_exact=False))
    ),
    _some_threads(lambda one: replace(one, syscall=None, args=(), io_fds=())),
    _some_threads(lambda one: replace(one, io_fds=())),
    _some_threads(lambda one: replace(one, asleep_for_s=None)),
    _some_threads(lambda one: replace(one, run_ns=None, slices=None)),
    _some_threads(lambda one: replace(one, timeout_s=None, remaining_s=None)),
    _some_threads(lambda one: replace(one, named_values=())),
    _some_threads(lambda one: replace(one, name=None, comm="")),
    _drop_some("fds"),
    _drop_some("file_locks"),
    _drop_some("lock_files"),
    _partial_search,
    _one_look,
    _processes(title="", exe=""),
    _processes(python=None),
    _processes(cpu_s_in_window=None, started_s_ago=None),
    lambda data, evidence: replace(evidence, probes=(), gpus=(), mapped_files=(), cgroup=None),
)


def distort(data: st.DataObject, value: T, *, depth: int = 0) -> T:
    """Changes one value somewhere inside to another one of its type; anything may be wrong then."""
    hints = typing.get_type_hints(type(value))
    fields = [one for one in dataclasses.fields(value) if one.name != "schema"]  # type: ignore[arg-type]
    name = data.draw(st.sampled_from([one.name for one in fields]), label="field")
    return replace(value, **{name: _other(data, getattr(value, name), hints[name], depth)})  # type: ignore[type-var]


def _other(data: st.DataObject, value: Any, hint: Any, depth: int) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return distort(data, value, depth=depth + 1)
    if isinstance(value, tuple) and value:
        choice = data.draw(st.sampled_from(["change", "change", "change", "drop", "double"]), label="items")
        at = data.draw(st.integers(0, len(value) - 1), label="item")
        if choice == "drop" and not _is_fixed(hint) and not (depth == 0 and len(value) == 1):
            return (*value[:at], *value[at + 1 :])
        if choice == "double" and not _is_fixed(hint):
            return (*value[:at], value[at], *value[at:])
        inner = typing.get_args(hint)
        item_hint = inner[at] if _is_fixed(hint) else inner[0]
        return (*value[:at], _other(data, value[at], item_hint, depth), *value[at + 1 :])
    return data.draw(_of_type(hint, value), label="new value")


def _is_fixed(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple and Ellipsis not in typing.get_args(hint)


def _of_type(hint: Any, value: Any) -> st.SearchStrategy[Any]:
    if isinstance(hint, types.UnionType):
        return st.one_of([_of_type(one, value) for one in typing.get_args(hint)])
    if hint is type(None):
        return st.none()
    if typing.get_origin(hint) is tuple:
        return st.just(())
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if hint is bool:
        return st.booleans()
    if hint is int:
        return st.one_of(st.integers(-2, 3), st.integers(-(1 << 63), (1 << 63) - 1), st.just(value or 0))
    if hint is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if hint is str:
        return st.one_of(st.text(max_size=8), st.sampled_from(["S", "R", "T", "Z", "D", "gil", "futex"]))
    return st.just(value)
