"""`hangtrace attach --live` over real jobs: on a terminal of 80 x 24, and as lines."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace.model.kinds import SourceState
from pyhangtrace.probes.capability import probe_capabilities
from tests.integration.bad_targets import await_that
from tests.integration.stepping import stepping_job
from tests.integration.terminals import PATIENCE_S, ROOT, Terminal, below, terminal
from tests.integration.test_record import all_bpf, held

TARGETS = Path(__file__).with_name("targets")


class Lines:
    """`attach --live --json`, line by line."""

    def __init__(self, pid: int, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pyhangtrace", "attach", str(pid), "--live", "--json", *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.said: list[dict[str, Any]] = []

    def until(self, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))
            if holds(self.said[-1]):
                return self.said[-1]
        assert self.process.stderr is not None
        raise AssertionError(f"ended: {self.process.stderr.read().decode()}")

    def ended(self) -> int:
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode


@contextlib.contextmanager
def lines(pid: int, *options: str) -> Iterator[Lines]:
    started = Lines(pid, *options)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()


def ticks(line: dict[str, Any]) -> bool:
    return line["kind"] == "tick"


def says(state: str) -> Callable[[dict[str, Any]], object]:
    return lambda line: ticks(line) and line["verdict"] and line["verdict"]["state"] == state


def test_a_job_that_hangs_under_the_eyes_of_its_user(tmp_path: Path) -> None:
    """The verdict stands on the screen soon (tests/benchmarks/live measures it), and what leads to it below."""
    with (
        stepping_job(tmp_path) as job,
        terminal(tmp_path, "attach", job.ranks[0], "--live", "--no-bpf") as screen,
    ):
        before = screen.until("2 of 3 processes move")
        assert "rank pid     state" in before
        screen.until("looked ")
        job.hang()
        shown = screen.until("HUNG deadlock: ranks 0-1")
        assert len(shown.splitlines()) == 24
        shown = screen.until("0 of 3 processes move")
        rows = {line.split()[0]: line for line in shown.splitlines() if line[:1] in "01" and "waits" in line}
        assert set(rows) == {"0", "1"}
        for rank, row in rows.items():
            assert str(job.ranks[int(rank)]) in row
            assert "file lock" in row
        assert "1. rank 0 MainThread waits for a file lock" in shown
        screen.press("Down")
        screen.until(f"rank 1, pid {job.ranks[1]}")
        screen.press("d")
        # The parent of the ranks hears of others, and could end one of them: then it is no proof.
        shown = screen.until("nobody was stopped")
        assert "proven" in shown or "likely" in shown
        screen.press("q")
        assert screen.exit_code() == 0


def test_what_moves_again_is_not_called_hung(tmp_path: Path) -> None:
    with stepping_job(tmp_path) as job, lines(job.ranks[0], "--no-bpf") as live:
        live.until(lambda line: line["kind"] == "report")
        job.hang()
        live.until(says("hung"))
        job.restart_hung()
        told = live.until(lambda line: ticks(line) and line["verdict"]["state"] != "hung")
        assert told["verdict"]["moved_on"] or told["verdict"]["state"] in ("running", "idle")
        new = live.until(lambda line: ticks(line) and {row["pid"] for row in line["rows"]} >= set(job.ranks))
        assert {row["rank"] for row in new["rows"]} == {0, 1, None}


def test_lines_of_json_until_the_job_ends(tmp_path: Path) -> None:
    with stepping_job(tmp_path) as job, lines(job.pid, "--no-bpf") as live:
        report = live.until(lambda line: line["kind"] == "report")["report"]
        assert report["schema"] == "hangtrace.report/1"
        tick = live.until(lambda line: ticks(line) and line["number"] >= 4)
        moving = {row["rank"]: row for row in tick["rows"]}
        assert moving[0]["doing"] == moving[1]["doing"] == "moves"
        assert moving[None]["doing"] == "waits"
        assert all(row["rss"] > 1 << 20 for row in tick["rows"])
        job.end()
        assert live.until(lambda line: ticks(line) and not line["rows"])
        assert live.ended() == 0


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
def test_lines_of_text_until_somebody_has_enough(tmp_path: Path, how: signal.Signals) -> None:
    """Without a terminal, text is what there is."""
    with stepping_job(tmp_path) as job:
        live = subprocess.Popen(
            [sys.executable, "-m", "pyhangtrace", "attach", str(job.pid), "--live", "--no-bpf"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert live.stdout is not None
            assert "of 3 processes move" in live.stdout.readline()
            live.send_signal(how)
            live.communicate(timeout=PATIENCE_S)
            assert live.returncode == 0
        finally:
            live.kill()
            live.communicate()


def test_killed_it_leaves_nothing(tmp_path: Path) -> None:
    """kill -9 while the other process looks, or has done so: that one and its helpers end too."""
    with stepping_job(tmp_path) as job, lines(job.pid, "--no-bpf") as live:
        # A look that is over within one second is in no line of its own.
        live.until(lambda line: line["kind"] == "report" or line["looking"])
        family = below(live.process.pid)
        assert family
        live.process.kill()
        live.process.wait(timeout=20)
        await_that("all of them are gone", lambda: not any(alive(pid) for pid in family))


@pytest.mark.bpf
@pytest.mark.root
@pytest.mark.usefixtures("wakers_counted")
def test_killed_it_leaves_nothing_attached(tmp_path: Path) -> None:
    with stepping_job(tmp_path) as job, lines(job.pid) as live:
        live.until(lambda line: ticks(line) and line["counts_wakers"])
        attached = {each for pid in below(live.process.pid) for each in held(pid)}
        assert attached & all_bpf()
        live.process.kill()
        live.process.wait(timeout=20)
        await_that("nothing is attached", lambda: not attached & all_bpf())


def test_a_signal_gives_the_terminal_back(tmp_path: Path) -> None:
    with (
        stepping_job(tmp_path) as job,
        terminal(tmp_path, "attach", job.pid, "--live", "--no-bpf") as screen,
    ):
        screen.until("2 of 3 processes move")
        os.kill(screen.below(), signal.SIGTERM)
        assert screen.exit_code() == 0
        await_that("the screen is empty", lambda: not screen.screen().strip())


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    with (
        stepping_job(tmp_path) as job,
        terminal(tmp_path, "attach", job.pid, "--live", "--no-bpf") as screen,
    ):
        screen.until("2 of 3 processes move")
        screen.press("C-c")
        assert screen.exit_code() == 0


def test_it_imports_nothing_from_where_it_is_started(tmp_path: Path) -> None:
    """A file of that name in the working folder is somebody else's."""
    trap = tmp_path / "trap"
    trap.mkdir()
    for name in ("json", "ctypes", "msgspec", "resource"):
        (trap / f"{name}.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    with stepping_job(tmp_path) as job:
        hangtrace = Path(sys.executable).with_name("hangtrace")
        if not hangtrace.exists():
            pytest.skip("needs the installed command")
        live = subprocess.Popen(
            [hangtrace, "attach", str(job.pid), "--live", "--json", "--no-bpf"],
            cwd=trap,
            stdout=subprocess.PIPE,
        )
        try:
            assert live.stdout is not None
            assert any(b'"kind":"report"' in line for line in live.stdout)
        finally:
            live.kill()
            live.communicate()
    assert not (tmp_path / "sprung").exists()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def wakers_counted() -> None:
    obstacle = [c for c in probe_capabilities() if c.source == "ebpf" and c.state is not SourceState.USED]
    if obstacle:
        pytest.skip(f"{obstacle[0].reason}; {obstacle[0].fix}")


@pytest.mark.bpf
@pytest.mark.root
@pytest.mark.usefixtures("wakers_counted")
def test_who_should_have_woken_a_waiter_is_known_from_before(tmp_path: Path, c_compiler: str) -> None:
    """A semaphore records no owner: that the producer is the one is seen while it still works."""
    program, lock = tmp_path / "lost_waker", tmp_path / "lock"
    subprocess.run([c_compiler, "-O1", "-pthread", "-o", program, TARGETS / "lost_waker.c"], check=True)
    lock.touch()
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDS_A_LOCK, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    target = subprocess.Popen([program, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert target.stdout is not None
        assert target.stdin is not None
        assert target.stdout.readline() == b"ready\n"
        with lines(target.pid) as live:
            live.until(lambda line: ticks(line) and line["counts_wakers"])
            # So that there is something to count.
            live.until(lambda line: ticks(line) and line["counts_wakers"])
            target.stdin.write(b"x")
            target.stdin.flush()
            assert target.stdout.readline() == b"hanging\n"
            told = live.until(lambda line: ticks(line) and line["wakers"])
        (note,) = told["wakers"]
        assert (note["thread"], note["waker"]) == ("consumer", "producer")
        assert note["count"] == note["of"] > 10
    finally:
        for process in (target, holder):
            process.kill()
            process.communicate()


_HOLDS_A_LOCK = """
import fcntl, sys
held = open(sys.argv[1], "r+")
fcntl.flock(held, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_without_textual_one_line_says_what_to_do(tmp_path: Path) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("needs tmux")
    code = (
        "import importlib.util, sys; find = importlib.util.find_spec; "
        "importlib.util.find_spec = lambda name, *more: None if name == 'textual' else find(name, *more); "
        "from pyhangtrace.cli.main import main; sys.exit(main(['attach', '1', '--live']))"
    )
    screen = Terminal([sys.executable, "-c", f'"{code}"'], tmp_path)
    try:
        assert screen.exit_code() == 6
        assert "fix: pip install 'pyhangtrace[live]'; without it: --live --plain" in screen.screen()
    finally:
        screen.close()


@pytest.mark.parametrize(
    "option", ["-o x.hang", "-d 1", "--fr-dump x", "--allow-stop", "--lines", "--exit-code"], ids=str.split
)
def test_options_that_make_no_sense_with_it(option: str) -> None:
    command = [sys.executable, "-m", "pyhangtrace", "attach", "1", "--live", *option.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"{option.split()[0]} does not go with --live" in done.stderr


def test_plain_alone_is_nothing() -> None:
    command = [sys.executable, "-m", "pyhangtrace", "attach", "1", "--plain"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--plain goes with --live" in done.stderr
