"""Threads that went on after their stack was read, while what they waited for was looked up."""

from __future__ import annotations

from pathlib import Path

from pyhangtrace.collect.threads import with_later_moves, with_moves_of
from pyhangtrace.model.threads import ThreadSample

FILE_LOCK_WAIT = ThreadSample(
    pid=7, tid=8, comm="w", state="S", io_fds=(3,), run_ns=500, slices=2, asleep_for_s=6.1, moved=False
)


def proc(folder: Path, schedstat: str) -> str:
    (folder / "7" / "task" / "8").mkdir(parents=True)
    (folder / "7" / "task" / "8" / "schedstat").write_text(schedstat)
    return str(folder)


def test_who_has_not_run_since_stands_as_he_was_seen(tmp_path: Path) -> None:
    assert with_later_moves([FILE_LOCK_WAIT], proc(tmp_path, "500 90 2\n")) == (FILE_LOCK_WAIT,)


def test_who_was_handed_the_lock_meanwhile_is_not_asleep_in_its_queue(tmp_path: Path) -> None:
    (seen,) = with_later_moves([FILE_LOCK_WAIT], proc(tmp_path, "730 95 3\n"))
    assert (seen.moved, seen.asleep_for_s, seen.run_ns, seen.slices) == (True, None, 730, 3)


def test_a_thread_that_has_ended_is_left_as_it_was(tmp_path: Path) -> None:
    assert with_later_moves([FILE_LOCK_WAIT], str(tmp_path)) == (FILE_LOCK_WAIT,)


def test_others_are_not_asked(tmp_path: Path) -> None:
    other = ThreadSample(pid=7, tid=8, comm="w", state="S", run_ns=500, slices=2)
    assert with_later_moves([other], proc(tmp_path, "730 95 3\n")) == (other,)


def test_only_those_asked_for_are_looked_at_again(tmp_path: Path) -> None:
    root = proc(tmp_path, "730 95 3\n")
    key = (FILE_LOCK_WAIT.pid, FILE_LOCK_WAIT.tid)
    (seen,) = with_moves_of([FILE_LOCK_WAIT], {key}, root)
    assert (seen.moved, seen.slices) == (True, 3)
    assert with_moves_of([FILE_LOCK_WAIT], {(key[0], key[1] + 1)}, root) == (FILE_LOCK_WAIT,)
