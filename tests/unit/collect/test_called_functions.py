"""Functions that uprobes watch: what their arguments say, and where breakpoints go."""

from __future__ import annotations

import ctypes
import os

import pytest

from pyhangtrace.cli.record import _FAMILIES
from pyhangtrace.collect import called_functions
from pyhangtrace.collect.called_functions import FAMILIES, FUNCTIONS, Found
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.tasks import TASKS

NUMBERS = {function.name: number for number, function in enumerate(FUNCTIONS)}
UPPER = 0xDEAD_0000_0000  # what is left in the upper half of a register that holds an int


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        (
            "ncclAllReduce",
            (1, 2, 1024, UPPER | 7, UPPER | 0, 0x10),
            "ncclAllReduce 1024 x f32 sum, rank 1 of 2",
        ),
        ("ncclAllReduce", (1, 2, 1 << 33, 9, 2, 0x20), "ncclAllReduce 8589934592 x bf16 max"),
        ("ncclAllReduce", (1, 2, 3, 99, 99, 0x20), "ncclAllReduce 3 x type 99 type 99"),
        ("ncclSend", (1, 8, 6, 3, 0x10, 0), "ncclSend 8 x f16 to 3, rank 1 of 2"),
        ("ncclRecv", (1, 8, 6, 0, 0x10, 0), "ncclRecv 8 x f16 with 0, rank 1 of 2"),
        ("ncclGroupEnd", (0, 0, 0, 0, 0, 0), "ncclGroupEnd"),
        ("MPI_Allreduce", (1, 2, UPPER | 16, 0, 0, 0), "MPI_Allreduce of 16"),
        ("MPI_Recv", (1, 4, 0, 0xFFFFFFFF, 0, 0), "MPI_Recv of 4 with -1"),
        ("gloo::allreduce", (1, 0, 0, 0, 0, 0), "gloo::allreduce"),
        ("pthread_mutex_lock", (0x7F00, 0, 0, 0, 0, 0), "pthread_mutex_lock"),
    ],
)
def test_calls_in_words(name: str, arguments: tuple[int, ...], text: str) -> None:
    assert called_functions.describe(NUMBERS[name], arguments, {0x10: "rank 1 of 2"}) == text


def test_names_of_gloo_are_what_the_compiler_makes_of_them() -> None:
    by_name = {function.name: function.symbol for function in FUNCTIONS}
    assert by_name["gloo::allreduce"] == "_ZN4gloo9allreduceERKNS_16AllreduceOptionsE"
    assert by_name["gloo::barrier"] == "_ZN4gloo7barrierERNS_14BarrierOptionsE"


def test_the_command_knows_all_families() -> None:
    assert _FAMILIES == FAMILIES


def test_a_shared_library_of_few_gets_one_breakpoint_and_libc_one_per_target() -> None:
    collective, mutex = NUMBERS["ncclAllReduce"], NUMBERS["pthread_mutex_lock"]
    library, libc = (8, 1, 77), (8, 1, 99)
    found = {
        pid: [
            Found(collective, 0x1000 * pid, f"/proc/{pid}/map_files/a", 0x40, library),
            Found(mutex, 0x2000 * pid, f"/proc/{pid}/map_files/b", 0x80, libc),
        ]
        for pid in (3, 4)
    }
    assert called_functions.places(found) == [
        ("/proc/3/map_files/a", 0x40, 0),
        ("/proc/3/map_files/b", 0x80, 3),
        ("/proc/4/map_files/b", 0x80, 4),
    ]
    assert called_functions.sites(found, 6) == [
        (3, 0x3000, collective, 5, True),
        (3, 0x6000, mutex, 0, False),
        (4, 0x4000, collective, 5, True),
        (4, 0x8000, mutex, 0, False),
    ]


def test_functions_are_found_where_the_loader_put_them() -> None:
    with GuardedReader(TASKS) as reader:
        found = called_functions.find(reader, [os.getpid()], ("mutex",), deadline_s=20)
    wanted = ctypes.cast(ctypes.CDLL(None).pthread_mutex_lock, ctypes.c_void_p).value
    (lock,) = [each for each in found[os.getpid()] if FUNCTIONS[each.number].name == "pthread_mutex_lock"]
    assert lock.address == wanted
