"""The eBPF window: starts the process that counts futex waits and page faults, and takes what it counted.

It loads beside everything else (about 0.3 s of CPU, most of it bcc's compiler) and is never waited for longer than
the caller's deadline.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.probes import events, launch
from pyhangtrace.probes import result as results

SOURCE = "ebpf"
_ANSWER_S = 0.05  # kept back from the deadline for stopping the count and reading the tables
_REAP_S = 5.0
_MAX_THREADS = 65536


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
        self._child: subprocess.Popen[bytes] | None = None
        self._ended: ProbeWindow | None = None
        self._buffer = b""
        self._messages: dict[str, Any] = {}
        self._errors = -1
        self._at_end = False
        if not self._pids:
            self._ended = _without(SourceState.SKIPPED, "no process to probe")
            return
        request = launch.request(
            self._pids, window_s=window_s, max_threads=_room_for_threads(self._pids), calls=calls
        )
        try:
            # A file in memory, since a pipe that nobody reads would block the compiler's complaints.
            self._errors = os.memfd_create("hangtrace-probes")
            self._child = subprocess.Popen(
                request.command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C is ours to handle; the child sees us end
                cwd="/",
            )
        except OSError as error:
            self._ended = _without(
                SourceState.FAILED, f"the probe process cannot be started: {error.strerror}"
            )

    @property
    def child_pid(self) -> int | None:
        """The process that holds the probes, None when there is none."""
        return self._child.pid if self._child is not None else None

    def wait_until_open(self, *, deadline_s: float) -> bool:
        """Waits until the probes count; False if they do not by then, or never will."""
        if self._child is None:
            return False
        self._read_until(("ready", "unavailable"), time.monotonic() + deadline_s)
        return "ready" in self._messages

    def finish(self, *, deadline_s: float, minimum_s: float = 0.1) -> ProbeWindow:
        """Ends the window and returns what was counted.

        Waits until the window has been open for `minimum_s`, but never beyond `deadline_s` from now; where nothing
        was counted by then, the status says `timed_out`. Detaching goes on behind; `close` waits for it.
        """
        if self._ended is None:
            deadline = time.monotonic() + deadline_s
            self._ended = self._finish(deadline, minimum_s)
        return self._ended

    def _finish(self, deadline: float, minimum_s: float) -> ProbeWindow:
        if not self._read_until(("ready", "unavailable"), deadline - _ANSWER_S):
            return self._without_answer("was not ready in time")
        if "ready" in self._messages:
            self._read_until(("result",), min(self._messages["at_s"] + minimum_s, deadline - _ANSWER_S))
            self._tell_to_stop()
            if not self._read_until(("result",), deadline):
                return self._without_answer("gave no counts in time")
        if "unavailable" in self._messages:
            why = self._messages["unavailable"]
            state = SourceState.REFUSED if why["permission"] else SourceState.ABSENT
            return _without(state, why["reason"], why["fix"])
        return self._decoded(self._messages["result"])

    def _decoded(self, counted: dict[str, Any]) -> ProbeWindow:
        try:
            processes = results.decode(
                self._pids,
                threads=base64.b64decode(counted["threads"], validate=True),
                pairs=base64.b64decode(counted["pairs"], validate=True),
                lost=events.Lost(*counted["lost"]),
                window_s=counted["window_s"],
                closed_ns=counted["closed_ns"],
            )
        except (binascii.Error, KeyError, TypeError, ValueError) as error:
            return _without(SourceState.FAILED, f"the probes' counts cannot be decoded: {error}")
        reason = f"futex and page-fault probes counted for {counted['window_s']:.2f} s"
        if any(counted["lost"]):
            reason += f"; {sum(counted['lost'])} events found no room"
        return ProbeWindow(
            status=SourceStatus(source=SOURCE, state=SourceState.USED, reason=reason),
            processes=processes,
            window_s=counted["window_s"],
            attached_s=counted["attached_s"],
            cpu_s=counted["cpu_s"],
        )

    def _without_answer(self, late: str) -> ProbeWindow:
        """Tells a child that ended from one that is late."""
        assert self._child is not None
        if not self._at_end:
            return _without(SourceState.TIMED_OUT, f"the probe process {late}", "a longer window: -d 2")
        self._reap(self._child)
        complaint = os.pread(self._errors, 65536, 0).decode(errors="replace").strip().splitlines()
        why = complaint[-1] if complaint else f"it ended with status {self._child.returncode}"
        return _without(SourceState.FAILED, f"the probe process failed: {why}")

    def _read_until(self, wanted: Sequence[str], deadline: float) -> bool:
        """Reads messages until one of the wanted is there (True), the child closed its end or time is up."""
        assert self._child is not None
        assert self._child.stdout is not None
        output = self._child.stdout.fileno()
        poll = select.poll()
        poll.register(output, select.POLLIN)
        while not any(name in self._messages for name in wanted) and not self._at_end:
            # What is there already is read also when no time is left.
            if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
                return False
            data = os.read(output, 1 << 16)
            self._at_end = not data
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            try:
                for line in lines:
                    self._messages.update(json.loads(line))
            except (TypeError, ValueError):
                self._at_end = True  # whatever it is that talks, it is not our child
                self._child.kill()
        return any(name in self._messages for name in wanted)

    def _tell_to_stop(self) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            os.write(self._child.stdin.fileno(), b"s")
        except BrokenPipeError:
            pass  # its window has ended by itself

    def close(self, *, patience_s: float = 2.0) -> float:
        """Ends the child, and with it whatever it had attached; seconds for which probes were attached.

        A window that was finished may take `patience_s` to detach; one that was not is killed, which detaches too.
        """
        child = self._child
        if child is None:
            return 0.0
        counted = self._ended is not None and self._ended.status.state is SourceState.USED
        if not (counted and self._read_until(("detached_s",), time.monotonic() + patience_s)):
            child.kill()
        self._reap(child)
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        os.close(self._errors)
        self._child = None
        self._ended = self._ended or _without(SourceState.SKIPPED, "the window was abandoned")
        return float(self._messages.get("detached_s", self._ended.attached_s))

    @staticmethod
    def _reap(child: subprocess.Popen[bytes]) -> None:
        """Takes the exit status. A child that the kernel holds on to is left; it ends with us at the latest."""
        try:
            child.wait(timeout=_REAP_S)
        except subprocess.TimeoutExpired:
            child.kill()

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


def _without(state: SourceState, reason: str, fix: str = "") -> ProbeWindow:
    return ProbeWindow(status=SourceStatus(source=SOURCE, state=state, reason=reason, fix=fix))


def _room_for_threads(pids: Sequence[int]) -> int:
    """How many threads to count for: those that exist and as many again, within bounds."""
    threads = 0
    for pid in pids:
        try:
            threads += os.stat(f"/proc/{pid}/task").st_nlink - 2
        except OSError:  # it is gone, or not ours to look at
            continue
    return min(256 + 2 * threads, _MAX_THREADS)
