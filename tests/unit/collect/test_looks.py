"""A look at the job and one at outsiders as one picture."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from typing import Any

import pytest

from pyhangtrace.collect import looks, procfs, stacks
from pyhangtrace.collect.descriptors import Openers
from pyhangtrace.collect.files import OpenFiles
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.looks import Looker, Seen, joined
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.model.evidence import Look
from pyhangtrace.model.groups import MpiFacts
from pyhangtrace.model.kinds import FdKind
from pyhangtrace.model.open_files import FdFacts, FileLock, IpcFacts, LockFile, SharedSegment
from pyhangtrace.model.threads import TaskSample, ThreadSample
from tests.unit.collect.helpers import blocked, program


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


def test_joined_looks_are_as_late_as_the_later_one() -> None:
    first, more = replace(seen({}), late_s=0.1), replace(seen({}), taken=3.0, late_s=0.2)
    assert joined(first, more).late_s == pytest.approx(2.2)


_HELD = """
    import threading
    lock, taken = threading.RLock(), threading.Event()
    def hold():
        with lock:
            taken.set()
            threading.Event().wait()
    threading.Thread(target=hold, daemon=True).start()
    taken.wait()
    print("ready", flush=True)
    lock.acquire()
"""


def test_the_age_of_an_owner_is_of_the_moment_when_times_asleep_were_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long that took after the look: else an owner would seem younger than who waits for it."""
    moments = {"late": 0.0}
    real = looks.time.monotonic
    asks = stacks.with_asleep

    def late(*arguments: Any, **options: Any) -> Any:
        moments["late"] += 100.0
        return asks(*arguments, **options)

    monkeypatch.setattr(looks.time, "monotonic", lambda: real() + moments["late"])
    with program(_HELD) as child, GuardedReader(TASKS) as reader:
        blocked(child.pid, lambda sample: sample.syscall is not None and sample.state == "S")
        table = procfs.read_table(procfs.PROC)
        looker = Looker(reader=reader, table=table, job=(child.pid,), machine=os.uname().machine, began=None)
        plain = looker.look([child.pid], deadline_s=20.0)
        monkeypatch.setattr(stacks, "with_asleep", late)
        slow = looker.look([child.pid], deadline_s=20.0)
        monkeypatch.setattr(stacks, "with_asleep", asks)
        after = looker.look([child.pid], before=slow, deadline_s=20.0)
    ages = [
        next(
            thread.lock.owner_age_s
            for thread in found.look.threads
            if thread.lock is not None and thread.lock.owner_age_s is not None
        )
        for found in (plain, slow, after)
    ]
    assert ages[0] < 50.0
    assert ages[1] > 100.0
    assert ages[2] > 100.0  # its times asleep go on from those
