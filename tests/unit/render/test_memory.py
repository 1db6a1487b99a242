"""The page of `hangtrace memory`, from an answer made by hand."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from pyhangtrace.model.codec import memory_to_json
from pyhangtrace.model.kinds import MemoryMode, MemoryVerdict, Role, SourceState
from pyhangtrace.model.report import (
    BookEntry,
    CgroupBooks,
    Cleared,
    Coverage,
    Loading,
    MemoryAnswer,
    MemoryFile,
    MemoryProcess,
    MemoryReport,
    ReportCost,
    ReportMemory,
)
from pyhangtrace.render.memory import render_memory

GB = 10**9


def member(rank: int, **changes: object) -> MemoryProcess:
    process = MemoryProcess(
        pid=4240 + rank,
        rank=rank,
        role=Role.RANK,
        name="worker",
        memory=ReportMemory(rss=425 * GB, pss=52 * GB, anon=13 * GB, file=412 * GB, shmem=0, swap=0),
    )
    return replace(process, **changes)  # type: ignore[arg-type]


ANSWER = MemoryAnswer(
    tool_version="0",
    host="a100-07",
    taken_at="2026-01-01T00:00:00Z",
    attached_to=(4242,),
    window_s=0.5,
    memory=MemoryReport(
        verdict=MemoryVerdict.RSS_ILLUSION,
        rss_sum=3400 * GB,
        group_low=412 * GB,
        group_high=516 * GB,
        mode=MemoryMode.ROLLUP,
        complete=False,
        shared=412 * GB,
        unique=104 * GB,
        pss_sum=515 * GB,
        page_tables=3 * GB,
        explanation="8 x 425 GB of RSS is one set of pages: 3.4 TB in sum, at most 516 GB in memory",
        files=(
            MemoryFile(
                path="/models/m-1.safetensors\x1b[31m",
                kind="file",
                size=206 * GB,
                resident=206 * GB,
                mapped_by={str(4240 + rank): 206 * GB for rank in range(8)},
            ),
        ),
        books=CgroupBooks(
            path="/job",
            version=2,
            usage=600 * GB,
            limit=900 * GB,
            entries=(BookEntry(name="anonymous", size=104 * GB), BookEntry(name="kernel", size=0)),
            residue=GB,
            others=None,
            remarks=("2 GB of huge pages from the pool are not counted here",),
        ),
        loading=(
            Loading(
                files="/models/m-*.safetensors",
                count=2,
                current=("m-1.safetensors",),
                readers=(4240,),
                total=412 * GB,
                done=206 * GB,
                rate_bytes_per_s=2e9,
                eta_s=103.0,
                summary="m-1.safetensors of 2 files at 2.0 GB/s",
            ),
        ),
        cleared=(Cleared(suspect="memory.oom", because="no OOM kill counted by the machine"),),
    ),
    processes=(
        *(member(rank) for rank in range(7)),
        member(7, problem="mmap_lock_held", problem_tid=99, memory=ReportMemory(rss=425 * GB)),
    ),
    coverage=(
        Coverage(source="page tables", state=SourceState.TIMED_OUT, reason="1 processes: memory map locked"),
        Coverage(source="kernel log", state=SourceState.USED),
    ),
    cost=ReportCost(wall_s=0.6, cpu_s=0.2, stopped_us={}, probe_attached_s=0.0),
)


def test_the_page() -> None:
    page = render_memory(ANSWER, color=False)
    lines = page.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0] == "ranks 0-7, pids 4240-4247, host a100-07, watched for 0.5 s"
    assert lines[2].startswith("RSS ILLUSION  8 x 425 GB of RSS is one set of pages: 3.4 TB in sum")
    assert "412 GB to 516 GB" in page
    assert "not all members were read" in " ".join(page.split())
    assert "206 GB, 206 GB in memory, mapped by ranks 0-7" in page
    assert "its memory map is locked (thread 99)" in page
    assert "m-*.safetensors  m-1.safetensors of 2 files at 2.0 GB/s" in page
    assert "1 processes: memory map locked" in page
    assert "\x1b" not in page
    (head,) = [line.split() for line in lines if line.split()[:2] == ["rank", "pid"]]
    # Figures that are zero or unknown for all are left out.
    assert head == ["rank", "pid", "RSS", "PSS", "anon", "file"]


def test_colour_changes_no_text() -> None:
    plain, painted = render_memory(ANSWER, color=False), render_memory(ANSWER, color=True)
    assert "\x1b[" in painted
    for code in ("\x1b[1m", "\x1b[1;32m", "\x1b[1;31m", "\x1b[2m", "\x1b[0m"):
        painted = painted.replace(code, "")
    assert painted == plain


def test_json_is_the_answer() -> None:
    content = memory_to_json(ANSWER)
    assert content.endswith(b"\n")
    assert msgspec.json.decode(content, type=MemoryAnswer) == ANSWER
    assert msgspec.json.decode(content)["schema"] == "hangtrace.memory/1"


def test_a_range_that_reads_the_same_at_both_ends_is_one_amount() -> None:
    memory = replace(ANSWER.memory, group_low=412 * GB, group_high=412 * GB + 1)
    page = render_memory(replace(ANSWER, memory=memory), color=False)
    assert "holds        412 GB (" in page


def test_a_file_that_is_loaded_is_named_once() -> None:
    (set_of_two,) = ANSWER.memory.loading
    one = replace(set_of_two, files="/models/data.bin", count=1, summary="data.bin at 2.0 GB/s")
    page = render_memory(replace(ANSWER, memory=replace(ANSWER.memory, loading=(one,))), color=False)
    assert "  data.bin  at 2.0 GB/s" in page.splitlines()
