"""Which process of a job of JAX a process is, as JAX itself has it.

`jax.distributed.initialize` puts what it was told into the `global_state` of jax._src.distributed (0.3.14 to 0.10), the
own number before it connects to the others and their count just after; a process on its own has a count of 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.stacks import native_engine
from pyhangtrace.model.processes import RankClaim
from pyhangtrace.model.threads import ThreadSample

if TYPE_CHECKING:
    from pyhangtrace._native import PythonValue

JAX_TASK = "jax_processes"
SOURCE = "jax.distributed"
_MODULE = "jax._src.distributed"
_NAMES = ("global_state.process_id", "global_state.num_processes")
# Its threads are there from the first import on.
_LIBRARY = re.compile(r"/(libjax\w*|_jax|xla_extension)\.so[^/]*$")
_MOST = 1 << 20


def uses_jax(samples: Iterable[ThreadSample]) -> set[int]:
    """Processes with threads in the library of JAX."""
    return {
        sample.pid
        for sample in samples
        if any(_is_of_jax(frame.module) for frame in (*sample.frames, *sample.unmerged_native))
    }


@lru_cache(maxsize=4096)
def _is_of_jax(module: str | None) -> bool:
    return module is not None and _LIBRARY.search(module) is not None


def jax_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: `RankClaim` per pid; None for one on its own."""
    engine = native_engine(state)
    for pid in pids:
        progress(pid)
        yield pid, claim(*engine.python_globals(pid, _MODULE, list(_NAMES), most_items=1, most_values=8))


def collect(reader: GuardedReader, pids: Sequence[int], *, deadline_s: float) -> dict[int, RankClaim]:
    """What those say that are of a job of several."""
    answers = reader.run(JAX_TASK, pids, None, deadline_s=deadline_s).values if pids else {}
    return {pid: found for pid, found in answers.items() if found is not None}


def claim(number: PythonValue, count: PythonValue) -> RankClaim | None:
    """Of the two numbers; None where they make no sense, or it is the only process."""
    if not isinstance(number, int) or not isinstance(count, int) or isinstance(number, bool):
        return None
    if not 1 < count <= _MOST or not 0 <= number < count:
        return None
    return RankClaim(source=SOURCE, rank=number, world_size=count, framework="jax")
