"""The NVIDIA driver's own files in /proc, and what each process has open of it and was started with.

Reading about a GPU takes a lock of the driver, which a GPU that has fallen off the bus may hold: so in the helper that
can be given up. Nothing here is ever written.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.processes import environs
from pyhangtrace.collect.procfs import PROC, fields, numbers, printable, read_link, read_text, signal_numbers
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.gpu import CudaProcess, DriverFacts, DriverGpu, Prepared, PreparedExtra
from pyhangtrace.model.kinds import SourceState

DRIVER_TASK = "nvidia_driver"
CUDA_TASK = "cuda_processes"
_SOURCE = "nvidia driver"

_DEVICE = re.compile(r"/dev/nvidia(\d{1,4})$")
_VERSION = re.compile(r"NVRM version: .*?(\d{3,4}\.\d+(?:\.\d+)*)")
_BUS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]$")
_MOST_GPUS = 256
_MOST_FDS = 65_536

# How calls into the driver wait.
_SETTINGS = (
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
)
_CORE_DUMP, _CORE_PIPE, _CORE_FLAGS = (
    "CUDA_ENABLE_USER_TRIGGERED_COREDUMP",
    "CUDA_COREDUMP_PIPE",
    "CUDA_COREDUMP_GENERATION_FLAGS",
)
_TORCH_PIPE, _RANK = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "RANK"
_PROXY_SIGNAL = "NCCL_PROXY_DUMP_SIGNAL"
_VARIABLES = (*_SETTINGS, _CORE_DUMP, _CORE_PIPE, _CORE_FLAGS, _TORCH_PIPE, _RANK, _PROXY_SIGNAL)


# -- the driver ----------------------------------------------------------------------------------------------


def driver_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: DriverFacts under the one pid 0."""
    progress(0)
    yield 0, read_driver(state.proc_root)


def read_driver(proc_root: str = PROC) -> DriverFacts:
    """The driver's files; empty where there are none."""
    folder = f"{proc_root}/driver/nvidia"
    text = read_text(f"{folder}/version") or ""
    version = _VERSION.search(text)
    try:
        names = sorted(name for name in os.listdir(f"{folder}/gpus") if _BUS.match(name.lower()))
    except OSError:  # no driver, or a container that hides it
        names = []
    return DriverFacts(
        version=version[1] if version else "",
        open_modules="Open Kernel Module" in text,
        gpus=tuple(
            _gpu(name, read_text(f"{folder}/gpus/{name}/information") or "") for name in names[:_MOST_GPUS]
        ),
    )


def _gpu(name: str, information: str) -> DriverGpu:
    about = dict(fields(information))
    minor = about.get("Device Minor", "")
    return DriverGpu(
        bus=name.lower(),
        minor=int(minor) if minor.isascii() and minor.isdecimal() else None,
        uuid=printable(about.get("GPU UUID", "")),
        model=printable(about.get("Model", "")),
        firmware=printable(about.get("GPU Firmware", "")),
        excluded=about.get("GPU Excluded", "").lower() == "yes",
    )


def collect(
    reader: GuardedReader, *, deadline_s: float
) -> tuple[DriverFacts | None, tuple[SourceStatus, ...]]:
    """The driver, and a line of coverage where it does not answer."""
    answers = reader.run(DRIVER_TASK, [0], deadline_s=deadline_s)
    if 0 in answers.values:
        return answers.values[0], ()
    return None, (
        SourceStatus(
            source=_SOURCE,
            state=SourceState.TIMED_OUT,
            reason=f"/proc/driver/nvidia did not answer within {deadline_s:g} s: a GPU may have fallen off the bus",
            fix="dmesg | grep -e NVRM -e Xid",
        ),
    )


# -- processes -----------------------------------------------------------------------------------------------


