"""The driver's files in /proc, and what a process has open of it and was prepared for: from made-up trees."""

from __future__ import annotations

import os
from pathlib import Path

from pyhangtrace.collect import gpu_driver, gpus
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.model.gpu import CudaProcess, DriverGpu, Prepared, PreparedExtra
from pyhangtrace.model.kinds import SourceState
from tests.unit.collect.helpers import write

VERSION = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (dvs-builder@U16)  Tue Mar  5
GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)
"""
OLD_VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Wed Oct 27 21:21:55 UTC 2021\n"
INFORMATION = """\
Model: \t\t NVIDIA A100-SXM4-80GB
IRQ:   \t\t 412
GPU UUID: \t GPU-5ba1c0de-0000-1111-2222-333344445555
Video BIOS: \t 92.00.36.00.01
Bus Type: \t PCIe
DMA Size: \t 47 bits
DMA Mask: \t 0x7fffffffffff
Bus Location: \t 0000:81:00.0
Device Minor: \t 4
GPU Firmware: \t 550.54.15
GPU Excluded:\t No
"""


def test_a_driver_with_gpus(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "driver/nvidia/version": VERSION,
            "driver/nvidia/gpus/0000:81:00.0/information": INFORMATION,
            "driver/nvidia/gpus/0000:C1:00.0/information": INFORMATION.replace("No\n", "Yes\n").replace(
                "Device Minor: \t 4", "Device Minor: \t x"
            ),
            "driver/nvidia/gpus/other/information": "",
        },
    )
    found = gpu_driver.read_driver(str(tmp_path))
    assert (found.version, found.open_modules) == ("550.54.15", True)
    assert found.gpus[0] == DriverGpu(
        bus="0000:81:00.0",
        minor=4,
        uuid="GPU-5ba1c0de-0000-1111-2222-333344445555",
        model="NVIDIA A100-SXM4-80GB",
        firmware="550.54.15",
    )
    assert [(gpu.bus, gpu.minor, gpu.excluded) for gpu in found.gpus[1:]] == [("0000:c1:00.0", None, True)]


def test_an_older_driver_in_a_container(tmp_path: Path) -> None:
    write(tmp_path, {"driver/nvidia/version": OLD_VERSION})
    found = gpu_driver.read_driver(str(tmp_path))
    assert (found.version, found.open_modules, found.gpus) == ("470.82.01", False, ())


def test_no_driver(tmp_path: Path) -> None:
    found = gpu_driver.read_driver(str(tmp_path))
    assert (found.version, found.gpus) == ("", ())


def test_a_driver_that_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "driver" / "nvidia").mkdir(parents=True)
    os.mkfifo(tmp_path / "driver" / "nvidia" / "version")
    with GuardedReader(TASKS, proc_root=str(tmp_path)) as reader:
        found, (line,) = gpu_driver.collect(reader, deadline_s=0.3)
    assert (found, line.state) == (None, SourceState.TIMED_OUT)


def tree(root: Path, pid: int, environ: str, *, devices: tuple[str, ...] = (), handlers: int = 0) -> Path:
    folder = root / str(pid)
    write(
        root,
        {
            f"{pid}/environ": environ.replace(" ", "\0"),
            f"{pid}/status": f"NSpid:\t{pid}\t1\nSigCgt:\t{handlers:016x}\n",
            f"{pid}/root/etc/hostname": "node-7\n",
        },
    )
    (folder / "fd").mkdir()
    for number, device in enumerate(devices):
        (folder / "fd" / str(number)).symlink_to(device)
    (folder / "cwd").symlink_to("/data")
    (folder / "root" / "data").mkdir()
    return folder


def cuda(root: Path, pid: int = 7) -> CudaProcess:
    with GuardedReader(TASKS, proc_root=str(root)) as reader:
        found = gpus.collect(reader, None, {pid: ("cuda", "torch"), 8: ("torch",)}, deadline_s=10.0)
    (process,) = found.processes
    return process


def test_devices_a_process_has_open(tmp_path: Path) -> None:
    tree(
        tmp_path,
        7,
        "CUDA_LAUNCH_BLOCKING=1 SECRET=x CUDA_MODULE_LOADING=LAZY",
        devices=(
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidia4",
            "/dev/nvidia11",
            "/dev/nvidia4",
            "/dev/nvidia-caps/nvidia-cap2",
            "/dev/null",
        ),
    )
    assert cuda(tmp_path) == CudaProcess(
        pid=7,
        minors=(4, 11),
        control=True,
        uvm=True,
        settings=(("CUDA_LAUNCH_BLOCKING", "1"), ("CUDA_MODULE_LOADING", "LAZY")),
    )


def test_a_process_that_has_cuda_loaded_and_nothing_open(tmp_path: Path) -> None:
    tree(tmp_path, 7, "A=1")
    assert cuda(tmp_path) == CudaProcess(pid=7)


def test_the_pipe_for_a_core_dump_of_the_gpu(tmp_path: Path) -> None:
    folder = tree(tmp_path, 7, "CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1")
    assert cuda(tmp_path).prepared == ()
    # Its number and host are those of its own namespaces.
    os.mkfifo(folder / "root" / "data" / "corepipe.cuda.node-7.1")
    expected = PreparedExtra(
        kind=Prepared.GPU_CORE_DUMP, path="/data/corepipe.cuda.node-7.1", ends_process=True
    )
    assert cuda(tmp_path).prepared == (expected,)


def test_a_pipe_elsewhere_that_leaves_the_process_alive(tmp_path: Path) -> None:
    folder = tree(
        tmp_path,
        7,
        "CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1 CUDA_COREDUMP_PIPE=/data/p.%p "
        "CUDA_COREDUMP_GENERATION_FLAGS=skip_global_memory,skip_abort",
    )
    (folder / "root" / "data" / "p.1").write_text("no pipe")
    assert cuda(tmp_path).prepared == ()
    (folder / "root" / "data" / "p.1").unlink()
    os.mkfifo(folder / "root" / "data" / "p.1")
    assert cuda(tmp_path).prepared == (PreparedExtra(kind=Prepared.GPU_CORE_DUMP, path="/data/p.1"),)


def test_flight_recorder_and_proxy(tmp_path: Path) -> None:
    environ = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/data/fr_ RANK=3 NCCL_PROXY_DUMP_SIGNAL=10"
    folder = tree(tmp_path, 7, environ, handlers=1 << 9)
    os.mkfifo(folder / "root" / "data" / "fr_3.pipe")
    assert cuda(tmp_path).prepared == (
        PreparedExtra(kind=Prepared.TORCH_DUMP, path="/data/fr_3.pipe"),
        PreparedExtra(kind=Prepared.NCCL_PROXY_DUMP, signal=10),
    )


def test_a_signal_without_handler_would_end_the_process(tmp_path: Path) -> None:
    tree(tmp_path, 7, "NCCL_PROXY_DUMP_SIGNAL=10", handlers=1 << 11)
    assert cuda(tmp_path).prepared == ()
