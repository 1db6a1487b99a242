"""A plug-in for both engines, loaded through their own entry points: says who is which rank, and stops one where told.

``ENGINE_HANG`` is ``POINT:RANK:WAY``: at that point of the engine's work the process of that rank (``*``: each) goes
that way, the others go on. The points of serving do so only once the file ``ENGINE_ARMED`` exists, so that a server
starts well.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

import announce
import hangtrace_ways

POINT, _RANK, WAY = os.environ.get("ENGINE_HANG", "never:0:none").split(":")
RANK = None if _RANK == "*" else int(_RANK)


def _armed() -> bool:
    return os.path.exists(os.environ["ENGINE_ARMED"])


def _passes(point: str, rank: int) -> None:
    """A rank comes by one of the points."""
    if point == POINT and RANK in (None, rank):
        hangtrace_ways.go(WAY, rank)


def _before(owner: Any, name: str, action: Callable[..., None]) -> None:
    """Runs `action` with the same arguments before each call of a function of `owner`."""
    plain = inspect.getattr_static(owner, name)
    function = plain.__func__ if isinstance(plain, staticmethod) else plain

    @functools.wraps(function)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        action(*arguments, **options)
        return function(*arguments, **options)

    setattr(owner, name, staticmethod(wrapped) if isinstance(plain, staticmethod) else wrapped)


def _at_load(*_: Any, **_options: Any) -> None:
    import torch.distributed as dist

    announce.member(f"rank{dist.get_rank()}")
    hangtrace_ways.map_weights()
    _passes("load", dist.get_rank())


def _at_all_reduce(group: Any, *_: Any, **_options: Any) -> None:
    if POINT == "all_reduce" and _armed():
        _passes("all_reduce", group.rank_in_group)


def _at_warm_up(*_: Any, **_options: Any) -> None:
    import torch.distributed as dist

    _passes("warm_up", dist.get_rank())


def vllm() -> None:
    """Entry point of group ``vllm.general_plugins``."""
    from vllm.distributed import parallel_state
    from vllm.distributed.device_communicators import cpu_communicator
    from vllm.model_executor.model_loader import default_loader
    from vllm.v1.executor import multiproc_executor
    from vllm.v1.worker import cpu_model_runner

    _before(default_loader.DefaultModelLoader, "load_weights", _at_load)
    _before(parallel_state.GroupCoordinator, "_all_reduce_out_place", _at_all_reduce)
    _before(cpu_model_runner.CPUModelRunner, "_dummy_run", _at_warm_up)
    if os.environ.get("ENGINE_GLOO"):
        # vLLM's own all-reduce over shared memory is for ranks of one host only.
        cpu_communicator.CpuCommunicator._all_group_ranks_share_shm_group_name = lambda _self: False
    answer = multiproc_executor.WorkerProc.handle_output

    @functools.wraps(answer)
    def handle_output(self: Any, output: Any) -> None:
        if POINT == "answer" and self.rank == RANK and _armed():
            return  # the answer is lost
        answer(self, output)

    multiproc_executor.WorkerProc.handle_output = handle_output


def sglang() -> None:
    """Entry point of group ``sglang.srt.plugins``."""
    from sglang.srt.distributed import parallel_state
    from sglang.srt.model_loader import loader

    _before(loader.DefaultModelLoader, "load_weights_and_postprocess", _at_load)
    _before(parallel_state.GroupCoordinator, "all_reduce", _at_all_reduce)