def cuda_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: what each process has open of the driver, and which of the pipes that its variables name are there."""
    variables: Mapping[int, Mapping[str, str]] = argument
    for pid in pids:
        progress(pid)
        minors, control, uvm = read_devices(f"{state.proc_root}/{pid}")
        given = variables.get(pid, {})
        yield (
            pid,
            CudaProcess(
                pid=pid,
                minors=minors,
                control=control,
                uvm=uvm,
                settings=tuple((name, given[name]) for name in _SETTINGS if given.get(name)),
                prepared=tuple(_prepared(pid, given, f"{state.proc_root}/{pid}")),
            ),
        )


def read_devices(folder: str) -> tuple[tuple[int, ...], bool, bool]:
    """(minors of the GPUs a process has open, whether it has the driver's control device, and that for memory)."""
    minors: set[int] = set()
    control = uvm = False
    for fd in numbers(f"{folder}/fd")[:_MOST_FDS]:
        link = read_link(f"{folder}/fd/{fd}") or ""
        if not link.startswith("/dev/nvidia"):
            continue
        device = _DEVICE.match(link)
        if device:
            minors.add(int(device[1]))
        control = control or link == "/dev/nvidiactl"
        uvm = uvm or link == "/dev/nvidia-uvm"
    return tuple(sorted(minors)), control, uvm


def _prepared(pid: int, given: Mapping[str, str], folder: str) -> Iterator[PreparedExtra]:
    """What the job was started with; a pipe only if it is there."""
    status = dict(fields(read_text(f"{folder}/status") or ""))
    own = _own_pid(status) or pid
    if given.get(_CORE_DUMP) == "1":
        # cuda-gdb's manual, "GPU core dump support": the default name, and the placeholders.
        pipe = given.get(_CORE_PIPE) or "corepipe.cuda.%h.%p"
        path = _pipe(folder, pipe.replace("%p", str(own)).replace("%h", _host(folder)))
        if path is not None:
            stays = "skip_abort" in given.get(_CORE_FLAGS, "").split(",")
            yield PreparedExtra(kind=Prepared.GPU_CORE_DUMP, path=path, ends_process=not stays)
    if given.get(_TORCH_PIPE) and given.get(_RANK, "").isdecimal():
        # PyTorch's DumpPipe: one for each rank.
        path = _pipe(folder, f"{given[_TORCH_PIPE]}{given[_RANK]}.pipe")
        if path is not None:
            yield PreparedExtra(kind=Prepared.TORCH_DUMP, path=path)
    # Without a handler the signal would end it.
    caught = signal_numbers(status.get("SigCgt")) or ()
    signal = given.get(_PROXY_SIGNAL, "")
    if signal.isascii() and signal.isdecimal() and len(signal) < 4 and int(signal) in caught:
        yield PreparedExtra(kind=Prepared.NCCL_PROXY_DUMP, signal=int(signal))


def _pipe(folder: str, name: str) -> str | None:
    """The path if there is a pipe of this name, as the process sees it."""
    path = name if name.startswith("/") else f"{read_link(f'{folder}/cwd') or ''}/{name}"
    try:
        # Of the process' own root: in a container another one than ours.
        is_pipe = stat.S_ISFIFO(os.lstat(f"{folder}/root{path}").st_mode)
    except (OSError, ValueError):
        return None
    return printable(path) if is_pipe else None


def _host(folder: str) -> str:
    """The name of the host, which is another one in a container; its own file says it, if any."""
    text = read_text(f"{folder}/root/etc/hostname", 256) or ""
    return text.strip() or os.uname().nodename


def _own_pid(status: Mapping[str, str]) -> int | None:
    """Its number in its own PID namespace."""
    words = status.get("NSpid", "").split()
    return int(words[-1]) if words and words[-1].isdecimal() else None


def processes(
    reader: GuardedReader, helper: GuardedReader, pids: Iterable[int], *, deadline_s: float
) -> tuple[CudaProcess, ...]:
    """Of processes that have loaded CUDA. `reader` reads their variables, `helper` looks where paths may not answer."""
    asked = sorted(pids)
    if not asked:
        return ()
    given = environs(reader, asked, _VARIABLES, deadline_s=deadline_s / 2)
    answers = helper.run(CUDA_TASK, asked, given, deadline_s=deadline_s / 2)
    return tuple(answers.values[pid] for pid in asked if pid in answers.values)
