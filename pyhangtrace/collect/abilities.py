"""What can be seen on this machine as this user: every answer by trying, each with the exact fix."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable

from pyhangtrace.collect.procfs import others_hidden
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.probes.capability import probe_capabilities

CAP_SYS_PTRACE = 19
CAP_SYS_ADMIN = 21
CAP_PERFMON = 38
CAP_BPF = 39


def abilities() -> tuple[SourceStatus, ...]:
    """All answers, those everything depends on first."""
    checks: tuple[Callable[[], SourceStatus], ...] = (
        _extension,
        _user,
        _other_users,
        _memory_reading,
        _kernel_stacks,
        _containers,
    )
    return (*(check() for check in checks), *probe_capabilities(), _nvml())


def _answer(source: str, works: bool, reason: str, fix: str = "") -> SourceStatus:  # noqa: FBT001
    return SourceStatus(
        source=source,
        state=SourceState.USED if works else SourceState.REFUSED,
        reason=reason,
        fix="" if works else fix,
    )


def _extension() -> SourceStatus:
    try:
        from pyhangtrace import _native
    except ImportError as error:
        return _answer("extension", False, f"the compiled part is missing: {error}", "make setup")
    return _answer("extension", True, f"loaded from {_native.__file__}")


def _user() -> SourceStatus:
    uid = os.geteuid()
    if uid == 0:
        return _answer("root", True, "running as root")
    return _answer("root", False, f"running as uid {uid}: only processes of this user", "sudo hangtrace …")


def _other_users() -> SourceStatus:
    held = _capabilities()
    works = bool(held >> CAP_SYS_PTRACE & 1)
    return _answer(
        "CAP_SYS_PTRACE",
        works,
        "processes of any user can be read" if works else "processes with other rights cannot be read",
        "run as root; in a container: --cap-add SYS_PTRACE",
    )


def _memory_reading() -> SourceStatus:
    scope = _read("/proc/sys/kernel/yama/ptrace_scope")
    if scope is None:
        return _answer("ptrace scope", True, "no Yama: memory of this user's processes can be read")
    held = bool(_capabilities() >> CAP_SYS_PTRACE & 1)
    works = scope == "0" or (held and scope in "12")
    return _answer(
        "ptrace scope",
        works,
        f"kernel.yama.ptrace_scope is {scope}",
        "sudo hangtrace …, or: sysctl -w kernel.yama.ptrace_scope=0",
    )


def _kernel_stacks() -> SourceStatus:
    try:
        with open("/proc/self/stack", encoding="ascii", errors="replace") as stream:
            stream.read(64)
    except OSError as error:
        return _answer(
            "kernel stacks", False, f"/proc/PID/stack: {error.strerror}", "run as root (CAP_SYS_ADMIN)"
        )
    return _answer("kernel stacks", True, "/proc/PID/stack can be read")


def _containers() -> SourceStatus:
    ours = _link("/proc/self/ns/pid")
    if ours is None:
        return _answer("containers", False, "this kernel shows no PID namespaces")
    if others_hidden():
        return _answer(
            "containers",
            False,
            "inside a PID namespace: processes outside it are hidden",
            "run it on the host, or in a container with --pid=host",
        )
    return _answer("containers", True, "processes in containers of this host can be seen")


def _nvml() -> SourceStatus:
    if not os.path.exists("/dev/nvidiactl") and not os.path.exists("/proc/driver/nvidia/version"):
        return SourceStatus(
            source="nvml", state=SourceState.ABSENT, reason="no NVIDIA driver on this machine"
        )
    with contextlib.suppress(OSError):
        ctypes.CDLL("libnvidia-ml.so.1")
        try:
            import pynvml
        except ImportError:
            return _answer(
                "nvml", False, "the driver is here, its Python binding is not", "pip install nvidia-ml-py"
            )
        return _answer("nvml", True, f"{pynvml.__name__} and the driver's library are here")
    return _answer("nvml", False, "libnvidia-ml.so.1 cannot be loaded", "install the driver's utilities")


def _capabilities() -> int:
    status = _read("/proc/self/status") or ""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return None


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
