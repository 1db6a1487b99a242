"""The probes of a recording: processes that hold them, from their start to what they counted."""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from pyhangtrace.collect import called_functions
from pyhangtrace.collect.called_functions import Found
from pyhangtrace.collect.probe_child import ProbeChild, room_for_threads
from pyhangtrace.collect.record_tables import (
    ACTIVITY_SOURCE,
    CALLS_SOURCE,
    FUTEX_SOURCE,
    Counted,
    decoded,
    with_calls,
)
from pyhangtrace.model.evidence import SourceStatus
from pyhangtrace.model.kinds import SourceState
from pyhangtrace.model.recording import Metric
from pyhangtrace.probes import calls_events, launch

LONG_WAIT_S = 0.001  # what is on the time line one by one


class RecordProbes:
    """The children that hold the probes of a recording. Close it; as a context manager it closes itself."""

    def __init__(self, pids: Sequence[int], *, window_s: float, metric: Metric) -> None:
        self._pids = tuple(dict.fromkeys(pids))
        self._window_s = window_s
        self._calls: ProbeChild | None = None
        self._no_calls: SourceStatus | None = None
        wants = ["words", "timeline"]
        if metric is Metric.FAULTS:
            wants.append("places")
        more = ["timeline", "off cpu"] if metric is Metric.OFFCPU else ["timeline"]

        self.futex = self._child("window", wants, FUTEX_SOURCE)
        self.activity = self._child("activity", more, ACTIVITY_SOURCE)

    def _child(self, program: str, wants: Sequence[str], source: str, **more: Any) -> ProbeChild:
        request = launch.request(
            self._pids,
            window_s=self._window_s + 5,  # we end it; this is for when we cannot
            max_threads=room_for_threads(self._pids),
            program=program,
            wants=wants,
            long_wait_ns=int(LONG_WAIT_S * 1e9),
            waits=True,
            **more,
        )
        return ProbeChild(request, source=source)

    def watch_calls(self, found: Mapping[int, Sequence[Found]], families: Sequence[str]) -> None:
        """Loads uprobes for these functions of the targets too."""
        if found:
            self._calls = self._child(
                "calls",
                ["timeline"],
                CALLS_SOURCE,
                places=called_functions.places(found),
                sites=called_functions.sites(found, calls_events.NO_OBJECT),
            )
        else:
            reason = f"no process has a function of: {', '.join(families)}"
            self._no_calls = SourceStatus(source=CALLS_SOURCE, state=SourceState.ABSENT, reason=reason)

    def open(self, *, deadline_s: float) -> float | None:
        """Lets all of them count at the same moment, and returns that (time.monotonic()). Those that cannot are left
        out; None if the futex probes are among them.
        """
        if not self.futex.wait_until_attached(deadline_s=deadline_s):
            return None
        others = [child for child in (self.activity, self._calls) if child is not None]
        ready = [self.futex, *(child for child in others if child.wait_until_attached(deadline_s=deadline_s))]
        for child in ready:
            child.open()
        for child in ready:
            child.wait_until_open(deadline_s=deadline_s)
        opened = [at for child in ready if (at := child.opened_at) is not None]
        return max(opened) if self.futex.opened_at is not None else None

    def missing(self, metric: Metric) -> SourceStatus | None:
        """Why the probes that the metric needs do not count, None if they do."""
        child = self.activity if metric is Metric.OFFCPU else self.futex
        if child.opened_at is not None:
            return None
        answer = child.result(deadline_s=0)
        return answer if isinstance(answer, SourceStatus) else None

    def finish(
        self, *, deadline_s: float, communicators: Mapping[int, Mapping[int, str]]
    ) -> Counted | SourceStatus:
        """Ends the windows and returns what was counted, or why the futex probes have nothing. `communicators`: for
        each process what is known of those, by handle.
        """
        counted = self.futex.result(deadline_s=deadline_s, minimum_s=0)
        more = self.activity.result(deadline_s=deadline_s, minimum_s=0)
        calls = self._calls.result(deadline_s=deadline_s, minimum_s=0) if self._calls else self._no_calls
        if isinstance(counted, SourceStatus):
            return counted
        try:
            return with_calls(decoded(self._pids, counted, more), calls, counted, communicators)
        except (binascii.Error, KeyError, TypeError, ValueError) as error:
            return self.futex.status(SourceState.FAILED, f"the probes' counts cannot be decoded: {error}")

    def close(self) -> None:
        """Ends the children, and with them whatever they had attached."""
        for child in (self.futex, self.activity, self._calls):
            if child is not None:
                child.close()

    def __enter__(self) -> RecordProbes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
