"""Evidence and report as JSON, and evidence as a `.hang` bundle. The only place that knows how data becomes
bytes.
"""

from __future__ import annotations

import gzip
import io
import zlib
from typing import Any

import msgspec

from pyhangtrace.model.errors import UsageError
from pyhangtrace.model.evidence import SCHEMA as EVIDENCE_SCHEMA
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.recording import SCHEMA as RECORDING_SCHEMA
from pyhangtrace.model.recording import Recording
from pyhangtrace.model.report import SCHEMA as REPORT_SCHEMA
from pyhangtrace.model.report import MemoryAnswer, Report
from pyhangtrace.model.weighted import RecordingSummary

SUMMARY_SCHEMA = "hangtrace.recording-summary/1"

# A bundle of a thousand ranks is a few megabytes; more than this is not one of ours, or is meant to hurt.
MAX_BUNDLE_BYTES = 1 << 30


def report_to_json(report: Report) -> bytes:
    """The report as one indented JSON object, with a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def memory_to_json(answer: MemoryAnswer) -> bytes:
    """The answer of `hangtrace memory` as one indented JSON object, with a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(answer), indent=2) + b"\n"


def report_from_json(data: bytes) -> Report:
    """Reads and validates what `report_to_json` wrote. Raises UsageError."""
    try:
        report = msgspec.json.decode(data, type=Report)
    except msgspec.MsgspecError as error:
        raise UsageError(f"not a report: {error}") from error
    if report.schema != REPORT_SCHEMA:
        raise UsageError(f"a report of schema {report.schema!r}; this version reads {REPORT_SCHEMA!r}")
    return report


def report_schema() -> dict[str, Any]:
    """The JSON Schema of the report, generated from the model."""
    return msgspec.json.schema(Report)


def pack(evidence: Evidence | Recording) -> bytes:
    """Evidence, or a recording, as a compressed bundle. Equal data gives equal bytes (no time stamp inside)."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, filename="") as stream:
        stream.write(msgspec.json.encode(evidence))
    return buffer.getvalue()


def unpack(data: bytes) -> Evidence:
    """Reads a bundle, validating it against the model. Raises UsageError on anything that is not one."""
    evidence = unpack_any(data)
    if isinstance(evidence, Recording):
        raise UsageError("not an evidence bundle: it is a recording")
    return evidence


def unpack_any(data: bytes) -> Evidence | Recording:
    """Reads a bundle of either kind. Raises UsageError on anything that is none."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            raw = stream.read(MAX_BUNDLE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"not an evidence bundle: {error}") from error
    if len(raw) > MAX_BUNDLE_BYTES:
        raise UsageError("not an evidence bundle: larger than 1 GiB when unpacked")
    try:
        schema = msgspec.json.decode(raw, type=_Header).schema
        if schema == RECORDING_SCHEMA:
            return _checked(msgspec.json.decode(raw, type=Recording))
        if schema != EVIDENCE_SCHEMA:
            raise UsageError(f"a bundle of schema {schema!r}; this version reads {EVIDENCE_SCHEMA!r}")
        evidence = msgspec.json.decode(raw, type=Evidence)
    except msgspec.MsgspecError as error:
        raise UsageError(f"not an evidence bundle: {error}") from error
    if not evidence.looks:
        raise UsageError("not an evidence bundle: it holds no look")
    return evidence


def _checked(recording: Recording) -> Recording:
    if any(not 0 <= sample.stack < len(recording.stacks) for sample in recording.samples):
        raise UsageError("not a recording: a snapshot has a stack that is not there")
    return recording


def summary_to_json(summary: RecordingSummary, recording: Recording) -> bytes:
    """The table of a recording as one indented JSON object, with a newline at the end."""
    whole = {
        "schema": SUMMARY_SCHEMA,
        "tool_version": recording.tool_version,
        "taken_at": recording.taken_at,
        "host": recording.host,
        "window_s": recording.window_s,
        "metric": recording.metric,
        "processes": summary.rows,
        "notes": summary.notes,
        "coverage": recording.coverage,
        "cost": recording.cost,
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"


class _Header(msgspec.Struct):
    schema: str
