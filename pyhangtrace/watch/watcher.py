"""The order of a watch: find the job, read its counters again and again, look when it stalls, tell once.

Between two readings it sleeps. Nothing is attached and no memory of the job is read before it stalls.
"""

from __future__ import annotations

import platform
import resource
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyhangtrace import __version__
from pyhangtrace.analyze import episodes
from pyhangtrace.analyze.pace import advance, stalled
from pyhangtrace.engine import AttachOptions, attach
from pyhangtrace.members import Members
from pyhangtrace.model.errors import HangtraceError, NoSuchProcess
from pyhangtrace.model.kinds import State
from pyhangtrace.model.pace import Standing
from pyhangtrace.model.watch import Episode, WatchedProcess, WatchLimits, WatchStatus
from pyhangtrace.render.prometheus import render_metrics
from pyhangtrace.render.result import Result
from pyhangtrace.render.text.headline import headline_title
from pyhangtrace.watch import command
from pyhangtrace.watch.bundle import check_folder, report_name, write_bundle, write_whole

Say = Callable[[str], None]

_SLOWEST_S = 5.0
_FASTEST_S = 0.1
_PER_STALL = 6  # readings within the time that makes a stall
_SHARE = 2000  # at most one part in so many of the time goes into reading
_METRICS_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """`folder` takes the reports, `run` is a command of the shell, `metrics` a file for Prometheus."""

    limits: WatchLimits
    folder: Path
    run: str | None = None
    metrics: Path | None = None
    bpf: bool = True


def watch(pids: Sequence[int], options: WatchOptions, *, say: Say, stop: threading.Event) -> None:
    """Watches the job of these processes until it ends or `stop` is set. Nobody is stopped or written to.

    Raises NoSuchProcess, NotPermitted, UsageError and OutputFailed at the start, and nothing later.
    """
    _Watch(asked=tuple(dict.fromkeys(pids)), options=options, say=say, stop=stop).run()


