"""`hangtrace watch` over real jobs: what it tells of a stall, what it leaves alone, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyhangtrace import demo
from tests.integration.bad_targets import await_that
from tests.integration.stepping import stepping_job
from tests.unit.render.test_prometheus import parsed, value

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


class Watch:
    """`hangtrace watch`, which says on standard error what it does."""

    def __init__(self, pid: int, folder: Path, *options: str, stall: str = "1s") -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pyhangtrace", "watch", str(pid), "--stall", stall),
                *("-o", str(folder), "--no-bpf", *options),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.folder = folder
        self.said: list[str] = []
        self.until("watching ")

    def until(self, beginning: str) -> str:
        """Reads on until a line begins so; what came before is in `said`."""
        assert self.process.stderr is not None
        while line := self.process.stderr.readline():
            self.said.append(line.rstrip())
            if line.startswith(beginning):
                return line.rstrip()
        raise AssertionError(f"{beginning!r} never came: {self.said}")

    def ended(self) -> tuple[int, str, str]:
        output, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, output, errors

    def reports(self, suffix: str = ".json") -> list[Path]:
        return sorted(self.folder.glob(f"hang-*{suffix}"))


@contextlib.contextmanager
def watching(pid: int, folder: Path, *options: str, stall: str = "1s") -> Iterator[Watch]:
    watch = Watch(pid, folder, *options, stall=stall)
    try:
        yield watch
    finally:
        watch.process.kill()
        watch.process.communicate()


def metric(path: Path, name: str, **labels: str) -> float:
    return value(parsed(path.read_bytes()), name, **labels)


def test_a_job_that_comes_to_hang_is_told_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    out, metrics, ran = tmp_path / "out", tmp_path / "m.prom", tmp_path / "ran"
    run = f'printf "%s\\n" "$1" "$HANGTRACE_STATE" "$HANGTRACE_CAUSE" "$HANGTRACE_JSON" > {ran}'
    with (
        stepping_job(tmp_path) as job,
        watching(job.ranks[0], out, "--metrics-file", str(metrics), "--exec", run) as watch,
    ):
        assert metric(metrics, "watch_up") == 1
        assert metric(metrics, "watch_processes") == 3
        job.hang()
        watch.until("wrote ")
        await_that("the command has run", lambda: ran.exists() and ran.read_text().count("\n") == 4)
        watch.process.send_signal(signal.SIGTERM)
        assert watch.ended()[0] == 0
        looked = next(at for at, line in enumerate(watch.said) if line.startswith("no work for "))
        assert not any("HUNG" in line for line in watch.said[:looked])
        (report,) = watch.reports()
        verdict = json.loads(report.read_text())["verdict"]
        assert verdict["state"] == "hung"
        assert {culprit["pid"] for culprit in verdict["culprits"]} == set(job.ranks)
        assert ran.read_text().split() == [
            str(report.with_suffix(".hang")),
            "hung",
            verdict["cause"],
            str(report),
        ]
        assert {path.suffix for path in out.iterdir()} == {".hang", ".json", ".html", ".txt"}
        again = [sys.executable, "-m", "pyhangtrace", "report", str(report.with_suffix(".hang")), "--json"]
        replayed = json.loads(subprocess.run(again, check=True, capture_output=True, timeout=60).stdout)
        assert replayed["verdict"] == verdict
    assert metric(metrics, "watch_up") == 0
    assert metric(metrics, "job_state", state="hung") == 1
    assert metric(metrics, "watch_reports_total") == 1
    assert metric(metrics, "watch_stalls_total", state="hung") == 1


def test_an_idle_server_is_counted_and_not_told(tmp_path: Path) -> None:
    out, metrics = tmp_path / "out", tmp_path / "m.prom"
    with (
        demo.start("idle") as job,
        watching(job.attach_pid, out, "--metrics-file", str(metrics), "--exec", "touch ran") as watch,
    ):
        watch.until("IDLE")
        await_that("counted", lambda: metric(metrics, "watch_stalls_total", state="idle") == 1)
        watch.process.send_signal(signal.SIGINT)
        assert watch.ended()[0] == 0
    assert list(out.iterdir()) == []
    assert metric(metrics, "watch_reports_total") == 0
    assert not (ROOT / "ran").exists()


def test_ranks_that_are_started_again_are_watched_and_the_end_of_the_job_is_the_end(tmp_path: Path) -> None:
    out, metrics = tmp_path / "out", tmp_path / "m.prom"
    with (
        stepping_job(tmp_path) as job,
        watching(job.ranks[0], out, "--metrics-file", str(metrics)) as watch,
    ):
        first = list(job.ranks)
        job.restart()
        assert not set(first) & set(job.ranks)
        job.hang()
        watch.until("wrote ")
        (report,) = watch.reports()
        verdict = json.loads(report.read_text())["verdict"]
        assert {culprit["pid"] for culprit in verdict["culprits"]} == set(job.ranks)
        job.close()
        watch.until("the job has ended")
        assert watch.ended()[0] == 0
        assert len(watch.reports()) == 1
    assert metric(metrics, "watch_up") == 0


def test_a_job_that_ends_was_no_stall(tmp_path: Path) -> None:
    with stepping_job(tmp_path) as job, watching(job.pid, tmp_path / "out", stall="12s") as watch:
        job.end()
        watch.until("the job has ended")
        assert watch.ended()[0] == 0
        assert watch.reports() == []


def test_what_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    """The folder is gone when the stall comes: that is said, the command runs, and the watch goes on."""
    out, ran = tmp_path / "out", tmp_path / "ran"
    with stepping_job(tmp_path) as job, watching(job.pid, out, "--exec", f"echo $1 > {ran}; exit 7") as watch:
        out.rmdir()
        job.hang()
        watch.until("cannot write ")
        watch.until("the command has returned 7")
        assert ran.read_text().strip() == str(out)
        assert watch.process.poll() is None


def test_killed_it_leaves_nothing(tmp_path: Path) -> None:
    """kill -9 in the middle of a look: the helper that reads for it goes too."""
    with (
        demo.start("idle") as job,
        # It looks again and again at what is well: one of the looks is met.
        watching(job.attach_pid, tmp_path / "out", "--rate-limit", "0.5s") as watch,
    ):
        children = Path(f"/proc/{watch.process.pid}/task/{watch.process.pid}/children")
        helpers: list[int] = []

        def looks() -> bool:
            helpers[:] = map(int, children.read_text().split())
            return bool(helpers)

        await_that("a helper", looks)
        watch.process.kill()
        watch.process.wait(timeout=20)
        await_that(
            "helpers are gone", lambda: not any(os.path.exists(f"/proc/{pid}/fd/0") for pid in helpers)
        )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["999999999"], 5, "no process 999999999"),
        (["0"], 2, "is not a process id"),
        ([], 2, "Missing argument"),
    ],
)
def test_what_cannot_be_watched(tmp_path: Path, arguments: list[str], code: int, says: str) -> None:
    command = [sys.executable, "-m", "pyhangtrace", "watch", "-o", str(tmp_path), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert says in done.stderr


@pytest.mark.root
def test_another_user_is_told_at_once_that_he_may_not(tmp_path: Path) -> None:
    """Not only when the stall comes."""
    with stepping_job(tmp_path) as job, tempfile.TemporaryDirectory() as out:
        Path(out).chmod(0o777)
        code = (
            "import difflib, os, sys, traceback; import pyhangtrace.cli.watch, pyhangtrace.interrupts; "
            "import pyhangtrace.watch.watcher; "
            "from pyhangtrace.cli.main import main; "  # all of it while it can still be read
            "os.setgid(65534); os.setuid(65534); sys.exit(main(sys.argv[1:]))"
        )
        command = [sys.executable, "-c", code, "watch", str(job.ranks[0]), "-o", out]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 4, done.stderr
        assert "may not be read by this user" in done.stderr
