"""A look at the job and one at outsiders as one picture."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pyhangtrace.collect.descriptors import Openers
from pyhangtrace.collect.files import OpenFiles
from pyhangtrace.collect.looks import Seen, joined
from pyhangtrace.model.evidence import Look
from pyhangtrace.model.groups import MpiFacts
from pyhangtrace.model.kinds import FdKind
from pyhangtrace.model.open_files import FdFacts, FileLock, IpcFacts, LockFile, SharedSegment
from pyhangtrace.model.threads import TaskSample, ThreadSample


def everything(pid: int) -> dict[str, tuple[Any, ...]]:
    """One of each thing that a look holds, of one process."""
    return {
        "threads": (ThreadSample(pid=pid, tid=pid, comm="x"),),
        "fds": (FdFacts(pid=pid, fd=3, kind=FdKind.PIPE, target="pipe:[1]"),),
        "file_locks": (FileLock(kind="flock", access="write", pid=pid, device=1, inode=pid),),
        "lock_files": (LockFile(path=f"/x/{pid}.lock", exists=True),),
        "tasks": (TaskSample(pid=pid, tid=pid),),
        "ipc": (IpcFacts(pid=pid, kind="sem", id=1),),
        "mpi": (MpiFacts(pid=pid, messages=pid),),
        "segments": (SharedSegment(name=f"/psm_{pid}", users=(pid,)),),
    }


def seen(found: dict[str, tuple[Any, ...]]) -> Seen:
    return Seen(
        look=Look(at_s=0.0, **{"threads": (), **found}),
        taken=1.0,
        pictures={},
        files=OpenFiles({}, {}, Openers(), None),
    )


def test_joining_keeps_what_either_look_has_of_every_kind() -> None:
    first, more = everything(7), everything(9)
    whole = joined(seen(first), seen(more)).look
    for field in fields(Look):
        if field.name != "at_s":
            assert set(getattr(whole, field.name)) == {*first[field.name], *more[field.name]}, field.name


def test_joining_keeps_the_first_looks_word_on_the_same_process() -> None:
    both = joined(
        seen({"mpi": (MpiFacts(pid=7, messages=1),)}), seen({"mpi": (MpiFacts(pid=7, messages=2),)})
    )
    assert both.look.mpi == (MpiFacts(pid=7, messages=1),)
