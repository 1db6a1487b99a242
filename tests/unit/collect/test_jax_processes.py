"""Which process of a job of JAX a process is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pyhangtrace.collect.jax_processes import claim, uses_jax
from pyhangtrace.discover import roles
from pyhangtrace.model.kinds import FrameKind, Role
from pyhangtrace.model.processes import RankClaim
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import ThreadSample

if TYPE_CHECKING:
    from pyhangtrace._native import PythonValue


def test_number_and_count_make_a_rank() -> None:
    assert claim(2, 3) == RankClaim(source="jax.distributed", rank=2, world_size=3, framework="jax")


@pytest.mark.parametrize(
    ("number", "count"),
    [
        (0, 1),  # on its own
        (0, None),  # the number is put there first
        (None, None),
        (3, 3),
        (-1, 3),
        ("0", 3),
        (True, 3),
        (0, 1 << 40),
    ],
)
def test_what_makes_no_sense_is_no_rank(number: PythonValue, count: PythonValue) -> None:
    assert claim(number, count) is None


def thread(pid: int, module: str) -> ThreadSample:
    frame = Frame(kind=FrameKind.NATIVE, function="WorkerLoop", module=module)
    return ThreadSample(pid=pid, tid=pid, comm="python", state="S", frames=(frame,))


def test_users_are_told_by_their_threads() -> None:
    samples = [
        thread(1, "/venv/jaxlib/libjax_common.so"),
        thread(2, "/venv/jaxlib/xla_extension.so"),
        thread(3, "/venv/torch/lib/libtorch_cpu.so"),
        thread(4, "/venv/my_jax.so"),
    ]
    assert uses_jax(samples) == {1, 2}


def test_a_claim_makes_a_rank_of_what_has_none() -> None:
    other = RankClaim(source="environ RANK", rank=0, world_size=2)
    identities = {
        1: roles.Identity(),
        2: roles.Identity(role=Role.RANK, claims=[other]),
        3: roles.Identity(role=Role.DATA_WORKER),
        4: roles.Identity(claims=[RankClaim(source=roles.START_ORDER, rank=1)]),
    }
    assert roles.without_rank(identities) == {1, 4}
    found = claim(1, 2)
    assert found is not None
    roles.add(identities, {1: found})
    assert identities[1].role is Role.RANK
    assert roles.world_size(identities) == 2
