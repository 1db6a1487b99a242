"""Perf events with a BPF program attached, each owned by one file descriptor: closing it detaches."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct

from pyhangtrace.probes.tracefs import syscall

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_FD_CLOEXEC = 8
_SET_BPF = 0x40042408  # PERF_EVENT_IOC_SET_BPF
_ENABLE = 0x2400  # PERF_EVENT_IOC_ENABLE

_UPROBES = "/sys/bus/event_source/devices/uprobe"
_TYPE_SOFTWARE, _TYPE_TRACEPOINT = 1, 2
SOFTWARE_MINOR_FAULTS, SOFTWARE_MAJOR_FAULTS = 5, 6
_SAMPLE_RAW = 1 << 10

# struct perf_event_attr up to its fifth version (112 bytes), which every kernel since 4.1 takes: type, size, config,
# sample_period, sample_type, read_format, flags, wakeup_events, breakpoint's type, its address (or the name of a
# uprobe's file), its length (or the offset in that file), then members that stay zero.
_ATTRIBUTES = struct.Struct("=IIQQQQQIIQQ40x")
assert _ATTRIBUTES.size == 112


def _open(
    *, kind: int, config: int, sample_type: int, cpu: int, pid: int = -1, config1: int = 0, config2: int = 0
) -> int:
    number = _PERF_EVENT_OPEN.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"no system call number known for {platform.machine()}")
    attributes = _ATTRIBUTES.pack(
        kind, _ATTRIBUTES.size, config, 1, sample_type, 0, 0, 1, 0, config1, config2
    )
    return syscall(number, attributes, pid, cpu, -1, _FD_CLOEXEC)


def _attached(descriptor: int, program: int) -> int:
    try:
        fcntl.ioctl(descriptor, _SET_BPF, program)
        fcntl.ioctl(descriptor, _ENABLE, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def attach_tracepoint(tracepoint_id: int, program: int) -> int:
    """Runs the BPF program on every hit, on all CPUs; the descriptor that keeps it attached.

    Raises: OSError.
    """
    # The program list belongs to the tracepoint, so one event on one CPU is enough for all.
    return _attached(
        _open(kind=_TYPE_TRACEPOINT, config=tracepoint_id, sample_type=_SAMPLE_RAW, cpu=online_cpus()[0]),
        program,
    )


def attach_uprobe(path: str, offset: int, program: int, *, pid: int = 0, is_return: bool) -> int:
    """Runs the BPF program whenever the instruction at that offset of a file is executed, or the function that begins
    there returns: in process `pid`, or with 0 wherever the file is mapped. The descriptor that keeps it attached.

    Raises: OSError (ENOENT: this kernel has no uprobes that a descriptor owns, Linux 4.17).
    """
    with open(f"{_UPROBES}/type", encoding="ascii") as file:
        kind = int(file.read())
    with open(f"{_UPROBES}/format/retprobe", encoding="ascii") as file:
        bit = int(file.read().strip().removeprefix("config:"))
    name = ctypes.create_string_buffer(os.fsencode(path))
    return _attached(
        _open(
            kind=kind,
            config=1 << bit if is_return else 0,
            sample_type=0,
            cpu=-1 if pid else online_cpus()[0],
            pid=pid or -1,
            config1=ctypes.addressof(name),
            config2=offset,
        ),
        program,
    )


def attach_software(event: int, program: int) -> list[int]:
    """Runs the BPF program on each occurrence of a software event in any process: one descriptor per online CPU.

    Period 1 of a software event is not throttled (`perf_swevent_event` passes overflow without it), so none is left
    out.

    Raises: OSError; nothing stays attached then.
    """
    attached: list[int] = []
    try:
        for cpu in online_cpus():
            attached.append(
                _attached(_open(kind=_TYPE_SOFTWARE, config=event, sample_type=0, cpu=cpu), program)
            )
    except OSError:
        for descriptor in attached:
            os.close(descriptor)
        raise
    return attached


def try_software() -> None:
    """Opens and closes one event for all processes. Raises: OSError saying why that is not allowed."""
    os.close(_open(kind=_TYPE_SOFTWARE, config=SOFTWARE_MINOR_FAULTS, sample_type=0, cpu=online_cpus()[0]))


def online_cpus() -> list[int]:
    """Numbers of the CPUs that run, also those outside our own affinity."""
    with open("/sys/devices/system/cpu/online", encoding="ascii") as file:
        return parse_cpu_list(file.read())


def parse_cpu_list(text: str) -> list[int]:
    """`0-3,8` as numbers."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus
