"""Ways in which a rank stops, each something that really happens to servers."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import threading
from typing import Any

import announce

_kept: list[Any] = []


def go(way: str, rank: int) -> None:
    """The calling thread goes this way; most never return."""
    _WAYS[way](rank)


def map_weights() -> None:
    """Maps the file ENGINE_WEIGHTS as often as ENGINE_MAPPINGS says, and touches all of it: each mapping counts in full
    in the resident set, while the pages exist once.
    """
    path = os.environ.get("ENGINE_WEIGHTS")
    if path is None:
        return
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    with open(path, "rb") as file:
        for _ in range(int(os.environ["ENGINE_MAPPINGS"])):
            _kept.append(mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ))


def _event(_rank: int) -> None:
    """Waits to be woken, and nobody is left who would."""
    threading.Event().wait()


def _peer(_rank: int) -> None:
    """Asks a service over the network, which never answers."""
    with socket.create_connection(("127.0.0.1", int(os.environ["ENGINE_PEER"]))) as connection:
        connection.sendall(b"next\n")
        connection.recv(1)


def _lock(rank: int) -> None:
    """A thread that fetches the next shard holds a lock, and the storage does not answer; the main thread wants the
    lock.
    """
    mine, held = threading.RLock(), threading.Event()

    def prefetch() -> None:
        with mine:
            announce.member(f"rank{rank}.prefetch")
            held.set()
            _peer(rank)

    threading.Thread(target=prefetch, name="prefetch", daemon=True).start()
    held.wait()
    with mine:
        pass


def _file_lock(_rank: int) -> None:
    """The cache of compiled kernels is locked by somebody else."""
    fd = os.open(os.environ["ENGINE_CACHE_LOCK"], os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.close(fd)


def _stale_lock(_rank: int) -> None:
    """torch's lock file of a build whose process is gone."""
    from torch.utils.file_baton import FileBaton

    path = os.path.join(os.path.dirname(os.environ["ENGINE_CACHE_LOCK"]), "lock")
    with open(path, "w"):
        pass
    baton = FileBaton(path)
    if not baton.try_acquire():
        baton.wait()


def _compile(_rank: int) -> None:
    """Compiles a kernel when it is first needed, and that takes long."""
    from torch.utils.cpp_extension import load_inline

    # The compiler has this computed before it is done, which takes half a minute and half a gigabyte.
    source = """
        #include <torch/extension.h>
        constexpr unsigned long steps(unsigned long n) {
            unsigned long hash = 1;
            for (unsigned long i = 0; i < n; ++i) hash = hash * 31 + i;
            return hash;
        }
        static_assert(steps(5000000) != 0);
    """
    folder = os.path.dirname(os.environ["ENGINE_CACHE_LOCK"])
    load_inline(
        "slow_kernel",
        source,
        functions=["steps"],
        build_directory=folder,
        extra_cflags=["-O0", "-fconstexpr-ops-limit=9000000000000", "-fconstexpr-loop-limit=2100000000"],
    )


def _throttle(_rank: int) -> None:
    """From here on what this process reads comes slowly."""
    with open(os.path.join(os.environ["ENGINE_CGROUP"], "cgroup.procs"), "w") as file:
        file.write(str(os.getpid()))


_WAYS = {
    "none": lambda _rank: None,
    "event": _event,
    "peer": _peer,
    "lock": _lock,
    "file_lock": _file_lock,
    "stale_lock": _stale_lock,
    "compile": _compile,
    "throttle": _throttle,
}
