"""What threads wait for in torch.distributed, out of made-up memory."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable

import pytest

from pyhangtrace.collect.group_waits import (
    answer,
    joined,
    keys_on_stack,
    wants_keys,
    with_keys,
    with_work,
)
from pyhangtrace.model.groups import GroupWait
from pyhangtrace.model.kinds import FrameKind, StoreAnswer
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import ThreadSample
from tests.unit.collect.helpers import Memory

STACK, HEAP, WORK, CONTEXT = 0x7000_0000, 0x5000_0000, 0x6000_0000, 0x6100_0000


class Stack:
    """Words of a stack with strings and vectors of strings, as libstdc++ lays them out."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.content = bytearray(struct.pack("<4Q", 3, 0xFFFF, STACK, 0))
        self.heap = HEAP

    def _place(self, content: bytes) -> int:
        address = self.heap
        self.memory.put(content, address)
        self.heap += -(-len(content) // 64) * 64
        return address

    def _string(self, text: str, address: int) -> bytes:
        raw = text.encode()
        if len(raw) > 15:
            return struct.pack("<QQQQ", self._place(raw + b"\0"), len(raw), len(raw), 0)
        return struct.pack("<QQ16s", address + 16, len(raw), raw)

    def string(self, text: str) -> None:
        self.content += self._string(text, STACK + len(self.content))

    def vector(self, *texts: str) -> None:
        begin = self.heap
        size = 32 * len(texts)
        self.heap += -(-size // 64) * 64
        strings = b"".join(self._string(text, begin + 32 * at) for at, text in enumerate(texts))
        self.memory.put(strings, begin)
        self.content += struct.pack("<3Q", begin, begin + size, begin + size)

    def keys(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        content = bytes(self.content).ljust(4096, b"\0")
        self.memory.put(content, STACK)
        return keys_on_stack(self.memory.read, content, STACK)


def test_the_key_that_is_asked_for_is_what_each_store_puts_its_prefix_before() -> None:
    stack = Stack()
    stack.string("/default_pg/0//weights/ready")
    stack.string("weights/ready")
    stack.string("ready")
    assert stack.keys() == (("ready",), ("/default_pg/0//weights/ready",))


def test_all_keys_of_a_wait_are_told_and_not_the_last_one_alone() -> None:
    stack = Stack()
    stack.vector("/default_pg/0//arrived/0", "/default_pg/0//arrived/1")
    stack.string("/default_pg/0//arrived/1")
    stack.string("default_pg/0//arrived/1")
    stack.vector("arrived/0", "arrived/1")
    assert stack.keys() == (
        ("arrived/0", "arrived/1"),
        ("/default_pg/0//arrived/0", "/default_pg/0//arrived/1"),
    )


def test_a_vector_that_an_outer_store_has_left_does_not_hide_the_key() -> None:
    stack = Stack()
    stack.string("/default_pg/0//weights/ready")
    stack.vector("0//weights/ready")
    stack.string("ready")
    assert stack.keys() == (("ready",), ("/default_pg/0//weights/ready",))


def test_of_what_two_calls_left_on_the_stack_nothing_is_said() -> None:
    stack = Stack()
    stack.string("/ready")
    stack.string("ready")
    stack.string("/steps/12")
    stack.string("12")
    assert stack.keys() is None


def read_keys(stack: Stack, pointers: Iterable[int | None], *, within_s: float = 60.0) -> tuple[str, ...]:
    """The keys of a thread whose stack ends there, one time after the other; None: it is awake."""
    stack.keys()
    ends = iter(pointers)
    wait = GroupWait(pid=1, tid=2)
    until = time.monotonic() + within_s
    return with_keys(wait, stack.memory.read, lambda: next(ends), until=until).keys


def a_key() -> Stack:
    stack = Stack()
    stack.string("/ready")
    stack.string("ready")
    return stack


def test_who_is_awake_most_of_the_time_is_waited_for_until_it_sleeps_again() -> None:
    """On a crowded machine one that naps waits for a CPU for longer than it naps."""
    assert read_keys(a_key(), [*[None] * 12, STACK, *[None] * 12, STACK]) == ("ready",)


def test_of_a_stack_that_ends_there_what_it_has_is_read() -> None:
    """How near its end the first thread of a program is, is drawn by lot."""
    begin = STACK + 4096 - 512
    memory = Memory()
    strings = b"".join(
        struct.pack("<QQ16s", begin + 32 * at + 16, len(text), text)
        for at, text in enumerate((b"/ready", b"ready"))
    )
    memory.put(strings.ljust(512, b"\0"), begin)
    wait = with_keys(GroupWait(pid=1, tid=2), memory.read, lambda: begin, until=time.monotonic() + 60.0)
    assert wait.keys == ("ready",)


def test_a_stack_that_another_call_has_written_meanwhile_is_read_again() -> None:
    assert read_keys(a_key(), [STACK, STACK + 64, STACK, STACK]) == ("ready",)


def test_of_who_does_not_sleep_in_time_nothing_is_said() -> None:
    assert read_keys(a_key(), [None], within_s=0.0) == ()
    assert read_keys(a_key(), [STACK, None], within_s=0.0) == ()


def test_who_sleeps_on_without_a_key_is_not_read_for_ever() -> None:
    stack = Stack()
    stack.string("other")
    assert read_keys(stack, [STACK] * 6) == ()


def test_who_asks_a_store_for_keys_and_who_shows_none_of_it() -> None:
    python = Frame(kind=FrameKind.PYTHON, function="work", file="/job/train.py", line=3)
    get = Frame(kind=FrameKind.NATIVE, function="c10d::FileStore::get(std::string const&)")
    waits = ThreadSample(pid=100, tid=101, comm="python", frames=(get, python))
    awake = ThreadSample(pid=100, tid=102, comm="python", frames=(python,))
    assert wants_keys([waits, awake]) == {(100, 101)}


def test_a_string_that_nothing_extends_is_no_key() -> None:
    stack = Stack()
    stack.string("/tmp/weights")
    stack.string("other")
    assert stack.keys() is None


def work(**changes: object) -> Memory:
    """A Work of gloo in torch 2.13, from its condition on."""
    given = {"completed": 0, "exception": 0, "sequence": 5, "title": b"gloo:all_reduce", "base": 2, "rank": 1}
    given |= changes
    content = bytearray(384)
    content[48] = int(str(given["completed"]))
    struct.pack_into("<Q", content, 56, given["exception"])
    struct.pack_into("<Qq", content, 136, CONTEXT, 0)
    struct.pack_into("<q", content, 152, 1_800_000)
    struct.pack_into("<Q", content, 224, given["sequence"])
    title = given["title"]
    assert isinstance(title, bytes)
    struct.pack_into("<QQ16s", content, 232, WORK + 248, len(title), title)
    memory = Memory()
    memory.put(bytes(content), WORK)
    memory.put(struct.pack("<iiii", given["rank"], 4, given["base"], 0), CONTEXT)
    return memory


NOTHING = GroupWait(pid=100, tid=100)


def test_the_operation_that_a_thread_sleeps_on_is_read_from_its_object() -> None:
    found = with_work(NOTHING, work().read, WORK)
    assert found.work is not None
    assert (found.work.op, found.work.backend, found.work.sequence) == ("all_reduce", "gloo", 5)
    assert (found.rank, found.size, found.condition) == (1, 4, WORK)


@pytest.mark.parametrize(
    "changes",
    [
        {"completed": 1},
        {"exception": 0x1234},
        {"sequence": 0},
        {"title": b"nccl all_reduce"},
        {"base": 3},
        {"rank": 4},
    ],
    ids=str,
)
def test_an_object_that_does_not_make_sense_gives_nothing(changes: dict[str, object]) -> None:
    assert with_work(NOTHING, work(**changes).read, WORK) == NOTHING


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue\n"
LISTENS = "   0: 0100007F:7384 00000000:0000 0A 00000000:00000000\n"  # 127.0.0.1:29572
TRIES = "   1: 0200000A:C350 010200C0:7384 02 00000001:00000000\n"  # to 192.0.2.1:29572


@pytest.mark.parametrize(
    ("host", "port", "rows", "expected"),
    [
        ("127.0.0.1", 29572, LISTENS, None),
        ("127.0.0.1", 29573, LISTENS, StoreAnswer.NOBODY_LISTENS),
        ("localhost", 29573, LISTENS, StoreAnswer.NOBODY_LISTENS),
        ("192.0.2.1", 29572, LISTENS + TRIES, StoreAnswer.NO_ANSWER),
        ("192.0.2.1", 29573, LISTENS + TRIES, None),
        ("192.0.2.7", 29572, LISTENS + TRIES, None),
        ("head.example", 29572, LISTENS, None),
    ],
)
def test_why_a_store_does_not_answer(host: str, port: int, rows: str, expected: str | None) -> None:
    assert answer(host, port, HEAD + rows, HEAD) == expected


def test_without_the_tables_of_connections_nothing_is_said() -> None:
    assert answer("127.0.0.1", 29573, None, HEAD) is None


def test_what_was_read_before_is_kept_for_who_was_on_its_way_later() -> None:
    first = tuple(GroupWait(pid=pid, tid=pid, keys=("ready",)) for pid in (100, 101))
    later = (GroupWait(pid=101, tid=101, keys=("done",)),)
    assert [wait.keys for wait in joined(first, later)] == [("ready",), ("done",)]
