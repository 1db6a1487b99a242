"""Every format of a recording: validity by the format's own rules, and what must be in it."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pyhangtrace.analyze.recording import collective_spans, compared, profile, summarise
from pyhangtrace.model.codec import pack, unpack, unpack_any
from pyhangtrace.model.errors import UsageError
from pyhangtrace.model.recording import Metric
from pyhangtrace.render.registry import RECORDING_FORMATS, recording_format_for
from pyhangtrace.render.result import RecordResult
from tests.unit.render.recorded import recording


def result(metric: Metric = Metric.FUTEX, *, difference: bool = False) -> RecordResult:
    made = recording(metric)
    shown = profile(made)
    if difference:
        shown = compared(shown, shown, scale=0.5)
    return RecordResult(recording=made, summary=summarise(made), profile=shown, spans=collective_spans(made))


def written(suffix: str, made: RecordResult | None = None) -> bytes:
    return recording_format_for(f"x{suffix}").write(made or result())


@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("difference", [False, True])
@pytest.mark.parametrize("suffix", [entry.suffix for entry in RECORDING_FORMATS])
def test_every_format_is_deterministic(suffix: str, metric: Metric, difference: bool) -> None:
    data = written(suffix, result(metric, difference=difference))
    assert data
    assert data == written(suffix, result(metric, difference=difference))


def test_longest_suffix_wins() -> None:
    assert recording_format_for("a.trace.json").name == "trace"
    assert recording_format_for("a.speedscope.json").name == "speedscope"
    assert recording_format_for("a.json").name == "json"
    with pytest.raises(UsageError, match="suffix"):
        recording_format_for("a.pb")


def test_a_saved_recording_comes_back_equal() -> None:
    assert unpack_any(written(".hang")) == recording()
    with pytest.raises(UsageError, match="recording"):
        unpack(pack(recording()))


def test_text_is_at_most_80_columns_wide() -> None:
    text = written(".txt").decode()
    assert max(map(len, text.splitlines())) <= 80
    assert "rank 0" in text
    assert "helper, still waiting" in text
    assert "helper woke MainThread 4 times" in text


def test_folded_lines_are_in_microseconds() -> None:
    lines = dict(line.rsplit(" ", 1) for line in written(".folded").decode().splitlines())
    stack = "rank 0;MainThread;<module> (train.py:90);take (train.py:12);futex_wait (libc.so.6)"
    assert int(lines[stack]) == round(0.8e6 * 2 / 3)
    assert lines["rank 0;helper;[in no snapshot]"] == "2000000"


def test_folded_difference_has_the_earlier_number_first() -> None:
    for line in written(".folded", result(difference=True)).decode().splitlines():
        _, before, now = line.rsplit(" ", 2)
        assert int(before) == pytest.approx(int(now) / 2, abs=1)


# -- speedscope ----------------------------------------------------------------------------------------------


def test_speedscope_weights_add_up() -> None:
    document = json.loads(written(".speedscope.json"))
    frames = document["shared"]["frames"]
    for shown in document["profiles"]:
        assert shown["unit"] == "seconds"
        assert len(shown["samples"]) == len(shown["weights"])
        assert shown["endValue"] == pytest.approx(sum(shown["weights"]))
        assert all(0 <= index < len(frames) for sample in shown["samples"] for index in sample)
    assert sum(shown["endValue"] for shown in document["profiles"]) == pytest.approx(3.4)


def test_speedscope_difference_has_both_sides() -> None:
    names = [
        shown["name"]
        for shown in json.loads(written(".speedscope.json", result(difference=True)))["profiles"]
    ]
    assert names == ["rank 0 (pid 100): now", "rank 0 (pid 100): before"]


# -- Chrome trace --------------------------------------------------------------------------------------------

# After the "Trace Event Format" document: what each phase must have.
_NUMBER = {"type": "number"}
_COMMON = {"name": {"type": "string"}, "pid": {"type": "integer"}, "tid": {"type": "integer"}, "ts": _NUMBER}


def _phase(phase: str, *required: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"ph": {"const": phase}, **_COMMON, "args": {"type": "object"}, **more},
        "required": ["ph", "name", "pid", "tid", *required],
    }


TRACE_SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    _phase("M", "args", name={"enum": ["process_name", "process_sort_index", "thread_name"]}),
                    _phase("X", "ts", "dur", dur={"type": "number", "minimum": 0}),
                    _phase("i", "ts", "s", s={"enum": ["t", "p", "g"]}),
                    _phase("C", "ts", "args", args={"additionalProperties": _NUMBER, "minProperties": 1}),
                    *(
                        _phase(phase, "ts", "cat", "id2", id2={"required": ["local"]}, cat={"type": "string"})
                        for phase in "be"
                    ),
                ]
            },
        },
    },
}


def trace_problems(document: dict[str, Any]) -> Iterator[str]:
    """What a viewer could not draw: bad members, complete events that cross within a thread, spans without an end."""
    validator = jsonschema.Draft202012Validator(TRACE_SCHEMA)
    yield from (error.message[:200] for error in validator.iter_errors(document))
    complete: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    begun: dict[tuple[int, str], float] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            complete[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "b":
            begun[event["pid"], event["id2"]["local"]] = event["ts"]
        elif event["ph"] == "e":
            start = begun.pop((event["pid"], event["id2"]["local"]), None)
            if start is None or event["ts"] < start:
                yield f"{event['name']} ends without having begun"
    yield from (f"span {key} has no end" for key in begun)
    for thread, spans in complete.items():
        outer: list[float] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while outer and outer[-1] <= start:
                outer.pop()
            if outer and end > outer[-1] + 0.001:  # times are rounded to nanoseconds
                yield f"thread {thread}: {start}-{end} crosses {outer[-1]}"
            outer.append(end)


def test_chrome_trace_is_valid_and_nests() -> None:
    document = json.loads(written(".trace.json"))
    assert list(trace_problems(document)) == []
    events = document["traceEvents"]
    waits = [event for event in events if event["name"] == "futex wait"]
    assert {(event["tid"], event["ts"], event["dur"]) for event in waits} == {
        (100, 100_000, 500_000),
        (100, 1_400_000, 600_000),  # goes on
        (101, 0, 2_000_000),  # had begun before
    }
    assert waits[0]["args"]["woken by"] == "helper (101)"
    assert {event["name"] for event in events if event["ph"] == "i"} == {
        "major page fault",
        "SIGUSR1",
        "exit",
    }
    assert [event["args"] for event in events if event["ph"] == "C"] == [{"minor": 10.0, "major": 2.0}]
    assert [event["ts"] for event in events if event["ph"] == "b"] == [1_500_000, 1_000_000]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["rank 0 python train.py", "rank 1 python train.py"]


def test_a_crossing_is_seen() -> None:
    crossing = {
        "traceEvents": [
            {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 10},
            {"ph": "X", "name": "b", "pid": 1, "tid": 1, "ts": 5, "dur": 10},
            {"ph": "X", "name": "c", "pid": 1, "tid": 1, "ts": 5},
            {"ph": "b", "name": "d", "cat": "x", "id2": {"local": "0x1"}, "pid": 1, "tid": 1, "ts": 5},
        ]
    }
    del crossing["traceEvents"][2]
    assert len(list(trace_problems(crossing))) == 2
    del crossing["traceEvents"][0]["dur"]
    with pytest.raises(KeyError):
        list(trace_problems(crossing))


# -- pprof ---------------------------------------------------------------------------------------------------


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and values of a protobuf message: integers, or bytes."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while place < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            assert key & 7 == 2, "neither an integer nor a length"
            size = varint()
            yield key >> 3, data[place : place + size]
            place += size


def integers(data: bytes) -> list[int]:
    """A packed repeated field of int64."""
    values = []
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            values.append(value - (1 << 64) if value >> 63 else value)
            value = shift = 0
    return values


def decoded(data: bytes) -> list[tuple[tuple[str, ...], int, dict[str, Any]]]:
    """(functions leaf first, value, labels) of each sample, everything referred to being there."""
    message = list(fields(gzip.decompress(data)))
    strings = [value.decode() for number, value in message if number == 6]
    assert strings[0] == ""
    functions = {}
    for number, value in message:
        if number == 5:
            entry = dict(fields(value))
            functions[entry[1]] = strings[entry[2]]
    places = {}
    for number, value in message:
        if number == 4:
            entry = dict(fields(value))
            places[entry[1]] = functions[dict(fields(entry[4]))[1]]
    samples = []
    for number, value in message:
        if number == 2:
            entry = list(fields(value))
            stack = tuple(places[place] for n, packed in entry if n == 1 for place in integers(packed))
            (amount,) = [integers(packed)[0] for n, packed in entry if n == 2]
            labels = [dict(fields(label)) for n, label in entry if n == 3]
            samples.append(
                (
                    stack,
                    amount,
                    {strings[each[1]]: strings[each[2]] if 2 in each else each.get(3, 0) for each in labels},
                )
            )
    return samples


def test_pprof_says_the_same_as_the_profile() -> None:
    samples = decoded(written(".pb.gz"))
    assert sum(value for _, value, _ in samples) == pytest.approx(3.4e9, abs=10)
    stack, value, labels = next(sample for sample in samples if "take" in sample[0])
    assert stack == ("futex_wait (libc.so.6)", "take", "<module>", "thread MainThread", "rank 0")
    assert value == pytest.approx(0.8e9 * 2 / 3, abs=1)
    assert labels == {"rank": "0", "thread": "MainThread", "pid": 100, "tid": 100}


def test_pprof_of_a_difference_has_a_negative_base() -> None:
    samples = decoded(written(".pb.gz", result(difference=True)))
    base = [value for _, value, labels in samples if labels.get("pprof::base") == "true"]
    assert sum(base) == pytest.approx(-1.7e9, abs=10)
    assert all(value < 0 for value in base)


# -- HTML ----------------------------------------------------------------------------------------------------


def test_html_is_whole_and_safe() -> None:
    page = written(".html", result(Metric.FAULTS)).decode()
    assert "src=" not in page
    assert "http" not in page.replace("http-equiv", "").replace("https://no-color", "")
    # A function's name of the target cannot become markup.
    assert "<b>" not in page.split('id="hangtrace-data">')[1].split("</script>")[0]
    assert page.count("<script") == 2


def test_the_page_of_a_difference_says_so(tmp_path: Path) -> None:
    page = written(".html", result(difference=True)).decode()
    data = json.loads(page.split('id="hangtrace-data">')[1].split("</script>")[0])
    assert data["compared"] is True
    assert all(item["before"] == pytest.approx(item["weight"] / 2) for item in data["classes"])
