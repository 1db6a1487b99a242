"""The process that holds probes (`pyhangtrace.probes.child`), seen from the one that started it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.probes import launch

_ANSWER_S = 0.05  # kept back from the deadline for stopping the count and reading the tables
_REAP_S = 5.0
_MAX_THREADS = 65536


class ProbeChild:
    """A running child. Close it, also after a failure. `source` is what its status lines are about.

    Never raises: what goes wrong is the status that `result` returns.
    """

    def __init__(self, request: launch.Request, *, source: str) -> None:
        self._source = source
        self._child: subprocess.Popen[bytes] | None = None
        self._ended: SourceStatus | None = None
        self._counted: dict[str, Any] | None = None
        self._buffer = b""
        self._messages: dict[str, Any] = {}
        self._errors = -1
        self._at_end = False
        if not request.pids:
            self._ended = self.status(SourceState.SKIPPED, "no process to probe")
            return
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
            self._ended = self.status(
                SourceState.FAILED, f"the probe process cannot be started: {error.strerror}"
            )

    @property
    def pid(self) -> int | None:
        """The process that holds the probes, None when there is none."""
        return self._child.pid if self._child is not None else None

    @property
    def opened_at(self) -> float | None:
        """When it began to count (time.monotonic()), None if it did not."""
        return float(self._messages["at_s"]) if "at_s" in self._messages else None

    def wait_until_attached(self, *, deadline_s: float) -> bool:
        """Of a child that waits to be told: until it could count; False if it does not by then, or never will."""
        if self._child is None:
            return False
        self._read_until(("attached", "unavailable"), time.monotonic() + deadline_s)
        return "attached" in self._messages

    def open(self) -> None:
        """Lets a child count that waits to be told."""
        self._write(b"g")

    def wait_until_open(self, *, deadline_s: float) -> bool:
        """Waits until the probes count; False if they do not by then, or never will."""
        if self._child is None:
            return False
        self._read_until(("ready", "unavailable"), time.monotonic() + deadline_s)
        return "ready" in self._messages

    def result(self, *, deadline_s: float, minimum_s: float = 0.1) -> dict[str, Any] | SourceStatus:
        """Ends the window and returns what was counted, or why there is nothing.

        Waits until the window has been open for `minimum_s`, but never beyond `deadline_s` from now; where nothing
        was counted by then, the status says `timed_out`. Detaching goes on behind; `close` waits for it.
        """
        if self._ended is None and self._counted is None:
            answer = self._finish(time.monotonic() + deadline_s, minimum_s)
            if isinstance(answer, SourceStatus):
                self._ended = answer
            else:
                self._counted = answer
        if self._counted is not None:
            return self._counted
        assert self._ended is not None
        return self._ended

    def _finish(self, deadline: float, minimum_s: float) -> dict[str, Any] | SourceStatus:
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
            return self.status(state, why["reason"], why["fix"])
        result: dict[str, Any] = self._messages["result"]
        return result

    def status(self, state: SourceState, reason: str, fix: str = "") -> SourceStatus:
        """A line of coverage about these probes."""
        return SourceStatus(source=self._source, state=state, reason=reason, fix=fix)

    def _without_answer(self, late: str) -> SourceStatus:
        """Tells a child that ended from one that is late."""
        assert self._child is not None
        if not self._at_end:
            # A longer window is no help where loading takes longer than a look may.
            fix = "look again when the machine is less busy" if "ready" not in self._messages else ""
            return self.status(SourceState.TIMED_OUT, f"the probe process {late}", fix)
        self._reap(self._child)
        complaint = os.pread(self._errors, 65536, 0).decode(errors="replace").strip().splitlines()
        why = complaint[-1] if complaint else f"it ended with status {self._child.returncode}"
        return self.status(SourceState.FAILED, f"the probe process failed: {why}")

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
        self._write(b"s")

    def _write(self, byte: bytes) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            os.write(self._child.stdin.fileno(), byte)
        except BrokenPipeError:
            pass  # its window has ended by itself

    def close(self, *, patience_s: float = 2.0) -> float | None:
        """Ends the child, and with it whatever it had attached; seconds for which probes were attached, None where it
        did not come to say so.

        A window that was finished may take `patience_s` to detach; one that was not is killed, which detaches too.
        """
        child = self._child
        if child is None:
            return 0.0
        if self._counted is None or not self._read_until(("detached_s",), time.monotonic() + patience_s):
            child.kill()
        self._reap(child)
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        os.close(self._errors)
        self._child = None
        if self._counted is None:
            self._ended = self._ended or self.status(SourceState.SKIPPED, "the window was abandoned")
        said = self._messages.get("detached_s")
        return float(said) if said is not None else None

    @staticmethod
    def _reap(child: subprocess.Popen[bytes]) -> None:
        """Takes the exit status. A child that the kernel holds on to is left; it ends with us at the latest."""
        try:
            child.wait(timeout=_REAP_S)
        except subprocess.TimeoutExpired:
            child.kill()


def room_for_threads(pids: Sequence[int]) -> int:
    """How many threads to count for: those that exist and as many again, within bounds."""
    threads = 0
    for pid in pids:
        try:
            threads += os.stat(f"/proc/{pid}/task").st_nlink - 2
        except OSError:  # it is gone, or not ours to look at
            continue
    return min(256 + 2 * threads, _MAX_THREADS)
