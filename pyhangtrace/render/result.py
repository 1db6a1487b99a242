"""What every writer gets."""

from __future__ import annotations

from dataclasses import dataclass

from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A report and the evidence it was made from."""

    report: Report
    evidence: Evidence
