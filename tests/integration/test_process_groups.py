"""The reader of process groups against what torch says of itself in the same process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pyhangtrace.collect import process_groups
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.model.threads import ThreadSample

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

PROGRAM = """
import json, os, sys, time
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace_json
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
pair = dist.new_group([1, 0], group_desc="pair")
for number in range(int(sys.argv[3])):
    dist.all_reduce(torch.ones(3, number + 1), group=pair)
dist.all_reduce(torch.ones(5, dtype=torch.int64))
if rank == 0:
    # The other one does not come to this.
    work = dist.all_gather([torch.zeros(2, 2), torch.zeros(2, 2)], torch.ones(2, 2), group=pair, async_op=True)
# That an operation has ended is noted a moment after its waiter goes on.
deadline = time.monotonic() + 30
while True:
    trace = json.loads(_dump_fr_trace_json())
    if sum(not entry["retired"] for entry in trace["entries"]) == (rank == 0) or time.monotonic() > deadline:
        break
    time.sleep(0.01)
groups = {group.group_name: dist.get_process_group_ranks(group) for group in (dist.group.WORLD, pair)}
print(json.dumps({"pid": os.getpid(), "groups": groups, "trace": trace}), flush=True)
sys.stdin.readline()
os._exit(0)
"""


@pytest.fixture(params=["2", "30"])
def told(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[list[dict[str, Any]]]:
    """Two ranks, and what each says of itself; in the second run their rings have gone round."""
    env = {**os.environ, "TORCH_FR_BUFFER_SIZE": "16", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(tmp_path / "store"), request.param],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        for rank in (0, 1)
    ]
    try:
        lines = [process.stdout.readline() for process in started if process.stdout is not None]
        yield [json.loads(line) for line in lines]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_groups_and_operations_are_those_that_torch_reports(told: list[dict[str, Any]]) -> None:
    samples = [ThreadSample(pid=one["pid"], tid=one["pid"], comm="pt_gloo_runloop") for one in told]
    with GuardedReader(TASKS) as reader:
        found = process_groups.collect(
            reader, [one["pid"] for one in told], samples, after=1, deadline_s=30.0
        )
    for rank, says in enumerate(told):
        groups = {group.name: group for group in found.groups if group.pid == says["pid"]}
        assert {name: list(group.ranks) for name, group in groups.items()} == says["groups"]
        assert {group.rank for group in groups.values()} == {rank}
        assert {group.description for group in groups.values()} == {"default_pg", "pair"}
        entries = says["trace"]["entries"]
        for name, group in groups.items():
            own = [entry for entry in entries if entry["process_group"][0] == name]
            assert group.recorded is bool(own)
            assert group.begun == max((entry["collective_seq_id"] for entry in own), default=0)
            pending = [entry for entry in own if not entry["retired"]]
            assert [one.op for one in group.pending] == [
                entry["profiling_name"].partition(":")[2] for entry in pending
            ]
            for one, entry in zip(group.pending, pending, strict=True):
                assert [list(shape) for shape in one.inputs] == entry["input_sizes"]
                assert [list(shape) for shape in one.outputs] == entry["output_sizes"]
                assert one.dtype == "float32"
                assert entry["input_dtypes"] == ["Float"]
    assert any(group.pending for group in found.groups if group.pid == told[0]["pid"])
