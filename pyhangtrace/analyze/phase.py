"""What the workload is doing, by the functions its ranks are in. Rules as data, the most specific first."""

from __future__ import annotations

from collections.abc import Sequence

from pyhangtrace.analyze.calls import python_frames, short
from pyhangtrace.analyze.scene import Scene
from pyhangtrace.model.report import Loading, Phase

_BY_FUNCTION: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "graph_capture",
        (
            "capture_model",
            "init_cuda_graphs",
            "capture_cuda_graphs",
            "capture_decode_graph",
            "capture_prefill_graph",
            "capture_graph",
        ),
    ),
    ("compile", ("compile_or_warm_up_model", "_jit_compile", "compile_fx", "load_inline", "cpp_extension")),
    (
        "weight_loading",
        ("load_weights", "load_model", "safe_open", "load_state_dict", "dist_barrier_after_load"),
    ),
    (
        "memory_setup",
        (
            "determine_available_memory",
            "profile_run",
            "initialize_kv_cache",
            "alloc_memory_pool",
            "init_memory_pools",
        ),
    ),
    ("rendezvous", ("init_process_group", "init_torch_distributed", "init_worker_distributed_environment")),
    ("checkpoint", ("save_checkpoint", "load_checkpoint", "async_save")),
    (
        "serving",
        ("worker_busy_loop", "event_loop_normal", "event_loop_overlap", "event_loop_pp", "execute_model"),
    ),
    ("backward", ("_engine_run_backward",)),
)


# In these a rank reads what somebody may wonder about.
_READING = ("weight_loading", "checkpoint")


def reads_files(scene: Scene) -> bool:
    """Whether most ranks are in a phase in which big files are read."""
    phase = phase_of(scene)
    return phase is not None and phase.name in _READING


def with_progress(phase: Phase | None, loading: Sequence[Loading]) -> Phase | None:
    """The phase with how far the files of it are, which of several is read fastest; unchanged in other phases."""
    if phase is None or phase.name not in _READING or not loading:
        return phase
    best = max(loading, key=lambda one: one.rate_bytes_per_s or 0.0)
    return Phase(
        name=phase.name,
        detail=best.summary,
        rate_bytes_per_s=best.rate_bytes_per_s,
        eta_s=best.eta_s,
        source=phase.source,
    )


def phase_of(scene: Scene) -> Phase | None:
    """The phase most ranks are in by their stacks, None if no rule knows them."""
    counts: dict[str, int] = {}
    for pid in scene.who.pid_of_rank.values():
        names = {
            short(frame.function)
            for key in scene.threads_of(pid)
            if (sample := scene.thread(key)) is not None
            for frame in python_frames(sample.frames)
        }
        for phase, functions in _BY_FUNCTION:
            if names.intersection(functions):
                counts[phase] = counts.get(phase, 0) + 1
                break
    if not counts:
        return None
    order = [phase for phase, _ in _BY_FUNCTION]
    return Phase(name=min(counts, key=lambda phase: (-counts[phase], order.index(phase))), source="stack")
