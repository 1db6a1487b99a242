"""Frames of the evidence as the report shows them."""

from __future__ import annotations

from pyhangtrace.model.report import ReportFrame
from pyhangtrace.model.stacks import Frame


def report_frame(frame: Frame | None) -> ReportFrame | None:
    """A frame of the evidence as the report shows it."""
    if frame is None:
        return None
    return ReportFrame(
        kind=frame.kind,
        function=frame.function,
        file=frame.file,
        line=frame.line,
        module=frame.module,
        address=frame.address,
        found_by=frame.found_by,
    )
