"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from pyhangtrace.model.errors import OutputFailed
from pyhangtrace.watch import command
from pyhangtrace.watch.bundle import check_folder, report_name, write_whole
from tests.hangs.processes import await_gone


def test_a_file_is_replaced_as_a_whole_and_can_be_read_by_others(tmp_path: Path) -> None:
    path = tmp_path / "m.prom"
    path.write_bytes(b"before")
    before = path.open("rb")
    mask = os.umask(0o022)
    try:
        write_whole(path, b"after")
    finally:
        os.umask(mask)
    assert path.read_bytes() == b"after"
    assert before.read() == b"before"  # who had it open has the old one whole
    before.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [each.name for each in tmp_path.iterdir()] == ["m.prom"]


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "inside").touch()
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on the file system
        write_whole(tmp_path / "x", b"content")
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


def test_a_folder_is_made_and_a_file_is_none(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(OutputFailed, match="cannot write to"):
        check_folder(tmp_path / "file" / "b")


def test_names_sort_by_time() -> None:
    assert report_name("2026-01-02T03:04:05+00:00", (42, 43)) == "hang-20260102T030405Z-42"


def test_a_command_gets_the_report_and_says_how_it_went(tmp_path: Path) -> None:
    stop = threading.Event()
    out = tmp_path / "out"
    told = {"HANGTRACE_SUMMARY": "it's $HOME"}
    line = f'printf "%s|%s" "$1" "$HANGTRACE_SUMMARY" > {out}'
    assert command.run(line, tmp_path / "a b.hang", told, stop=stop) is None
    assert out.read_text() == f"{tmp_path}/a b.hang|it's $HOME"
    assert command.run("exit 3", tmp_path, {}, stop=stop) == "the command has returned 3"


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    said = command.run("sleep 1000", tmp_path, {}, stop=threading.Event(), limit_s=0.2)
    assert said == "the command was ended after 0.2 s"


def test_a_command_ends_with_the_watch_and_what_it_has_started_with_it(tmp_path: Path) -> None:
    told, stop = tmp_path / "told", threading.Event()
    os.mkfifo(told)
    pids = []

    def stop_when_it_is_at_work() -> None:
        pids.append(int(told.read_text()))
        stop.set()

    stopper = threading.Thread(target=stop_when_it_is_at_work)
    stopper.start()
    line = f"sleep 1000 & echo $! > {told}; wait"
    assert command.run(line, tmp_path, {}, stop=stop) == "the command was ended with the watch"
    stopper.join()
    # Whoever inherits it may not have asked yet how it ended.
    await_gone(pids)
