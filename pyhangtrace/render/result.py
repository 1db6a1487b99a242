"""What every writer gets."""

from __future__ import annotations

from dataclasses import dataclass

from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.recording import Recording, TimedEvent
from pyhangtrace.model.report import Report
from pyhangtrace.model.weighted import RecordingSummary, StackProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A report and the evidence it was made from."""

    report: Report
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordResult:
    """A recording and what analysis makes of it. `spans` are the collectives of its time line."""

    recording: Recording
    summary: RecordingSummary
    profile: StackProfile
    spans: tuple[TimedEvent, ...] = ()
