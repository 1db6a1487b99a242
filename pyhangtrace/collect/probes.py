"""The eBPF window: starts the process that counts futex waits and page faults, and takes what it counted.

It loads beside everything else (about 0.3 s of CPU, most of it bcc's compiler) and is never waited for longer than
the caller's deadline.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyhangtrace.collect import probe_child
from pyhangtrace.collect.probe_child import ProbeChild
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.probes import events, launch
from pyhangtrace.probes import result as results

SOURCE = "ebpf"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeWindow:
    """What became of the window; `processes` is empty unless `status` is used.

    `attached_s` is how long the probes had been attached when the counting ended, `cpu_s` what the child has cost.
    """

    status: SourceStatus
    processes: tuple[results.ProcessProbe, ...] = ()
    window_s: float = 0.0
    attached_s: float = 0.0
    cpu_s: float = 0.0


class ProbeRun:
    """A running window. Close it, also after a failure; as a context manager it closes itself."""

    def __init__(self, pids: Sequence[int], *, window_s: float, calls: Sequence[str]) -> None:
        self._pids = tuple(dict.fromkeys(pids))
        self._ended: ProbeWindow | None = None
        self._child = ProbeChild(
            launch.request(
                self._pids,
                window_s=window_s,
                max_threads=probe_child.room_for_threads(self._pids),
                calls=calls,
            ),
            source=SOURCE,
        )

    @property
    def child_pid(self) -> int | None:
        """The process that holds the probes, None when there is none."""
        return self._child.pid

    def wait_until_open(self, *, deadline_s: float) -> bool:
        """Waits until the probes count; False if they do not by then, or never will."""
        return self._child.wait_until_open(deadline_s=deadline_s)

    def finish(self, *, deadline_s: float, minimum_s: float = 0.1) -> ProbeWindow:
        """Ends the window and returns what was counted.

        Waits until the window has been open for `minimum_s`, but never beyond `deadline_s` from now; where nothing
        was counted by then, the status says `timed_out`. Detaching goes on behind; `close` waits for it.
        """
        if self._ended is None:
            counted = self._child.result(deadline_s=deadline_s, minimum_s=minimum_s)
            self._ended = (
                ProbeWindow(status=counted) if isinstance(counted, SourceStatus) else self._decoded(counted)
            )
        return self._ended

    def _decoded(self, counted: dict[str, Any]) -> ProbeWindow:
        try:
            processes = results.decode(
                self._pids,
                threads=base64.b64decode(counted["tables"]["threads"], validate=True),
                pairs=base64.b64decode(counted["tables"]["pairs"], validate=True),
                lost=events.Lost(*counted["lost"]),
                window_s=counted["window_s"],
                closed_ns=counted["closed_ns"],
            )
        except (binascii.Error, KeyError, TypeError, ValueError) as error:
            reason = f"the probes' counts cannot be decoded: {error}"
            return ProbeWindow(status=self._child.status(SourceState.FAILED, reason))
        reason = f"futex and page-fault probes counted for {counted['window_s']:.2f} s"
        if any(counted["lost"]):
            reason += f"; {sum(counted['lost'])} events found no room"
        return ProbeWindow(
            status=self._child.status(SourceState.USED, reason),
            processes=processes,
            window_s=counted["window_s"],
            attached_s=counted["attached_s"],
            cpu_s=counted["cpu_s"],
        )

    def close(self, *, patience_s: float = 2.0) -> float:
        """Ends the child, and with it whatever it had attached; seconds for which probes were attached.

        A window that was finished may take `patience_s` to detach; one that was not is killed, which detaches too.
        """
        detached_s = self._child.close(patience_s=patience_s)
        if detached_s is not None:
            return detached_s
        return self._ended.attached_s if self._ended is not None else 0.0

    def __enter__(self) -> ProbeRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start(pids: Sequence[int], *, window_s: float = 0.5, calls: Sequence[str] = ("futex",)) -> ProbeRun:
    """Starts loading the probes for these processes and returns at once.

    The window opens when they are attached (0.3 s from now on a warm machine) and closes `window_s` later, or when
    `finish` asks for the counts. `calls` are the system calls to watch (`futex`, `futex_waitv`, `futex_wait`,
    `futex_wake`). Never raises: what goes wrong is the status that `finish` returns.
    """
    return ProbeRun(pids, window_s=window_s, calls=calls)
