"""The whole run on real processes: what it finds, what it refuses, and how long it may take."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("pyhangtrace._native") is None:
    pytest.skip("needs the compiled extension (make setup)", allow_module_level=True)

from pyhangtrace import engine
from pyhangtrace.collect.looks import Looker
from pyhangtrace.engine import AttachOptions
from pyhangtrace.model.codec import pack, unpack
from pyhangtrace.model.errors import NoSuchProcess, UsageError
from pyhangtrace.model.kinds import Role
from tests.hangs.processes import stat_fields
from tests.unit.collect.helpers import blocked, program

QUICK = AttachOptions(window_s=0.1, bpf=False)
#: A run is over so long after its window, whatever keeps it.
GRACE_S = 5.0

READERS = """
    import os, sys
    r, w = os.pipe()
    os.environ.update(RANK="0", WORLD_SIZE="2")
    if os.fork() == 0:
        os.environ["RANK"] = "1"
        os.close(w)
        os.read(r, 1)
        os._exit(0)
    print("ready", flush=True)
    os.read(sys.stdin.fileno(), 1)
    """


def test_a_family_that_reads_pipes() -> None:
    with program(READERS) as parent:
        blocked(parent.pid, lambda sample: sample.args[:1] == (0,))
        evidence = engine.collect_evidence([parent.pid], QUICK)
        assert parent.stdin is not None
        our_end = parent.stdin.fileno()
    by_pid = {process.pid: process for process in evidence.processes}
    members = [process for process in evidence.processes if process.role is not Role.OUTSIDER]
    assert parent.pid in by_pid
    assert len(members) == 2
    assert {(claim.source, claim.rank) for process in members for claim in process.claims} == {
        ("program environ RANK", 0),
        ("program environ RANK", 1),
    }
    assert evidence.job.world_size == 2
    assert by_pid[parent.pid].python is not None
    assert len(evidence.looks) == 2
    assert 0.1 <= evidence.window_s < 0.1 + GRACE_S
    for look in evidence.looks:
        thread = next(thread for thread in look.threads if thread.pid == parent.pid)
        assert thread.io_fds == (0,)
        assert any(frame.function == "<module>" for frame in thread.frames)
        facts = next(fd for fd in look.fds if (fd.pid, fd.fd) == (parent.pid, 0))
        assert (os.getpid(), our_end) in [(holder.pid, holder.fd) for holder in facts.others]
    assert evidence.cost.wall_s > 0.1
    assert 0 < evidence.cost.cpu_s < evidence.cost.wall_s + 5
    assert unpack(pack(evidence)) == evidence


def test_an_outsider_that_holds_the_lock(tmp_path: Path) -> None:
    holder = """
        import fcntl, signal, sys
        f = open(sys.argv[1], "w")
        fcntl.flock(f, fcntl.LOCK_EX)
        print("ready", flush=True)
        signal.pause()
        """
    waiter = """
        import fcntl, sys
        f = open(sys.argv[1], "w")
        print("ready", flush=True)
        fcntl.flock(f, fcntl.LOCK_EX)
        """
    path = str(tmp_path / "lock")
    with program(holder, path) as holds, program(waiter, path) as waits:
        blocked(waits.pid, lambda sample: sample.wchan is not None and "lock" in sample.wchan)
        evidence = engine.collect_evidence([waits.pid], QUICK)
    outsiders = [process for process in evidence.processes if process.role is Role.OUTSIDER]
    assert [process.pid for process in outsiders] == [holds.pid]
    assert [{thread.pid for thread in look.threads} for look in evidence.looks] == [
        {holds.pid, waits.pid}
    ] * 2
    assert evidence.looks[0].file_locks[0].path == path


def test_the_window_is_as_long_as_asked_for() -> None:
    with program("import signal; print('ready', flush=True); signal.pause()") as child:
        evidence = engine.collect_evidence([child.pid], AttachOptions(window_s=1.2, bpf=False))
    assert 1.2 <= evidence.window_s < 1.2 + GRACE_S
    times = [look.at_s for look in evidence.looks]
    assert times[0] == 0
    assert len(times) >= 3
    assert times == sorted(times)


@pytest.mark.parametrize(("wanted", "looks"), [(0.0, 2), (0.1, 4)])
def test_where_looks_take_as_long_as_the_window_a_few_are_taken_all_the_same(
    monkeypatch: pytest.MonkeyPatch, wanted: float, looks: int
) -> None:
    monkeypatch.setattr(engine, "more_time_wanted", lambda _: wanted)
    options = AttachOptions(bpf=False, max_window_s=0.05)
    with program("import signal; print('ready', flush=True); signal.pause()") as child:
        assert len(engine.collect_evidence([child.pid], options).looks) == looks


@pytest.mark.parametrize("problem", ["gone", "zombie"])
def test_a_process_that_ends_between_the_looks(monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
    look = Looker.look
    with program("import time; print('ready', flush=True); time.sleep(1000)") as child:

        def look_and_end(*given: Any, **options: Any) -> Any:
            monkeypatch.setattr(Looker, "look", look)
            seen = look(*given, **options)
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            if problem == "gone":
                child.wait()
            return seen

        monkeypatch.setattr(Looker, "look", look_and_end)
        evidence = engine.collect_evidence([child.pid], QUICK)
    (process,) = [process for process in evidence.processes if process.pid == child.pid]
    assert process.problem == problem


def test_a_zombie_is_no_mystery() -> None:
    source = "import os, signal\nif os.fork() == 0: os._exit(3)\nprint('ready', flush=True)\nsignal.pause()"
    with program(source) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        zombie = int(children.read_text())
        until = time.monotonic() + 20
        while "State:\tZ" not in Path(f"/proc/{zombie}/status").read_text() and time.monotonic() < until:
            os.sched_yield()
        evidence = engine.collect_evidence([parent.pid], QUICK)
    (found,) = [process for process in evidence.processes if process.pid == zombie]
    assert (found.problem, found.state, found.exit_code) == ("zombie", "Z", 3 << 8)


def test_a_stopped_process_stays_stopped_and_is_read() -> None:
    with program("import signal; print('ready', flush=True); signal.pause()") as child:
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        evidence = engine.collect_evidence([child.pid], QUICK)
        fields = stat_fields(child.pid)
    assert fields is not None
    assert fields[0] == "T"
    (thread,) = evidence.looks[0].threads
    assert thread.state == "T"
    assert thread.frames


def test_a_thread_id_stands_for_its_process() -> None:
    source = """
        import signal, threading
        thread = threading.Thread(target=threading.Event().wait, daemon=True)
        thread.start()
        print("ready", thread.native_id, flush=True)
        signal.pause()
        """
    with program(source) as child:
        tids = [int(name) for name in os.listdir(f"/proc/{child.pid}/task")]
        evidence = engine.collect_evidence([max(tids)], QUICK)
    assert len(tids) == 2
    assert evidence.attached_to == (child.pid,)


def test_nobody_there() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    with pytest.raises(NoSuchProcess, match=f"no process {child.pid}"):
        engine.attach([child.pid], QUICK)


def test_ourselves() -> None:
    with pytest.raises(UsageError):
        engine.attach([os.getpid()], QUICK)


@pytest.mark.skipif(not Path("/proc/2/comm").exists(), reason="no kernel threads visible here")
def test_a_kernel_thread() -> None:
    if Path("/proc/2/comm").read_text() != "kthreadd\n":
        pytest.skip("process 2 is not kthreadd here")
    with pytest.raises(NoSuchProcess, match="kernel thread"):
        engine.attach([2], QUICK)


def test_progress_is_told_once_and_only_when_it_takes_long() -> None:
    said: list[str] = []
    source = "import time; print('ready', flush=True)\nwhile True: time.sleep(0.2)"
    with program(source) as child:
        result = engine.attach([child.pid], AttachOptions(bpf=False), progress=said.append)
    assert len(said) <= 1
    assert result.evidence.window_s <= AttachOptions().max_window_s + GRACE_S
    assert result.report.attached_to == (child.pid,)
