"""How far a job has come by its log."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pyhangtrace.collect import journal, log_marks
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.log_marks import last_mark
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.model.logs import LogMark

SHARDS = "Loading safetensors checkpoint shards:  {percent}% Completed | {done}/4 [00:01<00:01,  1.2it/s]\r"


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        ("[2026-01-01 12:00:00 TP0] Load weight begin. avail mem=70 GB", ("weight_loading", False, None)),
        (SHARDS.format(percent=50, done=2), ("weight_loading", False, "2 of 4 shards")),
        (
            "Loading checkpoint shards:  50%|█████     | 1/2 [00:01<00:01]",
            ("weight_loading", False, "1 of 2 shards"),
        ),
        ("INFO [default_loader.py:268] Loading weights took 2.31 seconds", ("weight_loading", True, None)),
        ("[TP0] Load weight end. elapsed=3.2 s", ("weight_loading", True, None)),
        ("[TP1] Init parallel begin.", ("rendezvous", False, None)),
        ("[TP0] KV Cache is allocated. dtype: torch.bfloat16", ("memory_setup", True, None)),
        ("[TP0] Capture target decode CUDA graph begin. This can take", ("graph_capture", False, None)),
        ("[TP0] Capture cuda graph begin. This can take up to several", ("graph_capture", False, None)),
        (
            "Capturing batches (bs=160 avail_mem=8.02 GB):   0%|    | 0/23",
            ("graph_capture", False, "batch size 160"),
        ),
        (
            "Capturing CUDA graphs (decode, FULL):  50%|#####     | 17/34 [00:02<00:02]",
            ("graph_capture", False, "17 of 34 sizes"),
        ),
        ("Graph capturing finished in 5 secs, took 0.5 GiB", ("graph_capture", True, None)),
        ("torch.compile takes 12.3 s in total", ("compile", True, None)),
        ("INFO: Warming up model done.", ("warm_up", True, None)),
        ("The server is fired up and ready to roll!", ("serving", False, None)),
        (
            "ERROR [multiproc_executor.py:315] Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting",
            ("shutdown", False, "worker 1 has died, exit code -9"),
        ),
        (
            "Received sigquit from a child process. It usually means the child failed.",
            ("shutdown", False, None),
        ),
        ("step 3 of 4, loss 2.1", None),
    ],
)
def test_lines_of_the_engines(line: str, mark: tuple[str, bool, str | None] | None) -> None:
    assert last_mark(f"first\n{line}\nrequest 17 came in") == mark


def test_the_last_line_that_tells_something_counts() -> None:
    bars = "".join(SHARDS.format(percent=25 * done, done=done) for done in range(4))
    assert last_mark(f"Init parallel begin.\n{bars}\nuser asked: Tell me a story") == (
        "weight_loading",
        False,
        "3 of 4 shards",
    )
    assert last_mark("Load weight begin.\nLoad weight end. elapsed=1 s\n") == ("weight_loading", True, None)


def test_files_only_and_each_once(tmp_path: Path) -> None:
    root = tmp_path / "proc"
    log, other = tmp_path / "log", tmp_path / "other"
    log.write_text("x" * 100_000 + "\nLoad weight begin.\n" + "y\n" * 100)
    other.write_text("nothing of it\n")
    os.mkfifo(tmp_path / "pipe")
    links = {
        7: (log, log),
        8: (log, tmp_path / "pipe"),
        9: (other, Path("/dev/null")),
        10: (tmp_path / "gone",) * 2,
    }
    for pid, targets in links.items():
        (root / str(pid) / "fd").mkdir(parents=True)
        for descriptor, target in zip((1, 2), targets, strict=True):
            (root / str(pid) / "fd" / str(descriptor)).symlink_to(target)
    with GuardedReader(TASKS, proc_root=str(root)) as reader:
        found = log_marks.collect(reader, dict.fromkeys(links, 3600.0), deadline_s=10.0)
    assert found == (LogMark(pids=(7, 8), phase="weight_loading"),)
    # What stands before the end is not read.
    log.write_text("Load weight begin.\n" + "y\n" * 100_000)
    with GuardedReader(TASKS, proc_root=str(root)) as reader:
        assert log_marks.collect(reader, {7: 3600.0}, deadline_s=10.0) == ()


def test_the_log_of_an_earlier_run_tells_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("The server is fired up and ready to roll!\n")
    (tmp_path / "proc/7/fd").mkdir(parents=True)
    (tmp_path / "proc/7/fd/1").symlink_to(log)
    an_hour_ago = log.stat().st_mtime - 3600
    for written, expected in ((an_hour_ago, 0), (log.stat().st_mtime, 1)):
        os.utime(log, (written, written))
        with GuardedReader(TASKS, proc_root=str(tmp_path / "proc")) as reader:
            assert len(log_marks.collect(reader, {7: 60.0}, deadline_s=10.0)) == expected


def test_a_service_that_writes_to_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = "0123456789abcdef" * 2
    stream = tmp_path / "stdout"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(stream))
        facts = stream.stat()
        places = {7: f"{facts.st_dev}:{facts.st_ino}", 8: f"{facts.st_dev}:{facts.st_ino + 1}", 9: None}
        for pid, place in places.items():
            folder = tmp_path / "proc" / str(pid)
            (folder / "fd").mkdir(parents=True)
            (folder / "fd/1").symlink_to(stream)
            said = "" if place is None else f"JOURNAL_STREAM={place}\0"
            (folder / "environ").write_text(f"A=1\0{said}INVOCATION_ID={run}\0")
        tools = tmp_path / "tools"
        tools.mkdir()
        (tools / "journalctl").write_text(
            f"#!/bin/sh\ncase $* in *={run}) echo 'Load weight begin.';; esac\n"
        )
        (tools / "journalctl").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        with GuardedReader(TASKS, proc_root=str(tmp_path / "proc")) as reader:
            found = log_marks.collect(reader, dict.fromkeys(places, 60.0), deadline_s=10.0)
    assert found == (LogMark(pids=(7,), phase="weight_loading"),)


def test_without_journalctl_there_is_no_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert journal.tail("0" * 32) == ""
    (tmp_path / "journalctl").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "journalctl").chmod(0o755)
    assert journal.tail("0" * 32) == ""
