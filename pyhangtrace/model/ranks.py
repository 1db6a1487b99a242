"""Rank sets as people read them: `0-2,4-7`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# Variables whose values all processes of one job share, the surest first. Each entry is one identity: all its names
# must be there.
JOB_VARIABLES: tuple[tuple[str, ...], ...] = (
    ("MASTER_ADDR", "MASTER_PORT"),
    ("TORCHELASTIC_RUN_ID", "MASTER_PORT"),
    ("VLLM_DIST_IDENT",),
    ("SGLANG_RUN_ID",),
    ("PMIX_NAMESPACE",),
    ("OMPI_MCA_ess_base_jobid",),
    ("PMI_KVSNAME",),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("RAY_JOB_ID",),
)

# What a worker of Ray has that was started before anybody needed it.
_NOBODYS = {"RAY_JOB_ID": "ffffffff"}


def job_identity(values: Mapping[str, str]) -> tuple[str, ...] | None:
    """What tells a process' job from others, by its environment: ("MASTER_ADDR=...", "MASTER_PORT=..."); None if
    nothing does.
    """
    for names in JOB_VARIABLES:
        if all(values.get(name) and values[name] != _NOBODYS.get(name) for name in names):
            return tuple(f"{name}={values[name]}" for name in names)
    return None


def fold(ranks: Iterable[int]) -> str:
    """Folds ranks into ranges: {0, 1, 2, 4} gives "0-2,4"; duplicates count once; no ranks give ""."""
    ordered = sorted(set(ranks))
    parts: list[str] = []
    start = 0
    while start < len(ordered):
        end = start
        while end + 1 < len(ordered) and ordered[end + 1] == ordered[end] + 1:
            end += 1
        first, last = ordered[start], ordered[end]
        parts.append(str(first) if first == last else f"{first}-{last}")
        start = end + 1
    return ",".join(parts)
