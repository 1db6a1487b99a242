"""Process groups out of the dictionaries of torch.distributed."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from pyhangtrace.collect import flight_recorder, process_groups
from pyhangtrace.collect.flight_recorder import READ, Recorder
from pyhangtrace.collect.memory import Read
from pyhangtrace.model.groups import ProcessGroupFacts
from pyhangtrace.model.recorders import RecordedOperation, RecorderFacts
from pyhangtrace.model.threads import ThreadSample
from tests.unit.collect.helpers import Memory

TYPE = "torch._C._distributed_c10d.ProcessGroup"


def group(address: int) -> dict[str, Any]:
    return {"type": TYPE, "address": address, "held": address + 0x1000}


def table(*items: Any) -> dict[str, Any]:
    return {"type": "dict", "address": 1, "length": len(items) // 2, "items": list(items)}


def held(address: int, rank: int, size: int, description: str, *, counts: int = 1) -> dict[int, bytes]:
    """c10d::ProcessGroup of a Python object, with one or two words of reference counts."""
    start = address + 0x1000
    head = struct.pack("<Q", 0x7F00) + bytes(8 * counts) + struct.pack("<QiiQ", 0x7E00, rank, size, 2)
    string = struct.pack("<QQ16s", start + len(head) + 16, len(description), description.encode())
    return {start: (head + string).ljust(96, b"\x00")}


def reader(*parts: dict[int, bytes]) -> Read:
    memory = Memory()
    for part in parts:
        for start, content in part.items():
            memory.put(content, start)
    return memory.read


NAMES = table(group(0x10000), "0", group(0x20000), "5")
RANKS = table(group(0x10000), table(0, 0, 1, 1, 2, 2, 3, 3), group(0x20000), table(3, 1, 1, 0))


def groups(memory: Read, names: Any = NAMES, ranks: Any = RANKS) -> tuple[ProcessGroupFacts, ...]:
    return process_groups.groups_of(7, names, ranks, group(0x10000), memory=memory)


def test_members_are_in_the_groups_order_and_both_layouts_are_known() -> None:
    for counts in (1, 2):
        memory = reader(
            held(0x10000, 3, 4, "default_pg", counts=counts), held(0x20000, 1, 2, "tp", counts=counts)
        )
        world, tp = groups(memory)
        assert (world.name, world.ranks, world.is_default, world.rank) == ("0", (0, 1, 2, 3), True, 3)
        assert (tp.name, tp.ranks, tp.description, tp.is_default) == ("5", (1, 3), "tp", False)
        assert tp.rank == 3
        assert tp.address == 0x20000


def test_an_own_rank_that_the_groups_do_not_agree_on_is_none() -> None:
    memory = reader(held(0x10000, 3, 4, "default_pg"), held(0x20000, 0, 2, "tp"))
    assert [one.rank for one in groups(memory)] == [None, None]
    assert [one.rank for one in groups(reader())] == [None, None]


def test_members_that_make_no_sense_give_no_group() -> None:
    for ranks in (table(0, 0, 1, 2), table(0, 0, 0, 1), table(0, "x"), None, 3, table(group(0x30), 1)):
        found = groups(reader(), ranks=table(group(0x10000), ranks, group(0x20000), table(1, 0, 3, 1)))
        assert [one.name for one in found] == ["5"]
    assert groups(reader(), names=None) == ()
    assert groups(reader(), ranks="no dictionary") == ()


def operation(number: int, **changes: Any) -> RecordedOperation:
    made: dict[str, Any] = {
        "id": number,
        "group": "5",
        "description": "tp",
        "name": "gloo:all_reduce",
        "collective": number,
        "p2p": number,
    }
    return RecordedOperation(**{**made, **changes})


def recorder(*operations: RecordedOperation, outcome: str = READ, whole: bool = True) -> Recorder:
    facts = RecorderFacts(pid=1, library="libtorch_cpu.so", whole=whole, operations=operations)
    return Recorder(outcome=outcome, facts=facts)


def test_operations_that_have_not_ended_are_with_their_group() -> None:
    world, tp = groups(reader())
    recorded = recorder(
        operation(3, retired=True), operation(4), operation(1, is_p2p=True, name="gloo:send 0->1")
    )
    world, tp = process_groups.with_operations((world, tp), [recorded])
    assert (tp.recorded, tp.begun, tp.description) == (True, 4, "tp")
    assert [(one.op, one.sequence, one.is_p2p) for one in tp.pending] == [
        ("all_reduce", 4, False),
        ("send 0->1", 1, True),
    ]
    assert (world.recorded, world.begun, world.pending) == (True, 0, ())


def test_a_type_is_called_as_the_program_calls_it() -> None:
    mixed = operation(5, input_dtypes=("Float", "Half"))
    recorded = recorder(operation(4, input_dtypes=("BFloat16", "BFloat16")), mixed)
    _, tp = process_groups.with_operations(groups(reader()), [recorded])
    assert [one.dtype for one in tp.pending] == ["bfloat16", None]


def test_what_is_left_of_a_timeout_counts_from_the_beginning_of_the_operation() -> None:
    second = 10**9
    recorded = recorder(
        operation(4, created_ns=100 * second, timeout_ms=600_000), operation(5, created_ns=100 * second)
    )
    _, tp = process_groups.with_operations(groups(reader()), [recorded], now_ns=160 * second)
    assert [one.left_s for one in tp.pending] == [540.0, None]
    _, tp = process_groups.with_operations(groups(reader()), [recorded])
    assert [one.left_s for one in tp.pending] == [None, None]


def test_a_group_that_a_ring_which_has_gone_round_does_not_show_is_not_known() -> None:
    world, tp = process_groups.with_operations(groups(reader()), [recorder(operation(4), whole=False)])
    assert (world.recorded, tp.recorded) == (False, True)
    off = process_groups.with_operations(groups(reader()), [recorder(outcome="off")])
    assert [one.recorded for one in off] == [False, False]


@pytest.mark.parametrize("outcome", ["unknown_layout", "moving", "unreadable", "no_symbol"])
def test_a_second_recorder_that_cannot_be_read_may_know_of_the_other_group(outcome: str) -> None:
    both = [recorder(operation(4)), recorder(outcome=outcome)]
    world, tp = process_groups.with_operations(groups(reader()), both)
    assert (world.recorded, tp.recorded) == (False, True)
    never = [recorder(operation(4)), recorder(outcome="never_made", whole=False)]
    assert [one.recorded for one in process_groups.with_operations(groups(reader()), never)] == [True, True]


def test_why_a_recorder_tells_nothing_is_said() -> None:
    found = flight_recorder.problems(
        [recorder(), recorder(outcome="unknown_layout"), recorder(outcome="off")]
    )
    assert found == ["it is off", "that of libtorch_cpu.so has a layout that is not known"]
    assert [flight_recorder.is_refusal(each) for each in found] == [False, True]


def test_who_has_groups_is_told_by_its_threads() -> None:
    assert process_groups.takes_part([ThreadSample(pid=1, tid=2, comm="pt_gloo_runloop")])
    assert not process_groups.takes_part([ThreadSample(pid=1, tid=1, comm="python3")])
