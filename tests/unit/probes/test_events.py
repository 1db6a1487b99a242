"""The structures that Python reads are the ones that C writes."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

import pyhangtrace.probes
from pyhangtrace.probes import activity_events, calls_events, events

INCLUDE = Path(pyhangtrace.probes.__file__).parent / "headers" / "include"


@pytest.fixture(scope="module")
def c_layout(tmp_path_factory: pytest.TempPathFactory, c_compiler: str) -> dict[str, int]:
    """Offset of each member and size of each structure, as a C compiler lays them out."""
    members = [("thread_sums", name) for name in events.ThreadSums._fields]
    members += [("wake_pair", name) for name in events.WakePair._fields]
    lines = [f'printf("{of}.{name} %zu\\n", offsetof(struct {of}, {name}));' for of, name in members]
    lines += [f'printf("{of} %zu\\n", sizeof(struct {of}));' for of in ("thread_sums", "wake_pair")]
    lines += [f'printf("LOST_{kind.upper()} %d\\n", LOST_{kind.upper()});' for kind in events.Lost._fields]
    lines += ['printf("LOST_KINDS %d\\n", LOST_KINDS);']
    folder = tmp_path_factory.mktemp("layout")
    # The header by its own path: the stub tree around it must not replace the compiler's own headers.
    header = INCLUDE / "hangtrace" / "window_events.h"
    source = folder / "layout.c"
    source.write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\nint main(void) {{ {" ".join(lines)} }}\n'
    )
    program = folder / "layout"
    subprocess.run([c_compiler, "-o", program, source], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {name: int(number) for name, number in (line.split() for line in printed.splitlines())}


def test_members_are_where_c_puts_them(c_layout: dict[str, int]) -> None:
    for of, dtype in (("thread_sums", events.thread_dtype()), ("wake_pair", events.pair_dtype())):
        assert dtype.itemsize == c_layout[of]
        assert dtype.fields is not None
        for name, (_, offset, *_) in dtype.fields.items():
            assert offset == c_layout[f"{of}.{name}"], name


def test_struct_formats_read_the_same(c_layout: dict[str, int]) -> None:
    for of, packed, fields in (
        ("thread_sums", events.THREAD_SUMS, events.ThreadSums._fields),
        ("wake_pair", events.WAKE_PAIR, events.WakePair._fields),
    ):
        assert packed.size == c_layout[of]
        # A byte at the start of each member, and only there, is what the format reads into that member.
        raw = bytearray(packed.size)
        for number, name in enumerate(fields, start=1):
            raw[c_layout[f"{of}.{name}"]] = number
        assert packed.unpack(raw) == tuple(range(1, len(fields) + 1))


def test_lost_kinds_are_in_order(c_layout: dict[str, int]) -> None:
    kinds = [c_layout[f"LOST_{kind.upper()}"] for kind in events.Lost._fields]
    assert kinds == list(range(c_layout["LOST_KINDS"]))


@pytest.mark.parametrize("extra", [b"x", bytes(8)])
def test_half_a_record_is_refused(extra: bytes) -> None:
    with pytest.raises(ValueError, match="not records of"):
        list(events.thread_records(bytes(events.TID.size + events.THREAD_SUMS.size) + extra))
    with pytest.raises(ValueError, match="not records of"):
        list(events.pair_records(struct.pack("=IIQ", 1, 2, 3) + extra[:1]))


def test_the_record_of_a_thread_is_taken_apart(tmp_path: Path, c_compiler: str) -> None:
    """As C writes it, with waits by word: the one that is empty gives nothing."""
    source = tmp_path / "record.c"
    source.write_text(
        "#include <stdio.h>\n#define MAX_WORD_WAITS 1\n"
        f'#include "{INCLUDE / "hangtrace" / "window_events.h"}"\n'
        "static struct thread_record record = {.sums = {.waits = 5, .operation = 9}, .pair = {7, 8}, .pair_count = 4,\n"
        " .words[1] = {{.uaddr = 64, .tid = 8, .operation = 9}, {.waits = 5, .tgid = 6}}};\n"
        "int main(void) { return fwrite(&record, sizeof record, 1, stdout) != 1; }\n"
    )
    program = tmp_path / "record"
    subprocess.run([c_compiler, "-o", program, source], check=True)
    raw = subprocess.run([program], check=True, capture_output=True).stdout
    assert len(raw) == events.thread_record_size(words=True)
    sums, pair, words = events.split_record(raw)
    ((_, thread),) = events.thread_records(events.TID.pack(8) + sums)
    assert (thread.waits, thread.operation) == (5, 9)
    assert list(events.pair_records(pair)) == [(events.WakePair(7, 8), 4)]
    (word,) = events.word_records(words)
    assert (word.uaddr, word.tid, word.operation, word.waits, word.tgid) == (64, 8, 9, 5, 6)
    assert events.split_record(bytes(len(raw)))[1:] == (b"", b"")
    with pytest.raises(ValueError, match="no record of a thread"):
        events.split_record(raw[:100])


@pytest.mark.parametrize(
    ("operation", "since", "waiting"),
    [
        (0x189, 5, True),  # Python's locks: WAIT_BITSET, private, realtime clock
        (0x109, 5, True),  # pthread_join
        (0x80, 5, True),
        (0x86, 5, True),  # LOCK_PI
        (0x40, 5, True),  # futex_waitv
        (0x81, 5, False),  # a wake-up
        (0x83, 5, False),  # a requeue
        (0x189, 0, False),
    ],
)
def test_who_waits(operation: int, since: int, waiting: bool) -> None:
    sums = events.ThreadSums(*[0] * 16)._replace(operation=operation, waiting_since_ns=since)
    assert sums.waiting is waiting


# Structure: the format that reads it, and for each of its values the member it lies in.
STRUCTURES = {
    "window_events.h": {
        "word_waits_key": (events.WORD_WAITS_KEY, ["uaddr", "tid", "operation"]),
        "word_waits": (
            events.WORD_WAITS,
            ["waits", "wait_ns", "longest_ns", "timed_out"]
            + [f"slots[{n}]" for n in range(events.WAIT_SLOTS)]
            + ["tgid", "unused"],
        ),
        "claim_key": (events.CLAIM_KEY, ["table", "slot"]),
        "claim": (events.CLAIM, ["first", "second", "taker_tid"]),
        "fault_place": (events.FAULT_PLACE, ["place", "code", "tid", "tgid"]),
        "place_faults": (events.PLACE_FAULTS, ["minor", "major"]),
        "timed_event": (events.TIMED_EVENT, list(events.TimedEvent._fields)),
    },
    "activity_events.h": {
        "off_key": (activity_events.OFF_KEY, ["kernel_stack", "state", "tid", "tgid"]),
        "off_sums": (activity_events.OFF_SUMS, ["times", "off_ns", "longest_ns"]),
        "off_now": (
            activity_events.OFF_NOW,
            ["since_ns", "key.kernel_stack", "key.state", "key.tid", "key.tgid"],
        ),
        "io_key": (activity_events.IO_KEY, ["tid", "tgid"]),
        "io_sums": (activity_events.IO_SUMS, ["requests", "sectors"]),
        "activity": (activity_events.ACTIVITY, list(activity_events.Activity._fields)),
    },
    "calls_events.h": {
        "site_key": (calls_events.SITE_KEY, ["address", "tgid", "unused"]),
        "site": (calls_events.SITE, ["number", "object", "told", "unused"]),
        "call_key": (calls_events.CALL_KEY, ["object", "tid", "tgid", "site", "unused"]),
        "call_sums": (calls_events.CALL_SUMS, ["calls", "call_ns", "longest_ns"]),
        "call_event": (
            calls_events.CALL_EVENT,
            ["at_ns", "took_ns"]
            + [f"arguments[{n}]" for n in range(calls_events.ARGUMENTS)]
            + ["tid", "tgid", "site", "result"],
        ),
    },
}
CONSTANTS = {
    "window_events.h": {
        "WAIT_SLOTS": events.WAIT_SLOTS,
        "FAULT_PLACE_SHIFT": events.PLACE_SHIFT,
        "OF_THREADS": events.OF_THREADS,
        "NEAR_WORDS": events.NEAR_WORDS,
        "offsetof(struct near_thread, record)": events.NEAR_TID.size,
        "sizeof(struct thread_record)": events.thread_record_size(words=False),
        "EVENT_FUTEX_WAIT": events.EVENT_FUTEX_WAIT,
        "EVENT_MAJOR_FAULT": events.EVENT_MAJOR_FAULT,
    },
    "activity_events.h": {
        "OFF_SLEEPING": activity_events.OFF_SLEEPING,
        "OFF_UNINTERRUPTIBLE": activity_events.OFF_UNINTERRUPTIBLE,
        "OFF_RUNNABLE": activity_events.OFF_RUNNABLE,
        "ACTIVITY_EXIT": activity_events.ACTIVITY_EXIT,
        "ACTIVITY_SIGNAL": activity_events.ACTIVITY_SIGNAL,
        "ACTIVITY_OOM": activity_events.ACTIVITY_OOM,
        "ACTIVITY_OFF": activity_events.ACTIVITY_OFF,
        **{f"LOST_{name.upper()}": n for n, name in enumerate(activity_events.LostActivity._fields)},
        "LOST_ACTIVITY_KINDS": len(activity_events.LostActivity._fields),
    },
    "calls_events.h": {
        "CALL_ARGUMENTS": calls_events.ARGUMENTS,
        "NO_OBJECT": calls_events.NO_OBJECT,
        **{f"LOST_{name.upper()}": n for n, name in enumerate(calls_events.LostCalls._fields)},
        "LOST_CALL_KINDS": len(calls_events.LostCalls._fields),
    },
}


@pytest.mark.parametrize("header", sorted(STRUCTURES))
def test_further_structures_are_read_as_c_writes_them(header: str, tmp_path: Path, c_compiler: str) -> None:
    lines = []
    for name, (packed, members) in STRUCTURES[header].items():
        lines.append(f'printf("{packed.size} %zu\\n", sizeof(struct {name}));')
        offset = 0
        codes = struct.unpack(packed.format, bytes(packed.size))
        assert len(codes) == len(members)
        for member, code in zip(members, expanded(packed.format), strict=True):
            lines.append(f'printf("{offset} %zu\\n", offsetof(struct {name}, {member}));')
            offset += struct.calcsize(f"={code}")
    lines += [f'printf("{value} %zu\\n", (size_t){name});' for name, value in CONSTANTS[header].items()]
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n"
        f'#include "{INCLUDE / "hangtrace" / header}"\nint main(void) {{ {" ".join(lines)} }}\n'
    )
    program = tmp_path / "layout"
    subprocess.run([c_compiler, "-o", program, source], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(printed) == len(lines)
    assert [line for line in printed if len(set(line.split())) != 1] == []


def expanded(packed: str) -> str:
    """A format of `struct` with every count written out."""
    codes, count = "", ""
    for letter in packed.removeprefix("="):
        if letter.isdigit():
            count += letter
        else:
            codes += letter * int(count or 1)
            count = ""
    return codes
