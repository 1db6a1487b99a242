"""What is advised: commands that exist, and for each kind of cycle what ends that one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import pyhangtrace
from pyhangtrace.analyze import analyze
from pyhangtrace.cli.main import cli
from pyhangtrace.model.kinds import Kind, State
from pyhangtrace.model.open_files import FileLock, Holder
from tests.unit.analyze import builders as b


def commands_named(source: str) -> Iterator[str]:
    """`hangtrace NAME …` in the texts of a module, docstrings aside, with what follows in the same text."""
    tree = ast.parse(source)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield from re.findall(r"\bhangtrace ([a-z]+(?: -{1,2}[a-z-]+)*)", node.value)


def test_only_commands_and_options_that_exist_are_named() -> None:
    folder = Path(pyhangtrace.__file__).parent
    found = [
        name for path in sorted(folder.rglob("*.py")) for name in commands_named(path.read_text("utf-8"))
    ]
    assert "attach -d" in found
    context = click.Context(cli)
    for words in found:
        name, *options = words.split()
        command = cli.get_command(context, name)
        assert command is not None, words
        known = {option for each in command.params for option in each.opts}
        assert set(options) <= known, words


def test_such_commands_are_found_in_texts_only() -> None:
    source = '"""hangtrace doc"""\nx = f"run hangtrace record --bpf {1}"\n'
    assert list(commands_named(source)) == ["record --bpf"]


def steps_of(looks: Any, processes: Any) -> str:
    verdict = analyze(b.evidence(processes, looks)).verdict
    assert verdict.state is State.HUNG, verdict
    return "\n".join(verdict.next_steps)


def test_two_locks_in_two_orders() -> None:
    threads = (b.on_mutex(100, owner=201, address=0x8000), b.on_mutex(100, 201, owner=100, address=0x9000))
    steps = steps_of(b.twice(*threads), [b.process(100)])
    assert "in the same order" in steps
    assert "end pid 100" in steps


def test_a_lock_that_its_own_thread_holds() -> None:
    steps = steps_of(b.twice(b.on_mutex(100, owner=100)), [b.process(100)])
    assert "recursive lock" in steps
    assert "order" not in steps


def test_a_mutex_and_the_gil() -> None:
    main_thread = b.on_mutex(100, owner=201, holds_gil=True)
    steps = steps_of(b.twice(main_thread, b.on_gil(100, 201)), [b.process(100)])
    assert "release the GIL" in steps


def test_a_file_lock_held_through_a_barrier() -> None:
    waiting = b.sleeper(101, syscall=b.FLOCK, args=(7, 2, 0, 0, 0, 0))
    lock = FileLock(kind="flock", access="write", pid=100, device=1, inode=42, waiters=(101,), path="/c/lock")
    looks = b.twice(b.in_collective(100, "barrier"), waiting, file_locks=[lock])
    assert "release the file lock before meeting" in steps_of(looks, b.ranks(2))


def test_two_sides_that_both_read_first() -> None:
    fds = [b.pipe(100, 3, 70, Holder(pid=101, mode="w")), b.pipe(101, 4, 71, Holder(pid=100, mode="w"))]
    looks = b.twice(b.on_fd(100, fd=3), b.on_fd(101, fd=4), fds=fds)
    steps = steps_of(looks, [b.process(100), b.process(101, ppid=100)])
    assert "write before it reads" in steps


def test_where_no_lock_is_in_a_cycle_none_is_to_be_released() -> None:
    fd = b.pipe(101, 4, 71, Holder(pid=100, mode="w"))
    join = b.sleeper(100, syscall=b.WAIT4, args=(101, 0, 0, 0, 0, 0))
    steps = steps_of(b.twice(join, b.on_fd(101, fd=4), fds=[fd]), [b.process(100), b.process(101, ppid=100)])
    assert "lock" not in steps
    assert "let one of them do its part first" in steps


def test_a_rank_in_a_debugger() -> None:
    frames = (b.py("readline"), b.py("Pdb.cmdloop", "/usr/lib/python3.11/pdb.py"), b.py("step"))
    looks = b.twice(b.in_collective(100), b.replace(b.asleep(101, seconds=7200), frames=frames))
    assert "rank 1 (pid 101) is in a debugger" in steps_of(looks, b.ranks(2))


@pytest.mark.parametrize("op", ["recv", "send"])
def test_the_call_that_a_message_lacks_is_named(op: str) -> None:
    waiting = b.sleeper(
        100,
        frames=(
            b.native("c10d::SendWork::wait(std::chrono::duration<long>)"),
            b.py(op, b.C10D, 2700),
            b.py("step", line=9),
        ),
        named_values=(b.local(op, "dst" if op == "send" else "src", 1),),
    )
    event = (b.py("Event.wait", b.THREADING, 629), b.py("work", line=6))
    verdict = analyze(b.evidence(b.ranks(2), b.twice(waiting, b.sleeper(101, frames=event)))).verdict
    assert verdict.next_steps
    assert not any("look at the stack" in step for step in verdict.next_steps)


def test_an_undecided_wait_says_itself_what_is_open() -> None:
    event = (b.py("Event.wait", b.THREADING, 629), b.py("work", line=6))
    verdict = analyze(b.evidence([b.process(100)], b.twice(b.sleeper(100, frames=event)))).verdict
    assert verdict.state is State.UNKNOWN
    assert "coverage" not in verdict.summary
    assert "work (train.py:6)" in verdict.summary


def test_a_lock_whose_owner_is_gone_can_only_be_given_up() -> None:
    verdict = analyze(b.evidence([b.process(100)], b.twice(b.on_mutex(100, owner=999)))).verdict
    assert verdict.cause is Kind.LOCK_OWNER_GONE
    assert "999" in verdict.next_steps[0]
    assert "end pid 100" in verdict.next_steps[0]
