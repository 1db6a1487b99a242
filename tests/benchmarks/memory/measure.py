"""Programs with many mappings or many pages, and the CPU time of ways to read them, taken in turns."""

from __future__ import annotations

import contextlib
import ctypes
import os
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"

MANY_MAPPINGS = """
    import ctypes, mmap, sys
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    count, page = int(sys.argv[1]), 4096
    start = libc.mmap(None, count * page, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    for number in range(0, count, 2):
        assert libc.mprotect(start + number * page, page, 1) == 0
    print("ready", flush=True)
    sys.stdin.read()
"""

# One rank of a training: a process group, a model that it reduces for, workers that bring it batches.
TORCH_RANK = """
    import sys, tempfile, torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset
    folder = tempfile.TemporaryDirectory()
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder.name}/store", rank=0, world_size=1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(512, 256), torch.randint(8, (512,)))
    for inputs, labels in DataLoader(data, batch_size=64, num_workers=2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    print("ready", flush=True)
    sys.stdin.read()
"""

MAPS_FILE = """
    import mmap, os, sys
    file = os.open(sys.argv[1], os.O_RDONLY)
    view = mmap.mmap(file, 0, prot=mmap.PROT_READ)
    touched = sum(view[:: mmap.PAGESIZE])
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def program(source: str, *arguments: str) -> Iterator[int]:
    """The pid of a Python program that has printed "ready"."""
    with started([sys.executable, "-c", textwrap.dedent(source), *arguments]) as child:
        yield child.pid


@contextlib.contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n", "the program did not get there"
        yield child
    finally:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()


def built(name: str, folder: Path, *flags: str) -> Path:
    """A C program of ours, compiled."""
    path = folder / name
    source = PROGRAMS / f"{name}.c"
    subprocess.run(["cc", "-O2", *flags, "-o", str(path), str(source)], check=True, timeout=60)
    return path


def drainer(folder: Path) -> Callable[[str], int]:
    """Reads a file and throws it away: what the kernel alone costs."""
    library = ctypes.CDLL(str(built("drain", folder, "-shared", "-fPIC")))
    library.drain.restype = ctypes.c_long

    def drain(path: str) -> int:
        size = library.drain(path.encode())
        assert size > 0, path
        return int(size)

    return drain


def in_turns(ways: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Median CPU seconds of each way; all of them once a round, so that a busy machine is busy for all."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for name, way in ways.items():
        way()  # loads what it needs
        del name
    for _ in range(rounds):
        for name, way in ways.items():
            before = time.process_time()
            way()
            taken[name].append(time.process_time() - before)
    return {name: statistics.median(times) for name, times in taken.items()}


@contextlib.contextmanager
def segment(size: int) -> Iterator[Path]:
    """A file in /dev/shm of small pages, all of them there."""
    path = Path(f"/dev/shm/hangtrace-bench-{os.getpid()}")
    try:
        with path.open("wb") as file:
            for _ in range(size >> 20):
                file.write(b"x" * (1 << 20))
        yield path
    finally:
        path.unlink()
