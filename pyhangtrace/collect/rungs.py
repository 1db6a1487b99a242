"""What only the kernel's tracing tells, as lines of coverage: what became of each way, and what would help."""

from __future__ import annotations

from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import SourceState

EBPF = "ebpf registers"
PERF = "perf samples"
STOP = "thread stop"
SOCKETS = "socket timeouts"
ALARMS = "alarms"

_STATES = {
    "used": SourceState.USED,
    "refused": SourceState.REFUSED,
    "absent": SourceState.ABSENT,
    "failed": SourceState.FAILED,
    "limited": SourceState.FAILED,  # it gave something, but not for all
}
_FIXES = {
    (EBPF, SourceState.REFUSED): "run as root, or with CAP_BPF and CAP_PERFMON; or --allow-stop",
    (SOCKETS, SourceState.REFUSED): "run as root, or with CAP_BPF and CAP_PERFMON",
    (ALARMS, SourceState.REFUSED): "run as root, or with CAP_BPF and CAP_PERFMON",
    (PERF, SourceState.REFUSED): "run as root, or: sysctl -w kernel.perf_event_paranoid=2; or --allow-stop",
    (STOP, SourceState.REFUSED): "run as root; in a container also: --cap-add SYS_PTRACE",
    (EBPF, SourceState.ABSENT): "Linux 5.15 or newer (6.1 in a container), with CONFIG_DEBUG_INFO_BTF=y",
    (SOCKETS, SourceState.ABSENT): "Linux 5.11 or newer (6.1 in a container), with CONFIG_DEBUG_INFO_BTF=y",
    (ALARMS, SourceState.ABSENT): "Linux 5.8 or newer (6.1 in a container), with CONFIG_DEBUG_INFO_BTF=y",
}


def status(source: str, state: str, reason: str) -> SourceStatus:
    """What the native engine says of one way, with its fix."""
    known = _STATES[state]
    return SourceStatus(source=source, state=known, reason=reason, fix=_FIXES.get((source, known), ""))
