"""What of the probes works on this machine, each answer by trying it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.probes import bpf, launch, perf_events
from pyhangtrace.probes.bcc_loader import INSTALL, find_bcc
from pyhangtrace.probes.child import RUN_AS_ROOT
from pyhangtrace.probes.tracefs import MOUNT_COMMAND, Tracefs

_TRIAL_LIMIT_S = 20


def probe_capabilities() -> tuple[SourceStatus, ...]:
    """One answer per part, used meaning that it works, the whole window last. Takes about half a second."""
    parts = (_programs(), _type_information(), _tracing(), _perf(), _lockdown(), _package())
    return (*parts, _window())


def _programs() -> SourceStatus:
    try:
        bpf.try_load()
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            return _status("bpf", SourceState.REFUSED, f"loading a program: {error.strerror}", RUN_AS_ROOT)
        return _status("bpf", SourceState.ABSENT, f"this kernel has no BPF: {error.strerror}")
    return _status("bpf", SourceState.USED, "a program was loaded")


def _type_information() -> SourceStatus:
    path = Path("/sys/kernel/btf/vmlinux")
    try:
        with path.open("rb") as file:
            magic = file.read(2)
    except PermissionError as error:
        return _status("btf", SourceState.REFUSED, f"{path}: {error.strerror}", RUN_AS_ROOT)
    except OSError:
        return _status(
            "btf",
            SourceState.ABSENT,
            "the kernel has no type information (not needed by the probes of attach)",
            "a kernel with CONFIG_DEBUG_INFO_BTF=y",
        )
    if magic not in (b"\x9f\xeb", b"\xeb\x9f"):
        return _status("btf", SourceState.FAILED, f"{path} does not hold type information")
    return _status("btf", SourceState.USED, f"{path}, {path.stat().st_size} bytes")


def _tracing() -> SourceStatus:
    try:
        with Tracefs() as tracefs:
            futex = tracefs.tracepoint("syscalls", "sys_enter_futex")
            where = tracefs.mounted_at
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            return _status("tracefs", SourceState.REFUSED, f"tracefs: {error.strerror}", RUN_AS_ROOT)
        return _status("tracefs", SourceState.ABSENT, f"tracefs: {error.strerror}", MOUNT_COMMAND)
    if futex is None:
        return _status(
            "tracefs",
            SourceState.ABSENT,
            "the kernel has no futex tracepoints",
            "a kernel with CONFIG_FTRACE_SYSCALLS=y",
        )
    return _status("tracefs", SourceState.USED, where or "not mounted; a private mount is used")


def _perf() -> SourceStatus:
    try:
        level = Path("/proc/sys/kernel/perf_event_paranoid").read_text().strip()
    except OSError:
        return _status("perf events", SourceState.ABSENT, "this kernel has no perf events")
    try:
        perf_events.try_software()
    except OSError as error:
        state = SourceState.REFUSED if error.errno in (errno.EPERM, errno.EACCES) else SourceState.FAILED
        reason = f"counting for all processes: {error.strerror} (perf_event_paranoid {level})"
        return _status(
            "perf events", state, reason, f"{RUN_AS_ROOT}, or sysctl kernel.perf_event_paranoid=-1"
        )
    return _status("perf events", SourceState.USED, f"perf_event_paranoid {level}")


def _lockdown() -> SourceStatus:
    try:
        text = Path("/sys/kernel/security/lockdown").read_text().strip()
    except OSError:
        return _status(
            "lockdown", SourceState.USED, "not visible here (securityfs is not mounted, or none built in)"
        )
    if "[confidentiality]" in text:
        return _status(
            "lockdown",
            SourceState.REFUSED,
            "the kernel is locked down for confidentiality: BPF may not read kernel data",
            "boot with lockdown=integrity or none",
        )
    return _status("lockdown", SourceState.USED, text)


def _package() -> SourceStatus:
    folder = find_bcc()
    if folder is None:
        return _status("bcc", SourceState.ABSENT, "the system's bcc is not installed", INSTALL)
    return _status("bcc", SourceState.USED, str(folder))


def _window() -> SourceStatus:
    """Loads, attaches and detaches the real thing, for this process, in a child."""
    request = launch.request([os.getpid()], window_s=0, max_threads=64)
    # The child takes the end of its standard input for our wish to stop, so it must stay open.
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            request.command(), stdin=reading, capture_output=True, timeout=_TRIAL_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return _status(
            "ebpf", SourceState.TIMED_OUT, f"the probes were not attached within {_TRIAL_LIMIT_S} s"
        )
    except OSError as error:
        return _status("ebpf", SourceState.FAILED, f"the probe process cannot be started: {error.strerror}")
    finally:
        os.close(reading)
        os.close(writing)
    messages: dict[str, object] = {}
    for line in done.stdout.splitlines():
        messages.update(json.loads(line))
    match messages.get("unavailable"):
        case {"reason": str(reason), "fix": str(fix), "permission": bool(permission)}:
            return _status("ebpf", SourceState.REFUSED if permission else SourceState.ABSENT, reason, fix)
    if "detached_s" in messages:
        return _status("ebpf", SourceState.USED, "futex and page-fault probes were attached and detached")
    complaint = done.stderr.decode(errors="replace").strip().splitlines()
    return _status("ebpf", SourceState.FAILED, complaint[-1] if complaint else f"status {done.returncode}")


def _status(source: str, state: SourceState, reason: str, fix: str = "") -> SourceStatus:
    return SourceStatus(source=source, state=state, reason=reason, fix=fix)
