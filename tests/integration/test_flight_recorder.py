"""The flight recorder of a job that hangs, read from outside, against what torch says of itself in the same process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace.cli.main import main
from pyhangtrace.collect import flight_recorder
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.render.flight_recorder import entry

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

RANKS = 3
PROGRAM = """
import os, pickle, sys, time
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=3)
pair = dist.new_group([0, 1], group_desc="a pair with a name of more than fifteen characters")

class Layer:
    def forward(self, rounds):
        for number in range(rounds):
            if rank < 2:
                dist.all_reduce(torch.ones(3, number + 1), group=pair)
            (lambda: dist.all_gather([torch.zeros(2, 1, 1, 1, 1) for _ in range(3)], torch.ones(2, 1, 1, 1, 1)))()

Layer().forward(int(sys.argv[3]))
dist.broadcast(torch.ones(5, dtype=torch.bfloat16), 0)
dist.barrier()
dist.all_reduce(torch.ones((), dtype=torch.int64))
pending = 0 if rank == 2 else 1
if pending:
    # Rank 2 does not come to this.
    work = dist.all_reduce(torch.ones(7, 2), async_op=True)
# That an operation has ended is noted a moment after its waiter goes on.
deadline = time.monotonic() + 60
while True:
    trace = _dump_fr_trace()
    if sum(not entry["retired"] for entry in pickle.loads(trace)["entries"]) == pending:
        break
    if time.monotonic() > deadline:
        sys.exit("operations do not end")
    time.sleep(0.01)
with open(sys.argv[4], "wb") as file:
    file.write(trace)
print("SAID ready", flush=True)
if pending:
    work.wait()
sys.stdin.readline()
os._exit(0)
"""


@dataclass(frozen=True)
class Job:
    """What torch dumped is in `dumps`, one file a rank."""

    pids: list[int]
    dumps: Path

    def says(self, rank: int) -> dict[str, Any]:
        loaded: dict[str, Any] = pickle.loads((self.dumps / f"fr_{rank}").read_bytes())
        return loaded


@pytest.fixture(scope="module", params=["2", "30"], ids=["whole ring", "ring gone round"])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("job")
    dumps = folder / "torch"
    dumps.mkdir()
    env = {**os.environ, "TORCH_FR_BUFFER_SIZE": "16", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                PROGRAM,
                str(rank),
                str(folder / "store"),
                request.param,
                str(dumps / f"fr_{rank}"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        for rank in range(RANKS)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert any(line == "SAID ready\n" for line in process.stdout)
        yield Job([process.pid for process in started], dumps)
    finally:
        for process in started:
            process.kill()
            process.communicate()


def analyse(folder: Path) -> subprocess.CompletedProcess[str]:
    """What torch's own analyser says."""
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_each_field_is_what_torch_dumps(job: Job) -> None:
    with GuardedReader(TASKS) as reader:
        found = flight_recorder.collect(reader, job.pids, deadline_s=30.0)
    recorders = {each.pid: each for each in found}
    for rank, pid in enumerate(job.pids):
        says, recorder = job.says(rank), recorders[pid]
        assert says["entries"]
        assert [entry(each) for each in recorder.operations] == says["entries"]
        status = {
            str(each.pg_id): {
                "last_enqueued_collective": each.enqueued,
                "last_started_collective": each.started,
                "last_completed_collective": each.completed,
            }
            for each in recorder.progress
        }
        assert status == says["pg_status"]
        assert recorder.library_version == says["comm_lib_version"]
        assert recorder.whole is (len(says["entries"]) < 16)
        assert recorder.most == 16


def test_the_files_are_what_torch_s_analyser_takes(job: Job, tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    bundle = tmp_path / "job.hang"
    pids = ",".join(map(str, job.pids))
    assert main(["attach", pids, "--fr-dump", str(folder), "-o", str(bundle)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["fr_0", "fr_1", "fr_2"]
    for rank in range(RANKS):
        ours, says = pickle.loads((folder / f"fr_{rank}").read_bytes()), job.says(rank)
        assert {**ours, "pg_config": None} == {**says, "pg_config": None}
        groups = {(each["desc"], each["ranks"]) for each in ours["pg_config"].values()}
        pair = {("a pair with a name of more than fifteen characters", "[0, 1]")} if rank < 2 else set()
        assert groups == {("default_pg", "[0, 1, 2]"), *pair}
    # What torch itself writes for gloo it cannot read again.
    assert analyse(job.dumps).returncode != 0
    done = analyse(folder)
    assert done.returncode == 0, done.stderr
    assert "Not all ranks joining collective" in done.stdout + done.stderr
    assert "missing ranks: {2}" in done.stdout + done.stderr
    again = tmp_path / "again"
    assert main(["report", str(bundle), "--fr-dump", str(again)]) == 0
    for path in folder.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes()
