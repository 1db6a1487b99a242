"""What the workload is doing: by the functions its ranks are in, else by its log. Rules as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyhangtrace.analyze.calls import path_has, python_frames, short
from pyhangtrace.analyze.scene import Scene
from pyhangtrace.model.logs import SHUTDOWN, LogMark
from pyhangtrace.model.ranks import fold
from pyhangtrace.model.report import PHASE_ENDED, Loading, Phase
from pyhangtrace.model.stacks import Frame

# Phases in the order in which a server or a job starts: while one rank is in an earlier one, the job is.
STARTING = (
    "rendezvous",
    "weight_loading",
    "draft_loading",
    "barrier_after_load",
    "memory_setup",
    "warm_up",
    "graph_capture",
)
# Whoever loads weights below these loads those of the draft model.
_OF_DRAFTS = ("vllm/v1/spec_decode/", "sglang/srt/speculative/")


@dataclass(frozen=True, slots=True)
class _Mark:
    """Functions that belong to a phase, in any of these places; no place: such a name says it anywhere."""

    phase: str
    functions: tuple[str, ...]
    places: tuple[str, ...] = ()


_VLLM = ("vllm/",)
_SGLANG = ("sglang/",)
_DISTRIBUTED = "torch/distributed/distributed_c10d.py"

# vLLM 0.8 to 0.32, SGLang 0.4 to 0.5, torch 2.x, Megatron-Core, DeepSpeed, transformers.
MARKS = (
    _Mark(
        "rendezvous",
        (
            "init_process_group",
            "new_group",
            "_new_group_with_tag",
            "_new_process_group_helper",
            "split_group",
        ),
        (_DISTRIBUTED,),
    ),
    _Mark("rendezvous", ("init_worker_distributed_environment", "init_distributed_environment"), _VLLM),
    _Mark("rendezvous", ("init_torch_distributed", "init_parallel_runtime"), _SGLANG),
    _Mark("rendezvous", ("init_process_group",)),
    _Mark("weight_loading", ("load_model",), (*_VLLM, *_SGLANG)),
    _Mark("weight_loading", ("load_weights", "load_weights_and_postprocess", "load_state_dict", "safe_open")),
    _Mark("weight_loading", ("from_pretrained", "_load_pretrained_model"), ("transformers/",)),
    _Mark("weight_loading", ("load_file", "load_model"), ("safetensors/torch.py",)),
    _Mark("barrier_after_load", ("dist_barrier_after_load",)),
    _Mark(
        "memory_setup", ("determine_available_memory", "initialize_kv_cache", "initialize_from_config"), _VLLM
    ),
    _Mark("memory_setup", ("alloc_memory_pool", "init_memory_pools", "init_memory_pool"), _SGLANG),
    _Mark("warm_up", ("compile_or_warm_up_model", "warming_up_model", "kernel_warmup", "profile_run"), _VLLM),
    _Mark("warm_up", ("kernel_warmup",), _SGLANG),
    _Mark("graph_capture", ("capture_model",), _VLLM),
    _Mark(
        "graph_capture",
        (
            "init_cuda_graphs",
            "init_device_graphs",
            "capture_cuda_graphs",
            "capture_decode_graph",
            "capture_prefill_graph",
        ),
        _SGLANG,
    ),
    _Mark("graph_capture", ("capture_one_batch_size", "capture"), ("sglang/srt/model_executor/",)),
    _Mark("graph_capture", ("capture_begin", "make_graphed_callables"), ("torch/cuda/graphs.py",)),
    _Mark("compile", ("_jit_compile", "load_inline"), ("torch/utils/cpp_extension.py",)),
    _Mark(
        "compile",
        ("compile_fx", "_compile", "codegen_and_compile", "_compile_to_module"),
        ("torch/_inductor/", "torch/_dynamo/"),
    ),
    _Mark("compile", ("compile", "_do_compile"), ("triton/compiler/", "triton/runtime/")),
    _Mark("checkpoint", ("save_checkpoint", "load_checkpoint")),
    _Mark("checkpoint", ("save", "async_save", "load"), ("torch/distributed/checkpoint/",)),
    _Mark("serving", ("worker_busy_loop", "run_busy_loop", "execute_model"), _VLLM),
    _Mark("serving", ("event_loop_normal", "event_loop_overlap", "event_loop_pp"), _SGLANG),
    _Mark("backward", ("_engine_run_backward",), ("torch/autograd/",)),
)


# In these a rank reads what somebody may wonder about.
_READING = ("weight_loading", "draft_loading", "checkpoint")


def reads_files(scene: Scene) -> bool:
    """Whether most ranks are in a phase in which big files are read."""
    phase = phase_of(scene)
    return phase is not None and phase.name in _READING and phase.detail != PHASE_ENDED


def with_progress(phase: Phase | None, loading: Sequence[Loading]) -> Phase | None:
    """The phase with how far the files of it are, which of several is read fastest; unchanged in other phases."""
    if phase is None or phase.name not in _READING or phase.detail == PHASE_ENDED or not loading:
        return phase
    best = max(loading, key=lambda one: one.rate_bytes_per_s or 0.0)
    return Phase(
        name=phase.name,
        detail="; ".join(each for each in (best.summary, phase.detail) if each),
        rate_bytes_per_s=best.rate_bytes_per_s,
        eta_s=best.eta_s,
        source=phase.source,
    )


def _by_function() -> Mapping[str, tuple[_Mark, ...]]:
    found: dict[str, tuple[_Mark, ...]] = {}
    for mark in MARKS:
        for function in mark.functions:
            found[function] = (*found.get(function, ()), mark)
    return found


_BY_FUNCTION = _by_function()


def phase_of(scene: Scene) -> Phase | None:
    """What the job does; None if nothing tells."""
    ranks: dict[str, list[int]] = {}
    for rank, pid in sorted(scene.who.pid_of_rank.items()):
        phase = _of_process(scene, pid)
        if phase is not None:
            ranks.setdefault(phase, []).append(rank)
    said = _by_log(scene.evidence.log_marks)
    if not ranks or (said is not None and said.name == SHUTDOWN):
        return said
    starting = [phase for phase in STARTING if phase in ranks]
    order = list(ranks)
    name = starting[0] if starting else min(ranks, key=lambda phase: (-len(ranks[phase]), order.index(phase)))
    details = []
    if said is not None and said.name == name and said.detail != PHASE_ENDED and said.detail is not None:
        details.append(said.detail)
    if len(ranks) > 1:
        details.append(_who_is_where(name, ranks))
    return Phase(name=name, detail="; ".join(details) or None, source="stack")


def _of_process(scene: Scene, pid: int) -> str | None:
    """By its main thread, where that tells one."""
    keys = sorted(scene.threads_of(pid), key=lambda key: (key[0] != key[1], key))
    for key in keys:
        sample = scene.thread(key)
        phase = of_frames(sample.frames) if sample is not None else None
        if phase is not None:
            return phase
    return None


def of_frames(frames: Iterable[Frame]) -> str | None:
    """The phase that the innermost frame which tells one is in."""
    stack = tuple(python_frames(tuple(frames)))
    for index, frame in enumerate(stack):
        for mark in _BY_FUNCTION.get(short(frame.function), ()):
            if not mark.places or _is_in(frame, mark.places):
                of_draft = mark.phase == "weight_loading" and any(
                    _is_in(caller, _OF_DRAFTS) for caller in stack[index:]
                )
                return "draft_loading" if of_draft else mark.phase
    return None


def _is_in(frame: Frame, places: Iterable[str]) -> bool:
    return any(path_has(frame.file, place) for place in places)


def _who_is_where(name: str, ranks: Mapping[str, list[int]]) -> str:
    """Ranks of this phase, and those of the others."""
    parts = [f"{_ranks(ranks[name])}"]
    parts += [
        f"{_ranks(each)} in {Phase(name=phase).words}" for phase, each in ranks.items() if phase != name
    ]
    return ", ".join(parts)


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {fold(ranks)}"


def _by_log(marks: Sequence[LogMark]) -> Phase | None:
    """The earliest of what several logs say: a rank that is late has not said more. That of an end goes before all."""
    ends = next((mark for mark in marks if mark.phase == SHUTDOWN), None)
    if ends is not None:
        return Phase(name=SHUTDOWN, detail=ends.detail, source="log")
    found = [mark for mark in marks if mark.phase in STARTING or mark.phase in ("compile", "serving")]
    if not found:
        return None
    order = (*STARTING[:-1], "compile", STARTING[-1], "serving")
    first = min(found, key=lambda mark: (order.index(mark.phase), mark.ended))
    return Phase(name=first.phase, detail=PHASE_ENDED if first.ended else first.detail, source="log")
