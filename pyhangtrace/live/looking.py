"""The process that looks (`looker`), seen from the view. Nothing here waits."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from dataclasses import dataclass

import msgspec

from pyhangtrace.live.looker import Answer, Request
from pyhangtrace.model.codec import unpack
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.report import Report
from pyhangtrace.render.result import Result

_END_S = 2.0
# Imports from where we do, before anything else is imported: never from the folder in which it happens to be started.
_START = (
    "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); "
    "from pyhangtrace.live.looker import main; main(sys.argv[1:])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What a look gave: the report and the evidence as a bundle, or why there is none."""

    report: Report | None
    bundle: bytes
    problem: str | None
    cpu_s: float

    @property
    def result(self) -> Result:
        """For the writers of files. There must be a report."""
        assert self.report is not None
        evidence: Evidence = unpack(self.bundle)
        return Result(report=self.report, evidence=evidence)


class Looking:
    """Starts the process at once: it needs half a second to be ready. Close it."""

    def __init__(self) -> None:
        self._buffer = b""
        self._memory = os.memfd_create("hangtrace-look")
        self._child: subprocess.Popen[bytes] | None = None
        self._busy = False
        self._start()

    def busy(self) -> bool:
        """Whether a look is under way."""
        return self._busy

    @property
    def fd(self) -> int | None:
        """Readable when `take` has something to give."""
        return (
            self._child.stdout.fileno()
            if self._child is not None and self._child.stdout is not None
            else None
        )

    def begin(self, pids: tuple[int, ...], *, max_window_s: float, bpf: bool) -> None:
        """Asks for a look; only when none is under way."""
        assert not self._busy
        request = Request(pids=pids, max_window_s=max_window_s, bpf=bpf)
        if self._child is None:
            self._start()
        assert self._child is not None
        assert self._child.stdin is not None
        self._busy = True
        try:
            os.write(self._child.stdin.fileno(), msgspec.json.encode(request) + b"\n")
        except OSError:
            pass  # it has ended; that is met when its answer is read

    def take(self) -> Looked | None:
        """The look that was asked for, if it is there by now."""
        if not self._busy or self._child is None or self._child.stdout is None:
            return None
        fd = self._child.stdout.fileno()
        while select.select([fd], [], [], 0)[0]:
            data = os.read(fd, 1 << 16)
            if not data:
                return self._lost()
            self._buffer += data
            line, found, rest = self._buffer.partition(b"\n")
            if found:
                self._buffer = rest
                self._busy = False
                return self._read(msgspec.json.decode(line, type=Answer))
        return None

    def _read(self, answer: Answer) -> Looked:
        if answer.problem is not None:
            return Looked(report=None, bundle=b"", problem=answer.problem, cpu_s=answer.cpu_s)
        report = os.pread(self._memory, answer.report, 0)
        return Looked(
            report=msgspec.json.decode(report, type=Report),
            bundle=os.pread(self._memory, answer.bundle, answer.report),
            problem=None,
            cpu_s=answer.cpu_s,
        )

    def _lost(self) -> Looked:
        self._busy = False
        self._end()
        return Looked(report=None, bundle=b"", problem="the process that looks has ended", cpu_s=0.0)

    def _start(self) -> None:
        self._buffer = b""
        self._child = subprocess.Popen(
            [sys.executable, "-c", _START, "\n".join(sys.path), str(self._memory), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[self._memory],
            start_new_session=True,
        )

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        try:
            child.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            pass  # whatever holds it: it ends with us
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()

    def close(self) -> None:
        """Ends the process, and with it what it has attached."""
        self._end()
        os.close(self._memory)
