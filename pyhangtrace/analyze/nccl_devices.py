"""The GPUs of communicators: which they are, and what that tells where one process has several ranks.

A process with several GPUs launches for each of them. One of its threads that waits for a GPU may wait for the kernel
that lacks a rank of its own process, which nobody launches then; or for work of the very GPU that is late, after which
it goes on. Only the devices tell these apart: one that is late and does nothing is not what is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyhangtrace.analyze.gpu_devices import Bus, bus_of
from pyhangtrace.analyze.nccl_comms import Member
from pyhangtrace.analyze.scene import Scene
from pyhangtrace.model.gpu import GpuFacts
from pyhangtrace.model.nccl import NcclCommunicator, NcclMember
from pyhangtrace.model.ranks import fold

# A kernel of NCCL that waits for another rank polls, and so keeps its GPU busy all the while.
_POLLS = 99


def gpu_words(comm: NcclCommunicator | NcclMember) -> str:
    """`GPU 2 (0000:81:00.0)`: as the process numbers it, and where it sits."""
    place = _bus(comm)
    at = f" ({place[0]:04x}:{place[1]:02x}:{place[2]:02x}.0)" if place is not None else ""
    return f"GPU {comm.cuda_device}{at}"


def ranks_words(members: Sequence[Member]) -> str:
    """`rank 2 on GPU 2 (0000:81:00.0)`, `ranks 4-7`."""
    if len(members) == 1:
        return f"rank {members[0].comm.rank} on {gpu_words(members[0].comm)}"
    return f"ranks {fold(member.comm.rank for member in members)}"


def late_and_idle(scene: Scene, ahead: Sequence[Member], behind: Sequence[Member]) -> bool:
    """Whether the GPUs of those behind do nothing, while kernels run on those of the ones ahead."""
    late = [_device(scene, member.comm) for member in behind]
    early = [_device(scene, member.comm) for member in ahead]
    if {gpu.bus for gpu in late if gpu} & {gpu.bus for gpu in early if gpu}:
        return False  # ranks that share a GPU
    idle = all(gpu is not None and gpu.utilization == 0 and not gpu.memory_utilization for gpu in late)
    polls = all(gpu is not None and (gpu.utilization or 0) >= _POLLS for gpu in early)
    return bool(late) and bool(early) and idle and polls


def _bus(comm: NcclCommunicator | NcclMember) -> Bus | None:
    """NCCL keeps domain, bus, device and function in one number. Of a device without a place it is 0."""
    if not comm.bus_id:
        return None
    return comm.bus_id >> 20, comm.bus_id >> 12 & 0xFF, comm.bus_id >> 4 & 0xFF


def _device(scene: Scene, comm: NcclCommunicator) -> GpuFacts | None:
    place = _bus(comm)
    return next((gpu for gpu in scene.evidence.gpus if place is not None and bus_of(gpu.bus) == place), None)
