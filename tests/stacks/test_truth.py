"""No frame of ours is wrong, and hardly any stack is short: compared with debuggers on programs of many kinds."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace import _native
from tests.hangs.processes import descendants
from tests.stacks import truth
from tests.stacks.job import PROGRAMS, compiled, hung_job, settle, started
from tests.versions.interpreters import VERSIONS, interpreter

ZOO = Path(__file__).parents[2] / "native" / "tests" / "unwind_target.cpp"
#: How it is built, and the least share of its threads that must be complete by what anybody may read. The rest are
#: functions with moving stacks that one pointer or another may have called: only their registers tell.
BUILDS = {
    "O2": (("-O2", "-fomit-frame-pointer"), 0.97),
    "O0": (("-O0",), 0.97),
    "O2-frame-pointers": (("-O2", "-fno-omit-frame-pointer"), 0.97),
    "O3-no-plt": (("-O3", "-fno-plt", "-fcf-protection=full"), 0.97),
}
COMPLETE = 0.995  # of the sleeping threads of everything else
QUICK_BUILD = "O2-frame-pointers"
MOMENTS = 6

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        os.uname().machine != "x86_64", reason="needs x86-64: (PC, SP) alone is not enough elsewhere"
    ),
]


@pytest.fixture(autouse=True)
def debuggers() -> None:
    if (why := truth.missing()) is not None:
        pytest.skip(why)


def assert_true(tally: truth.Tally, *, complete: float = COMPLETE) -> None:
    print(f"\n  {tally}")
    assert not tally.wrong, "\n".join(tally.wrong[:10])
    assert not tally.changed, "\n".join(tally.changed[:10])
    assert tally.completeness >= complete, "\n".join([str(tally), *tally.incomplete[:10]])


def but_one_slow(names: Iterable[str], quick: str) -> list[Any]:
    return [name if name == quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("build", but_one_slow(BUILDS, QUICK_BUILD))
def test_shapes_of_functions_and_blocking_calls(build: str, tmp_path: Path) -> None:
    flags, complete = BUILDS[build]
    program = compiled(ZOO, tmp_path, *flags)
    with started([[str(program)]], ready=b"end\n") as pids:
        settle(pids)
        tally = truth.compare(pids)
    assert tally.threads > 300
    assert tally.compared > 300
    assert_true(tally, complete=complete)


def test_a_wrong_stack_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = truth.native_peers()

    def forged(pid: int) -> truth.Pcs:
        stacks = next(iter(honest.values()))(pid)
        return {tid: (*pcs[:2], pcs[2] + 1, *pcs[3:]) for tid, pcs in stacks.items()}

    monkeypatch.setattr(truth, "native_peers", lambda: {"forged": forged})
    with started([[sys.executable, str(PROGRAMS / "python_waits.py")]]) as pids:
        settle(pids)
        tally = truth.compare(pids)
    assert tally.compared > 30
    assert len(tally.wrong) >= tally.compared


@pytest.mark.parametrize("version", but_one_slow(VERSIONS, f"{sys.version_info[0]}.{sys.version_info[1]}"))
def test_python(version: str) -> None:
    with started([[interpreter(version), str(PROGRAMS / "python_waits.py")]]) as pids:
        settle(pids)
        tally = truth.compare(pids, python=True)
    assert tally.threads > 30
    assert tally.python > 30
    assert_true(tally)


@pytest.mark.slow
@pytest.mark.torch
def test_a_hung_job() -> None:
    with hung_job(world=2) as job:
        tally = truth.compare(job.pids, python=True)
    assert tally.threads > 80
    assert_true(tally)


@pytest.fixture
def training(tmp_path: Path) -> Iterator[tuple[int, ...]]:
    command = [sys.executable, str(PROGRAMS / "train.py")]
    with started([[*command, str(rank), "2", str(tmp_path / "store")] for rank in range(2)]) as pids:
        yield pids


@pytest.mark.slow
@pytest.mark.torch
def test_a_training_that_goes_on(training: tuple[int, ...]) -> None:
    whole = truth.Tally()
    for _ in range(MOMENTS):
        for pid in training:
            tally = truth.compare([pid], python=True)
            whole.threads += tally.threads
            whole.complete += tally.complete
            whole.compared += tally.compared
            whole.frames += tally.frames
            whole.python += tally.python
            whole.wrong += tally.wrong
            whole.changed += tally.changed
            whole.incomplete += tally.incomplete
    assert_true(whole)


@pytest.mark.slow
@pytest.mark.torch
def test_sleeping_threads_of_a_training_are_complete(training: tuple[int, ...]) -> None:
    engine = _native.Engine(truth.WITHOUT_RUNGS)
    asleep = complete = 0
    for _ in range(100):
        for process in engine.capture(training, python=False):
            for thread in process["threads"]:
                if not thread["moved"] and thread["syscall"] is not None:
                    asleep += 1
                    complete += thread["complete"]
        time.sleep(0.01)  # another moment of the training
    print(f"\n  {complete} of {asleep} complete")
    assert asleep > 1000
    assert complete >= COMPLETE * asleep


@pytest.mark.slow
def test_mpi(tmp_path: Path) -> None:
    if shutil.which("mpicc") is None or shutil.which("mpirun") is None:
        pytest.skip("needs MPI (mpicc, mpirun)")
    program = tmp_path / "mpi_waits"
    command = ["mpicc", "-O2", "-o", program, PROGRAMS / "mpi_waits.c"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if "mpi.h: No such file" in done.stderr:
        pytest.skip("needs the headers of MPI")
    assert done.returncode == 0, done.stderr
    options = ["--allow-run-as-root", "--oversubscribe", "-n", "2"]
    if b"Open MPI" not in subprocess.run(["mpirun", "--version"], capture_output=True, check=True).stdout:
        options = ["-n", "2"]
    with started([["mpirun", *options, str(program)]]) as pids:
        ranks = sorted(pid for pid in descendants(pids[0]) if Path(f"/proc/{pid}/exe").readlink() == program)
        assert len(ranks) == 2
        tally = truth.compare([*ranks, *pids])
    assert tally.threads >= 4
    assert_true(tally)


@pytest.mark.slow
def test_jax() -> None:
    if importlib.util.find_spec("jax") is None:
        pytest.skip("needs JAX")
    # Its thread pools sleep, the thread that runs the compiled function waits in Python.
    environ = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    with started([[sys.executable, str(PROGRAMS / "jax_waits.py")]], environ=environ) as pids:
        settle(pids)
        tally = truth.compare(pids, python=True)
    assert tally.threads > 4
    assert_true(tally)
