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
from pyhangtrace.model.report import SCHEMA as REPORT_SCHEMA
from pyhangtrace.model.report import Report

# A bundle of a thousand ranks is a few megabytes; more than this is not one of ours, or is meant to hurt.
MAX_BUNDLE_BYTES = 1 << 30


def report_to_json(report: Report) -> bytes:
    """The report as one indented JSON object, with a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


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


def pack(evidence: Evidence) -> bytes:
    """Evidence as a compressed bundle. Equal evidence gives equal bytes (no time stamp inside)."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, filename="") as stream:
        stream.write(msgspec.json.encode(evidence))
    return buffer.getvalue()


def unpack(data: bytes) -> Evidence:
    """Reads a bundle, validating it against the model. Raises UsageError on anything that is not one."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            raw = stream.read(MAX_BUNDLE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"not an evidence bundle: {error}") from error
    if len(raw) > MAX_BUNDLE_BYTES:
        raise UsageError("not an evidence bundle: larger than 1 GiB when unpacked")
    try:
        schema = msgspec.json.decode(raw, type=_Header).schema
        if schema != EVIDENCE_SCHEMA:
            raise UsageError(f"a bundle of schema {schema!r}; this version reads {EVIDENCE_SCHEMA!r}")
        evidence = msgspec.json.decode(raw, type=Evidence)
    except msgspec.MsgspecError as error:
        raise UsageError(f"not an evidence bundle: {error}") from error
    if not evidence.looks:
        raise UsageError("not an evidence bundle: it holds no look")
    return evidence


class _Header(msgspec.Struct):
    schema: str
