"""The stand-in runtime, built once a session, and libraries of NCCL; both skip with the reason where not to be had."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.nccl.bench import CannotBuild, Runtime, build_runtime
from tests.nccl.wheels import NoWheel, Wheel, library


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    if platform.machine() != "x86_64":
        pytest.skip("the stand-in runtime patches x86-64 code")
    try:
        return build_runtime(tmp_path_factory.mktemp("runtime"))
    except CannotBuild as problem:
        if "no C compiler" in str(problem):
            pytest.skip(str(problem))
        raise


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Where NCCL's own logs of a case go."""
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


def available(wheel: Wheel) -> Wheel:
    """The same wheel, once its library is here; skips the test otherwise."""
    try:
        library(wheel)
    except NoWheel as problem:
        pytest.skip(str(problem))
    return wheel
