"""Texts of the kernel that the probes read."""

from __future__ import annotations

import pytest

from pyhangtrace.probes.perf_events import parse_cpu_list
from pyhangtrace.probes.tracefs import parse_format

ENTER = """name: sys_enter_futex
ID: 522
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;
\tfield:u32 * uaddr;\toffset:16;\tsize:8;\tsigned:0;
\tfield:const struct __kernel_timespec * utime;\toffset:40;\tsize:8;\tsigned:0;
\tfield:char comm[16];\toffset:48;\tsize:16;\tsigned:0;
\tfield:u32 *uaddr2;\toffset:64;\tsize:8;\tsigned:0;

print fmt: "uaddr: 0x%08lx", ((unsigned long)(REC->uaddr))
"""


def test_offsets_by_field() -> None:
    assert parse_format(ENTER) == {
        "common_type": 0,
        "common_pid": 4,
        "__syscall_nr": 8,
        "uaddr": 16,
        "utime": 40,
        "comm": 48,
        "uaddr2": 64,
    }


def test_no_fields() -> None:
    assert parse_format("name: nothing\n") == {}


@pytest.mark.parametrize(
    ("text", "cpus"), [("0\n", [0]), ("0-3\n", [0, 1, 2, 3]), ("0,2-3,8\n", [0, 2, 3, 8]), ("5-5", [5])]
)
def test_cpu_list(text: str, cpus: list[int]) -> None:
    assert parse_cpu_list(text) == cpus
