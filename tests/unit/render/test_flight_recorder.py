"""Files for torch's own analyser, from what recorders held."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace.cli.main import main
from pyhangtrace.model.codec import pack
from pyhangtrace.model.evidence import Evidence, SourceStatus
from pyhangtrace.model.groups import ProcessGroupFacts
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.recorders import GroupProgress, RecordedFrame, RecordedOperation, RecorderFacts
from pyhangtrace.render.flight_recorder import dumps, entry
from tests.unit.analyze import builders as b

CPU, CUDA = "libtorch_cpu.so", "libtorch_cuda.so"


def operation(number: int, **changes: Any) -> RecordedOperation:
    made: dict[str, Any] = {
        "id": number - 1,
        "group": "0",
        "description": "default_pg",
        "name": "gloo:all_reduce",
        "collective": number,
        "inputs": ((4, 2),),
        "input_dtypes": ("Float",),
        "frames": (RecordedFrame(function="Layer.forward.<locals>.<lambda>", file="train.py", line=7),),
    }
    return RecordedOperation(**{**made, **changes})


def recorder(rank: int, *operations: RecordedOperation, library: str = CPU) -> RecorderFacts:
    progress = (GroupProgress(pg_id=0, enqueued=3, started=-1, completed=2),)
    return RecorderFacts(pid=100 + rank, library=library, operations=operations, progress=progress)


def group(rank: int, name: str = "0", **changes: Any) -> ProcessGroupFacts:
    made: dict[str, Any] = {"pid": 100 + rank, "name": name, "ranks": (0, 1), "rank": rank}
    return ProcessGroupFacts(**{**made, **changes})


def evidence(*recorders: RecorderFacts, groups: tuple[ProcessGroupFacts, ...] | None = None) -> Evidence:
    made = b.evidence(b.ranks(2), b.twice(b.in_collective(100), b.in_collective(101)))
    return replace(made, recorders=recorders, groups=(group(0), group(1)) if groups is None else groups)


def test_a_rank_that_has_recorded_nothing_has_a_file_too() -> None:
    files = dumps(evidence(recorder(0, operation(1)), recorder(1)))
    assert sorted(files) == ["fr_0", "fr_1"]
    first, second = (pickle.loads(files[name]) for name in sorted(files))
    assert first["version"] == second["version"]
    assert [each["collective_seq_id"] for each in first["entries"]] == [1]
    assert second["entries"] == []
    assert first["pg_config"] == {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    assert first["pg_status"]["0"] == {
        "last_enqueued_collective": 3,
        "last_started_collective": -1,
        "last_completed_collective": 2,
    }


def test_operations_of_a_group_that_is_gone_are_left_out() -> None:
    gone = operation(1, group="7", description="tp")
    files = dumps(evidence(recorder(0, gone, operation(1))))
    assert [each["process_group"] for each in pickle.loads(files["fr_0"])["entries"]] == [("0", "default_pg")]


def test_a_group_without_a_description_is_called_as_torch_calls_it() -> None:
    groups = (group(0), group(0, "7", description="tp"), group(0, "9", called="tp:0"))
    config = pickle.loads(dumps(evidence(recorder(0, operation(1)), groups=groups))["fr_0"])["pg_config"]
    assert {name: each["desc"] for name, each in config.items()} == {
        "0": "default_pg",
        "7": "tp",
        "9": "undefined",
    }


def test_recorders_of_two_backends_count_apart() -> None:
    both = [recorder(0, operation(1)), recorder(0, operation(1, name="nccl:all_reduce"), library=CUDA)]
    assert sorted(dumps(evidence(*both))) == ["fr_cpu_0", "fr_cuda_0"]
    # One that holds nothing is of a backend that is not used.
    assert sorted(dumps(evidence(recorder(0, operation(1)), recorder(0, library=CUDA)))) == ["fr_0"]


def test_whose_rank_is_not_known_has_no_file() -> None:
    assert dumps(evidence(recorder(0, operation(1)), groups=(replace(group(0), rank=None),))) == {}
    assert dumps(evidence()) == {}


def test_a_forked_child_has_an_old_copy_of_its_parent_s() -> None:
    parent = replace(recorder(0, operation(1), operation(2)), recorded=2)
    child = replace(recorder(0, operation(1)), pid=300, recorded=1)
    groups = (group(0), replace(group(0), pid=300))
    for order in ((parent, child), (child, parent)):
        assert len(pickle.loads(dumps(evidence(*order, groups=groups))["fr_0"])["entries"]) == 2


def test_how_far_an_operation_is() -> None:
    assert entry(operation(1))["state"] == "scheduled"
    assert entry(operation(1, started_ns=5))["state"] == "started"
    done = entry(operation(1, started_ns=5, completed_ns=6, duration_ms=0.5))
    assert (done["state"], done["duration_ms"]) == ("completed", 0.5)
    assert done["frames"] == [{"name": "<lambda>", "filename": "train.py", "line": 7}]
    assert "duration_ms" not in entry(operation(1))


def test_the_folder_must_be_new_or_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = tmp_path / "job.hang"
    bundle.write_bytes(pack(evidence(recorder(0, operation(1)), recorder(1))))
    folder = tmp_path / "dumps"
    assert main(["report", str(bundle), "--fr-dump", str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["fr_0", "fr_1"]
    assert main(["report", str(bundle), "--fr-dump", str(folder)]) == 2
    assert "no empty folder" in capsys.readouterr().err
    assert main(["report", str(bundle), "--fr-dump", str(tmp_path / "no" / "such")]) == 2


def test_where_there_is_none_it_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    off = SourceStatus(
        source="flight recorder",
        state=SourceState.ABSENT,
        reason="it is off",
        fix="TORCH_FR_BUFFER_SIZE=2000",
    )
    bundle = tmp_path / "job.hang"
    bundle.write_bytes(pack(replace(evidence(), coverage=(off,))))
    assert main(["report", str(bundle), "--fr-dump", str(tmp_path / "dumps")]) == 6
    said = capsys.readouterr()
    assert "it is off" in said.err
    assert "TORCH_FR_BUFFER_SIZE" in said.err
    assert said.out
    assert not (tmp_path / "dumps").exists()
