"""Builds the stand-in runtime, and makes cases of plans: real NCCL that really hangs, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from tests.hangs.facts import Case, Facts, Program, Waits
from tests.nccl.wheels import Wheel, library

HERE = Path(__file__).parent
BUILD_DEADLINE_S = 60.0
_FLAGS = (
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fPIC",
    "-shared",
    "-pthread",
)
_HIDDEN = "-fvisibility=hidden"

#: A name and arguments, as programs/rank.py has them.
Step: TypeAlias = "list[object]"


class CannotBuild(Exception):
    """There is no C compiler, or it refused; the text says what it said."""


class Transport(Enum):
    """What ranks of one host talk through."""

    SOCKETS = "sockets"
    SHARED_MEMORY = "shared memory"


@dataclass(frozen=True, slots=True)
class Runtime:
    """A folder with the libraries of the stand-in."""

    folder: Path

    @property
    def calm(self) -> Path:
        """To be preloaded: makes a loop of sched_yield cheap."""
        return self.folder / "calm.so"


def build_runtime(folder: Path) -> Runtime:
    """Compiles it into a folder. Raises CannotBuild."""
    sources = {
        "libcuda.so.1": ("streams.c", "memory.c", "devices.c", "driver.c", "patch.c"),
        "libnvidia-ml.so.1": ("nvml.c",),
        "calm.so": ("calm.c",),
    }
    compiler = os.environ.get("CC", "cc")
    for name, files in sources.items():
        flags = _FLAGS if name == "calm.so" else (*_FLAGS, _HIDDEN, f"-Wl,-soname,{name}")
        paths = [str(HERE / "runtime" / file) for file in files]
        try:
            done = subprocess.run(
                [compiler, *flags, "-o", str(folder / name), *paths],
                capture_output=True,
                text=True,
                timeout=BUILD_DEADLINE_S,
                check=False,
            )
        except FileNotFoundError:
            raise CannotBuild(f"there is no C compiler ({compiler})") from None
        if done.returncode != 0:
            raise CannotBuild(f"{compiler} refused {name}: {done.stderr}")
    return Runtime(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What each rank does in turn, and where the kernel must show it then. The last step is the one it stays in.

    `together` starts one process, which has all ranks as its devices.
    """

    name: str
    parts: Mapping[int, Sequence[Step]]
    waits: Mapping[int, Waits]
    together: bool = False


def program(
    plan: Plan,
    wheel: Wheel,
    runtime: Runtime,
    *,
    transport: Transport,
    logs: Path,
    prefix: str = "",
    loaded: Path | None = None,
) -> Program:
    """The ranks of a plan as one program of a case. NCCL's own log goes into `logs`, a file for each process. `loaded`
    is a copy of the wheel's library to be used instead of it.

    Raises NoWheel.
    """
    file = logs / f"{prefix}{plan.name}.json"
    parts = {str(rank): list(steps) for rank, steps in plan.parts.items()}
    file.write_text(json.dumps({"name": f"{prefix}{plan.name}", "parts": parts}))
    ranks = () if plan.together else tuple(sorted(plan.parts))
    env = {
        "NCCL_BENCH_LIBRARY": str(loaded or library(wheel)),
        "NCCL_BENCH_SYMBOLS": str(library(wheel)),
        "NCCL_BENCH_CUDA": str(wheel.driver_version),
        "LD_LIBRARY_PATH": str(runtime.folder),
        "LD_PRELOAD": str(runtime.calm),
        "HANGS_PREFIX": prefix,
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,COLL,P2P,NET",
        "NCCL_DEBUG_FILE": str(logs / "nccl.%p"),
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_IB_DISABLE": "1",
        "NCCL_CUMEM_ENABLE": "0",
        "NCCL_CUMEM_HOST_ENABLE": "0",
        "NCCL_NVLS_ENABLE": "0",
    }
    if transport is Transport.SOCKETS:
        env.update({"NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket"})
    return Program(
        argv=("{python}", str(HERE / "programs" / "rank.py"), str(file)),
        members={f"{prefix}rank{rank}": waits for rank, waits in plan.waits.items()},
        env=env,
        ranks=ranks,
    )


def case(kind: str, programs: Sequence[Program], facts: Facts) -> Case:
    """One kind of hang, to be run by `tests.hangs.processes.running`."""
    return Case(kind=kind, summary=kind, programs=tuple(programs), attach=("rank0",), facts=facts)
