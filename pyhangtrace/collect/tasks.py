"""All tasks of the guarded reader, by name."""

from __future__ import annotations

from pyhangtrace.collect import (
    arguments,
    descriptors,
    gpu,
    gpu_driver,
    ipc,
    lock_files,
    mapped_places,
    maps,
    nap_loops,
    nccl,
    nccl_version,
    open_mpi,
    process_groups,
    processes,
    ras,
    smaps,
    sockets,
    source_lines,
    stacks,
)
from pyhangtrace.collect.guarded import Task

TASKS: dict[str, Task] = {
    processes.CMDLINE_TASK: processes.read_cmdlines,
    processes.ENVIRON_TASK: processes.read_environs,
    stacks.CAPTURE_TASK: stacks.capture_task,
    stacks.PROGRAM_ENVIRON_TASK: stacks.program_environ_task,
    stacks.ASLEEP_TASK: stacks.asleep_task,
    source_lines.SOURCE_LINES_TASK: source_lines.source_lines_task,
    arguments.MEMORY_TASK: arguments.memory_task,
    descriptors.DESCRIBE_TASK: descriptors.describe_task,
    sockets.SOCKETS_TASK: sockets.sockets_task,
    ipc.IPC_TASK: ipc.ipc_task,
    lock_files.LOCK_FILES_TASK: lock_files.lock_files_task,
    nap_loops.NAP_LOOPS_TASK: nap_loops.nap_loops_task,
    nccl.NCCL_TASK: nccl.nccl_task,
    nccl.MEMBERS_TASK: nccl.members_task,
    process_groups.PROCESS_GROUPS_TASK: process_groups.process_groups_task,
    mapped_places.MAPPED_PLACES_TASK: mapped_places.mapped_places_task,
    open_mpi.OPEN_MPI_TASK: open_mpi.open_mpi_task,
    maps.MAPS_TASK: maps.maps_task,
    maps.RESIDENT_TASK: maps.resident_task,
    smaps.ROLLUP_TASK: smaps.rollup_task,
    gpu.GPU_TASK: gpu.gpu_task,
    gpu_driver.DRIVER_TASK: gpu_driver.driver_task,
    gpu_driver.CUDA_TASK: gpu_driver.cuda_task,
    nccl_version.VERSION_TASK: nccl_version.version_task,
    ras.SETTINGS_TASK: ras.settings_task,
}
