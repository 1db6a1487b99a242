"""The function that a thread sleeps in, also where the kernel's own file of that name has nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyhangtrace.collect.procfs import wait_channel

FUSE = "[<0>] request_wait_answer [fuse]+0x12b/0x220\n[<0>] do_syscall_64+0x33/0x40\n"


@pytest.mark.parametrize(
    ("wchan", "state", "stack", "expected"),
    [
        ("futex_wait_queue", "S", FUSE, "futex_wait_queue"),
        # Debian's 5.10.
        ("0", "S", "[<0>] fifo_open+0x2d5/0x300\n[<0>] do_dentry_open+0x14d/0x380\n", "fifo_open"),
        ("0", "D", FUSE, "request_wait_answer"),
        ("", "t", "[<0>] ptrace_stop+0x158/0x2a0\n", "ptrace_stop"),
        ("0", "R", FUSE, None),
        ("0", "S", "", None),
        ("0", "S", "[<0>] 0xffffffffffffffff\n", None),
    ],
)
def test_it_is_what_the_stack_begins_with_where_the_kernel_names_none(
    tmp_path: Path, wchan: str, state: str, stack: str, expected: str | None
) -> None:
    (tmp_path / "wchan").write_text(wchan)
    (tmp_path / "stat").write_text(f"7 (a ) b) {state} 1 7 7 0")
    (tmp_path / "stack").write_text(stack)
    assert wait_channel(str(tmp_path)) == expected


def test_nothing_is_said_of_a_thread_that_is_gone(tmp_path: Path) -> None:
    assert wait_channel(str(tmp_path / "none")) is None