@dataclass(slots=True, kw_only=True)
class _Watch:
    asked: tuple[int, ...]
    options: WatchOptions
    say: Say
    stop: threading.Event
    members: Members = field(init=False)
    standings: dict[int, Standing] = field(default_factory=dict)
    episode: Episode = field(init=False)
    verdict: tuple[State, str | None] | None = None
    stalls: dict[State, int] = field(default_factory=dict)
    reports: int = 0
    failures: int = 0
    last_look_at: float | None = None
    last_report_at: float | None = None
    metrics_s: float | None = None
    metrics_failed: bool = False

    def run(self) -> None:
        check_folder(self.options.folder)
        if self.options.metrics is not None:
            check_folder(self.options.metrics.parent)
        self.members = Members(asked=self.asked)
        self.members.find(time.monotonic())
        self.episode = episodes.begin(self.options.limits)
        pause_s = min(_SLOWEST_S, max(self.options.limits.stall_s / _PER_STALL, _FASTEST_S))
        cost_s = self._beat()
        many = len(self.members.known)
        self.say(
            f"watching {many} process{'es' if many != 1 else ''} of the job of pid {self.asked[0]}, "
            f"which stalls when it does nothing for {self.options.limits.stall_s:g} s"
        )
        while self.standings and not self.stop.wait(max(pause_s, _SHARE * cost_s)):
            cost_s = self._beat()
        if not self.standings:
            self.say("the job has ended")
        self._write_metrics(up=False)

    def _beat(self) -> float:
        """One reading and what follows from it; the CPU seconds that reading takes."""
        began_s, cpu_before = time.monotonic(), time.thread_time()
        read = self.members.read(began_s)
        searched = self.members.searched_s == began_s
        self.standings = advance(self.standings, read, began_s)
        still = stalled(self.standings, self.members.workers, began_s, self.options.limits.stall_s)
        self.episode = episodes.observe(self.episode, still, began_s, self.options.limits)
        cost_s = 0.0 if searched else time.thread_time() - cpu_before
        if not still:
            self.verdict = None
        if read and episodes.wants_look(self.episode, began_s, self.options.limits):
            self._look(sorted(read))
        if self.metrics_s is None or began_s - self.metrics_s >= _METRICS_S:
            self._write_metrics(up=True)
        return cost_s

    def _look(self, living: Sequence[int]) -> None:
        quiet_s = max(time.monotonic() - self.standings[pid].since_s for pid, _ in self.episode.still)
        self.say(f"no work for {quiet_s:.0f} s: looking")
        asked = [pid for pid in self.asked if pid in living] or living[:1]
        result = self._attached(asked)
        now_s = time.monotonic()
        if result is None:
            self.episode = episodes.failed(self.episode, now_s, self.options.limits)
            return
        verdict = result.report.verdict
        self.verdict = (verdict.state, verdict.cause.value if verdict.cause else None)
        self.stalls[verdict.state] = self.stalls.get(verdict.state, 0) + 1
        self.last_look_at = time.time()
        self.episode, tell = episodes.looked(self.episode, verdict.state, now_s, self.options.limits)
        self.say(f"{verdict.state.value.upper()}  {headline_title(result.report)}")
        if tell:
            self._report(result)
        self._write_metrics(up=True)

    def _attached(self, asked: Sequence[int]) -> Result | None:
        try:
            return attach(asked, AttachOptions(bpf=self.options.bpf))
        except NoSuchProcess:
            return None  # it ends just now: the next reading tells
        except HangtraceError as error:
            self._fail(f"cannot look: {error.summary}")
        except Exception as error:  # noqa: BLE001 - whatever goes wrong with one look, the watch goes on
            self._fail(f"cannot look: {type(error).__name__}: {error}")
        return None

    def _report(self, result: Result) -> None:
        """Files first, then the number that says so, then the command: it may end the job, or us."""
        name = report_name(result.report.taken_at, self.asked)
        bundle = write_bundle(result, self.options.folder, name)
        for failure in bundle.failures:
            self._fail(failure)
        if bundle.files:
            self.reports += 1
            self.last_report_at = time.time()
            self.say(f"wrote {self.options.folder / name} ({' '.join(bundle.files)})")
        self._write_metrics(up=True)
        if self.options.run is not None:
            argument = bundle.files.get(".hang", self.options.folder)
            told = command.environment(result.report, bundle.files)
            problem = command.run(self.options.run, argument, told, stop=self.stop)
            if problem is not None:
                self._fail(problem)

    def _fail(self, sentence: str) -> None:
        self.failures += 1
        self.say(sentence)

    # -- metrics -----------------------------------------------------------------------------------------------

    def _write_metrics(self, *, up: bool) -> None:
        if self.options.metrics is None:
            return
        self.metrics_s = time.monotonic()
        try:
            write_whole(self.options.metrics, render_metrics(self._status(self.metrics_s, up=up)))
        except OSError as error:
            if not self.metrics_failed:
                self._fail(f"cannot write {str(self.options.metrics)!r}: {error.strerror}")
            self.metrics_failed = True
        else:
            self.metrics_failed = False

    def _status(self, at_s: float, *, up: bool) -> WatchStatus:
        return WatchStatus(
            tool_version=__version__,
            host=platform.node(),
            asked=self.asked,
            framework=self.members.framework,
            up=up,
            processes=tuple(
                WatchedProcess(
                    pid=pid,
                    rank=self.members.known[pid].rank,
                    pace=standing.pace,
                    quiet_s=round(at_s - standing.since_s, 1),
                )
                for pid, standing in sorted(self.standings.items())
                if pid in self.members.known
            ),
            verdict=self.verdict[0] if self.verdict else None,
            verdict_cause=self.verdict[1] if self.verdict else None,
            stalls=self.stalls,
            reports=self.reports,
            failures=self.failures,
            last_look_at=self.last_look_at,
            last_report_at=self.last_report_at,
            cpu_s=round(_cpu_s(), 3),
        )


def _cpu_s() -> float:
    """Of this process and of the helpers that have ended."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
