"""Where a worker is on each axis of parallelism, by its own coordinators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pyhangtrace.collect import coordinators

VLLM, SGLANG = "vllm.distributed.parallel_state", "sglang.srt.distributed.parallel_state"


def reader(module: str, groups: Mapping[str, tuple[Any, Any]]) -> coordinators.Globals:
    """A process in which this module has groups with (own place, members)."""

    def read(asked: str, names: Sequence[str]) -> list[Any]:
        known = {"rank_in_group": 0, "world_size": 1}
        split = [name.split(".") for name in names]
        if asked != module:
            return [None] * len(names)
        return [groups[group][known[field]] if group in groups else None for group, field in split]

    return read


@pytest.mark.parametrize(
    ("module", "groups", "coords"),
    [
        (VLLM, {"_TP": (1, 2), "_PP": (0, 1), "_DP": (3, 4)}, (("tp", 1), ("dp", 3))),
        (SGLANG, {"_TP": (0, 4), "_PP": (1, 2), "_MOE_EP": (2, 4)}, (("tp", 0), ("pp", 1), ("ep", 2))),
    ],
)
def test_each_axis_with_more_than_one_member_is_told(
    module: str, groups: Mapping[str, tuple[Any, Any]], coords: tuple[tuple[str, int], ...]
) -> None:
    found = coordinators.claim(reader(module, groups))
    assert found is not None
    assert (found.coords, found.rank, found.source) == (coords, None, "coordinator")
    assert found.framework == module.partition(".")[0]


@pytest.mark.parametrize("group", [(2, 2), (-1, 2), (0, 1), ("0", 2), (None, 2), (True, 2), (0, 1 << 30)])
def test_what_makes_no_sense_is_no_place(group: tuple[Any, Any]) -> None:
    assert coordinators.claim(reader(VLLM, {"_TP": group})) is None


def test_a_program_without_them_has_none() -> None:
    assert coordinators.claim(reader("other", {})) is None


@pytest.mark.parametrize("module", [VLLM, SGLANG])
def test_groups_are_called_what_their_coordinator_is(module: str) -> None:
    known = {
        "_TP.unique_name": "tp:0",
        "_TP.device_group": {"type": "ProcessGroup", "address": 0x10},
        "_TP.cpu_group": {"type": "ProcessGroup", "address": 0x20},
        "_WORLD.unique_name": "world:0",
        "_WORLD.device_group": {"type": "ProcessGroup", "address": 0x30},
        "_WORLD.cpu_group": {"type": "ProcessGroup", "address": 0x30},  # one for both
        "_PP.unique_name": None,
        "_PP.device_group": {"type": "ProcessGroup", "address": 0x40},
    }

    def read(asked: str, names: Sequence[str]) -> list[Any]:
        return [known.get(name) if asked == module else None for name in names]

    assert coordinators.group_names(read) == {0x10: "tp:0", 0x20: "tp:0 (cpu)", 0x30: "world:0"}
