"""What a thread inside NVIDIA's or AMD's driver waits for, by the nearest function that the driver exports.

The driver's own functions have no names, so a stack there is `clock_gettime`, some frames without a name, and the call
that the program made, or the runtime for it. Source of the names: the CUDA driver and runtime API references; which
calls wait implicitly: the programming guide, "Implicit Synchronization".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from pyhangtrace.analyze.calls import plain
from pyhangtrace.model.kinds import FrameKind
from pyhangtrace.model.stacks import Frame


class GpuWait(str, Enum):
    """For what; the value completes "waits for …"."""

    STREAM = "all work of one stream"
    EVENT = "the work before an event"
    DEVICE = "all work of the GPU"
    COPY = "a copy, and all work before it in its stream"
    IMPLICIT = "all work of the GPU, implicitly"
    LAUNCH = "room in the launch queue"
    GRAPH = "room to launch a graph"
    START = "the driver to set the GPU up"
    OTHER = "the GPU"


@dataclass(frozen=True, slots=True)
class GpuCall:
    """`function` is the exported one, as the program called it; None where only the library is known."""

    wait: GpuWait
    function: str | None


# Versions (_v2, _v3, _ptsz, _ptds, _spt) are taken off the name before.
_CALLS: tuple[tuple[GpuWait, re.Pattern[str]], ...] = tuple(
    (wait, re.compile(pattern))
    for wait, pattern in (
        (GpuWait.STREAM, r"(cu|cuda|hip)Stream(Synchronize|Destroy)$|hsa_signal_wait_\w+$"),
        (GpuWait.EVENT, r"(cu|cuda|hip)Event(Synchronize|Query)$"),
        (GpuWait.DEVICE, r"cuCtxSynchronize$|(cuda|hip)(Device|Thread)Synchronize$"),
        (GpuWait.GRAPH, r"(cu|cuda|hip)Graph(Launch|Upload|ExecUpdate)$"),
        (GpuWait.LAUNCH, r"(cu|cuda|hip|hipExt)Launch\w*$"),
        # Asynchronous ones wait too: for pageable memory, or for room in the queue.
        (GpuWait.COPY, r"(cu|cuda|hip)Mem(cpy|set)\w*$"),
        (
            GpuWait.IMPLICIT,
            r"(cu|cuda|hip)(Mem)?(Free|FreeHost|FreeArray|Alloc|AllocHost|AllocManaged|AllocPitch|HostAlloc|Malloc"
            r"|MallocHost|MallocManaged|Map|Unmap|Create|Release|SetAccess|AddressFree|HostRegister|HostUnregister"
            r"|HostGetDevicePointer)$|(cu|cuda|hip)Host(Register|Unregister|Alloc)$"
            r"|cu(Module|Library|Kernel|Link)(Load|Unload|Get|Complete)\w*$|cudaFuncGetAttributes$|cudaFuncSetAttribute$"
            r"|(cu|cuda|hip)(Ctx|Device)?(SetLimit|SetCacheConfig|EnablePeerAccess|DisablePeerAccess)$"
            r"|(cu|cuda|hip)IpcOpenMemHandle$|cuMulticast\w+$",
        ),
        (
            GpuWait.START,
            r"cuInit$|cuCtxCreate$|cuCtxDestroy$|cuDevicePrimaryCtx\w+$|cudaInitDevice$|cudaSetDevice$"
            r"|(cuda|hip)DeviceReset$|cudaGetDeviceCount$",
        ),
    )
)
_VERSION = re.compile(r"(_v\d+|_ptsz|_ptds|_spt)+$")
_EXPORTED = re.compile(r"(cu|cuda|hip)[A-Z]\w*$|hsa_\w+$")
_LIBRARIES = ("libcuda.so", "libcudart", "libamdhip64", "libhsa-runtime", "libnvidia-ptxjitcompiler")
# What the driver's functions call while they spin or sleep.
_SYSTEM = (
    "libc.so",
    "libc-",
    "libpthread",
    "[vdso]",
    "linux-vdso",
    "ld-linux",
    "libstdc++",
    "libm.so",
    "ld-musl",
)


def recognise(frames: Sequence[Frame]) -> GpuCall | None:
    """The call if the innermost frames of the program are inside of a GPU's driver, None else."""
    inside = False
    found: GpuCall | None = None
    python, kernel = FrameKind.PYTHON, FrameKind.KERNEL
    for frame in frames:
        if frame.kind is python:
            break
        if frame.kind is kernel:
            continue
        library, exported = _of_gpu(frame.module), _exported(frame.function)
        if exported is None and not library:
            # A runtime that is linked into a library has no names for its own functions either.
            unnamed = inside and found is None and not frame.function
            if not unnamed and (inside or not _of_system(frame.module)):
                break
            continue
        inside = True
        wait = _meaning(exported) if exported is not None else None
        if wait is None:
            continue
        # The runtime's function around the driver's says the same, in the words of the program.
        if found is None or (found.wait is wait and exported is not None):
            found = GpuCall(wait, exported)
    if not inside:
        return None
    return found or GpuCall(GpuWait.OTHER, None)


@lru_cache(maxsize=4096)
def _of_gpu(module: str | None) -> bool:
    """Whether a frame's library is a GPU's driver or runtime."""
    return (module or "").rpartition("/")[2].startswith(_LIBRARIES)


@lru_cache(maxsize=4096)
def _of_system(module: str | None) -> bool:
    return module is None or module.rpartition("/")[2].startswith(_SYSTEM)


@lru_cache(maxsize=4096)
def _exported(function: str) -> str | None:
    name = plain(function)
    return name if _EXPORTED.match(name) else None


@lru_cache(maxsize=4096)
def _meaning(name: str) -> GpuWait | None:
    bare = _VERSION.sub("", name)
    return next((wait for wait, pattern in _CALLS if pattern.match(bare)), None)
