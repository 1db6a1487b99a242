"""Where a worker of a serving engine is on each axis of parallelism, and what its groups are called, as its
coordinators of groups have it.

vLLM and SGLang keep one object a group in the module dictionary of parallel_state (vllm/distributed 0.6 to 0.32,
sglang/srt/distributed 0.4 to 0.5), with the own place (`rank_in_group`), the number of members (`world_size`), a name
(`unique_name`: "tp:0") and two process groups of torch, one for tensors and one of gloo, which have no name of their
own. A title says the places later, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyhangtrace.model.processes import RankClaim

if TYPE_CHECKING:
    from pyhangtrace._native import PythonValue

#: Values of names in a module of the target; None for each that is not there.
Globals = Callable[[str, Sequence[str]], Sequence["PythonValue"]]

SOURCE = "coordinator"
_AXES = {
    "vllm.distributed.parallel_state": {
        "_TP": "tp",
        "_PP": "pp",
        "_DP": "dp",
        "_EP": "ep",
        "_PCP": "pcp",
        "_DCP": "dcp",
    },
    "sglang.srt.distributed.parallel_state": {
        "_TP": "tp",
        "_PP": "pp",
        "_MOE_EP": "ep",
        "_MOE_DP": "moe_dp",
        "_ATTN_CP": "attn_cp",
    },
}
# Beside the axes.
_MORE = {
    "vllm.distributed.parallel_state": ("_WORLD", "_INNER_DP_WORLD", "_ETP", "_EPLB"),
    "sglang.srt.distributed.parallel_state": ("_WORLD", "_MOE_TP", "_ATTN_TP", "_DCP"),
}
_MOST = 1 << 20


def claim(read: Globals) -> RankClaim | None:
    """What the coordinators of one process say; None if it has none. Axes of a single member are left out."""
    for module, axes in _AXES.items():
        names = [f"{name}.{field}" for name in axes for field in ("rank_in_group", "world_size")]
        values = read(module, names)
        places = tuple(
            (axis, place)
            for axis, place, size in zip(axes.values(), values[::2], values[1::2], strict=True)
            if _is_place(place, size) and isinstance(place, int)
        )
        if places:
            return RankClaim(source=SOURCE, coords=places, framework=module.partition(".")[0])
    return None


def group_names(read: Globals) -> dict[int, str]:
    """What the coordinators of one process call their process groups, by the address of the Python object."""
    found: dict[int, str] = {}
    for module, axes in _AXES.items():
        coordinators = (*axes, *_MORE[module])
        fields = ("unique_name", "device_group", "cpu_group")
        values = read(module, [f"{each}.{field}" for each in coordinators for field in fields])
        for name, of_tensors, of_gloo in zip(values[::3], values[1::3], values[2::3], strict=True):
            if not isinstance(name, str):
                continue
            if isinstance(of_gloo, dict):
                found[of_gloo["address"]] = f"{name} (cpu)"
            if isinstance(of_tensors, dict):
                found[of_tensors["address"]] = name
        if found:
            break
    return found


def _is_place(place: PythonValue, size: PythonValue) -> bool:
    if not isinstance(place, int) or not isinstance(size, int) or isinstance(place, bool):
        return False
    return 1 < size <= _MOST and 0 <= place < size
