"""Where a worker of a serving engine is on each axis of parallelism, as its coordinators of groups have it.

vLLM and SGLang keep one object a group in the module dictionary of parallel_state (vllm/distributed 0.6 to 0.32,
sglang/srt/distributed 0.4 to 0.5), with the own place (`rank_in_group`) and the number of members (`world_size`). A
title says the same later, or not at all.
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


def _is_place(place: PythonValue, size: PythonValue) -> bool:
    if not isinstance(place, int) or not isinstance(size, int) or isinstance(place, bool):
        return False
    return 1 < size <= _MOST and 0 <= place < size
