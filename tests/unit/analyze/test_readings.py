"""Stacks in the same functions are read once, and each call is told with the frames of its own stack."""

from __future__ import annotations

from pyhangtrace.analyze.calls import recognise
from pyhangtrace.analyze.readings import read
from tests.unit.analyze import builders as b

WAIT = b.native("c10d::Work::wait(std::chrono::duration<long>)")


def test_lines_and_addresses_make_no_other_stack() -> None:
    one = (WAIT, b.py("all_reduce", b.C10D, 3252), b.py("step", line=12))
    other = (b.replace(WAIT, address=0x7F12), b.py("all_reduce", b.C10D, 3252), b.py("step", line=40))
    assert read(one) is read(other)
    assert read(one).call(one) == recognise(one)
    assert read(other).call(other) == recognise(other) != recognise(one)


def test_the_same_names_elsewhere_are_another_stack() -> None:
    library, program = b.py("all_reduce", b.C10D), b.py("all_reduce", "/job/train.py")
    assert read((WAIT, library)).call((WAIT, library)) != read((WAIT, program)).call((WAIT, program))
    assert read((library,)).call((library,)) is not None
    assert read((program,)).call((program,)) is None
    gpu = (b.native("cuStreamSynchronize", "/usr/lib/libcuda.so.1"), b.native("main", "/job/app"))
    assert read(gpu).gpu is not None
    assert read((b.py("cuStreamSynchronize"), gpu[1])).gpu is None
