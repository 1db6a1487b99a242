"""The kinds of hang, as plans. Who is not at fault ends up waiting for its stream, as programs on a GPU do."""

from __future__ import annotations

from tests.hangs.facts import Waits
from tests.nccl.bench import Plan, Step

COUNT, DTYPE = 4096, "float32"
#: Operations that all ranks do before they part.
BEFORE = 3
REDUCE: Step = ["all_reduce", 0, COUNT, DTYPE]
WAIT: Step = ["synchronize", 0]
#: Of a file that another program, `holder`, has locked.
LOCK: Step = ["lock", "@scratch/lock"]


def _together(*parts: list[Step], name: str, waits: dict[int, Waits] | None = None) -> Plan:
    """A job whose ranks set up a communicator, reduce a few times, and then do what `parts` says of each."""
    begin: list[Step] = [["join", 0], *[REDUCE] * BEFORE]
    asleep = dict.fromkeys(range(len(parts)), Waits.LOCK)
    return Plan(
        name=name,
        parts={rank: [*begin, *steps] for rank, steps in enumerate(parts)},
        waits={**asleep, **(waits or {})},
    )


def skipped() -> Plan:
    """The last rank leaves out a collective and waits for a file lock."""
    return _together([REDUCE, WAIT], [REDUCE, WAIT], [LOCK], name="skipped", waits={2: Waits.FILE_LOCK})


def other_op() -> Plan:
    """Rank 1 gathers where the others reduce."""
    gather: Step = ["all_gather", 0, 128, "bfloat16"]
    return _together([REDUCE, WAIT], [gather, WAIT], [REDUCE, WAIT], name="other_op")


def other_count() -> Plan:
    """Rank 1 reduces fewer elements than the others."""
    fewer: Step = ["all_reduce", 0, COUNT // 2, DTYPE]
    return _together([REDUCE, WAIT], [fewer, WAIT], [REDUCE, WAIT], name="other_count")


def send_without_recv() -> Plan:
    """Rank 0 sends to rank 1, which waits for a file lock. Their first message connects them: it blocks."""
    return _together(
        [["send", 0, 777, "float16", 1]],
        [LOCK],
        name="send_without_recv",
        # Its thread that connects asks a socket again and again.
        waits={0: Waits.ANY, 1: Waits.FILE_LOCK},
    )


def _exchange(peer: int) -> Step:
    message = [0, 777, "float16", peer]
    return ["group", ["send", *message], ["recv", *message]]


def unanswered() -> Plan:
    """Two ranks have exchanged messages; then rank 0 sends another one, and rank 1 waits for a file lock."""
    return _together(
        [_exchange(1), ["send", 0, 777, "float16", 1], WAIT],
        [_exchange(0), LOCK],
        name="unanswered",
        waits={1: Waits.FILE_LOCK},
    )


def exchanging() -> Plan:
    """Each of two ranks sends what the other one receives, and waits for its stream: nobody lacks anything."""
    return _together([_exchange(1), WAIT], [_exchange(0), WAIT], name="exchanging")


def absent() -> Plan:
    """The last rank waits for a file lock before it sets up its communicator."""
    return Plan(
        name="absent",
        parts={0: [["join", 0]], 1: [["join", 0]], 2: [LOCK]},
        # It tries to accept again and again.
        waits={0: Waits.ANY, 1: Waits.ANY, 2: Waits.FILE_LOCK},
    )


def stopped() -> Plan:
    """The last rank stops itself after the others have gone on."""
    return _together([REDUCE, WAIT], [REDUCE, WAIT], [["stop"]], name="stopped", waits={2: Waits.STOPPED})


def killed() -> Plan:
    """The last rank is killed while the others go on."""
    return _together([REDUCE, WAIT], [REDUCE, WAIT], [["die"]], name="killed", waits={2: Waits.ENDED})


def crossed() -> Plan:
    """Two communicators of the same ranks, used in opposite order; each rank waits for its first one."""
    begin: list[Step] = [["join", 0], ["join", 1], REDUCE, ["all_reduce", 1, COUNT, DTYPE]]
    return Plan(
        name="crossed",
        parts={
            0: [*begin, ["all_reduce", 0, COUNT, DTYPE], ["synchronize", 0]],
            1: [*begin, ["all_reduce", 1, COUNT, DTYPE], ["synchronize", 1]],
        },
        waits={0: Waits.LOCK, 1: Waits.LOCK},
    )


def in_one_process() -> Plan:
    """One process with all ranks; the last device is left out of the last operation."""
    devices = 3
    every: Step = ["group", *(["all_reduce", device, COUNT, DTYPE] for device in range(devices))]
    some: Step = ["group", *(["all_reduce", device, COUNT, DTYPE] for device in range(devices - 1))]
    return Plan(
        name="in_one_process",
        parts={0: [["join_all", devices], every, every, some, WAIT]},
        waits={0: Waits.LOCK},
        together=True,
    )
