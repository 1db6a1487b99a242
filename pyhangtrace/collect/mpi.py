"""What the memory of a process says of MPI, whichever it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyhangtrace.collect import mpich, open_mpi
from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.memory import of_process
from pyhangtrace.collect.stacks import native_engine
from pyhangtrace.model.groups import MpiFacts
from pyhangtrace.model.kinds import PolledThing
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import ThreadSample

MPI_TASK = "mpi"
_LIBRARIES = ("libmpi.so", "libmpich.so")


def waits_in_mpi(samples: Iterable[ThreadSample]) -> bool:
    """Whether a process with these threads uses MPI."""
    return any(
        sample.polled is PolledThing.MPI_REQUEST
        or any(map(_is_of_mpi, (*sample.frames, *sample.unmerged_native)))
        for sample in samples
    )


def _is_of_mpi(frame: Frame) -> bool:
    return "MPI_" in frame.function[:5] or (frame.module or "").rpartition("/")[2].startswith(_LIBRARIES)


def mpi_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: `MpiFacts`, or what MPICH's memory says, per pid; nothing for who runs neither of them."""
    engine = native_engine(state)
    for pid in pids:
        progress(pid)
        memory = of_process(pid)
        symbols = open_mpi.symbols_of(engine, pid)
        if symbols is not None:
            yield pid, open_mpi.read(pid, memory, symbols)
        elif (found := mpich.find(pid, memory, proc_root=state.proc_root)) is not None:
            yield pid, found


def collect(reader: GuardedReader, pids: Sequence[int], *, deadline_s: float) -> dict[int, MpiFacts]:
    """What there is of each process."""
    found = reader.run(MPI_TASK, pids, None, deadline_s=deadline_s).values if pids else {}
    of_mpich = mpich.counted({pid: one for pid, one in found.items() if isinstance(one, mpich.Found)})
    return {**found, **of_mpich}
