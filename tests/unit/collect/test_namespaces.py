from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from pyhangtrace.collect.namespaces import Namespace, inside


@pytest.fixture
def elsewhere() -> Iterator[int]:
    """A process in namespaces of its own."""
    with subprocess.Popen(
        ["unshare", "--net", "--ipc", "sh", "-c", "echo ready; read -r line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        assert child.stdout is not None
        if child.stdout.readline() != b"ready\n":
            pytest.skip("no namespaces can be made here")
        yield child.pid


@pytest.mark.root
@pytest.mark.parametrize("kind", list(Namespace))
def test_a_namespace_is_entered_and_left(elsewhere: int, kind: Namespace) -> None:
    name = kind.value[0]
    ours, theirs = os.readlink(f"/proc/self/ns/{name}"), os.readlink(f"/proc/{elsewhere}/ns/{name}")
    assert ours != theirs
    with inside(f"/proc/{elsewhere}/ns/{name}", kind):
        assert os.readlink(f"/proc/thread-self/ns/{name}") == theirs
    assert os.readlink(f"/proc/thread-self/ns/{name}") == ours


def test_without_a_path_the_thread_stays() -> None:
    before = os.readlink("/proc/thread-self/ns/net")
    with inside(None, Namespace.NET):
        assert os.readlink("/proc/thread-self/ns/net") == before


def test_one_of_another_kind_is_refused() -> None:
    with pytest.raises(OSError, match="Invalid argument"), inside("/proc/self/ns/mnt", Namespace.NET):
        pass
