"""`hangtrace memory` of real programs: limits of control groups, a small /dev/shm, locked maps, loads slow and hung."""

from __future__ import annotations

import fcntl
import itertools
import json
import mmap
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace import _native
from tests.control_groups import limit_memory, parent_of_groups
from tests.integration.bad_targets import (
    TARGETS,
    await_that,
    compile_c,
    frozen_file_system,
    thread_states,
)

MIB = 1 << 20


def memory_of(pid: int | str, *options: str) -> dict[str, Any]:
    """The answer, which must be whole JSON with one of the codes that go with one."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pyhangtrace", "memory", str(pid), "--json", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return {**answer, "code": done.returncode, "took_s": time.monotonic() - began}


@contextmanager
def started(
    source: str, *arguments: str | Path, before: str = "", **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A Python program that has printed "ready"; `before` is what a shell does in its process first."""
    command = [sys.executable, "-c", textwrap.dedent(source), *map(str, arguments)]
    if before:
        command = ["sh", "-c", f'{before}; exec "$@"', "sh", *command]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, **options
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(30)
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()


_NUMBERS = itertools.count()


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory control group for a test."""
    parent = parent_of_groups("memory") if os.geteuid() == 0 else None
    if parent is None:
        pytest.skip("needs root and a memory controller whose groups can be written")
    # A name of its own: the kernel's log still tells of the kills in groups of other tests.
    folder = parent / f"hangtrace-test-{os.getpid()}-{next(_NUMBERS)}"
    folder.mkdir()
    try:
        yield folder
    finally:

        def emptied() -> bool:
            try:
                folder.rmdir()
            except OSError:
                return False
            return True

        await_that("an empty control group", emptied)


def inside(group: Path) -> str:
    return f"echo $$ > {group}/cgroup.procs"


_THRASH = """
    import mmap, os, random, signal, sys
    file = open(sys.argv[1], "rb")
    view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    view.madvise(mmap.MADV_RANDOM)
    pages = len(view) // mmap.PAGESIZE
    if os.fork() == 0:
        random.seed(1)
    touched = 0
    for number in range(1 << 60):
        touched += view[random.randrange(pages) * mmap.PAGESIZE]
        if number == 40_000 and os.getpid() == os.getpgid(0):
            print("ready", flush=True)
"""


@pytest.mark.root
def test_thrash_in_a_control_group(group: Path, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    with path.open("wb") as file:
        for _ in range(300):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())
        # Or its pages stay charged to this process' group, where there is room.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    limit_memory(group, 80 * MIB)
    with started(_THRASH, path, before=inside(group)) as child:
        answer = memory_of(child.pid, "-d", "1")
    memory = answer["memory"]
    assert memory["verdict"] == "thrash", memory["cleared"]
    assert "read in again after they were dropped" in memory["evidence"][0]
    assert f"control group /{group.name}" in memory["evidence"][0]
    assert not any(one["suspect"] == "memory.thrash" for one in memory["cleared"])
    assert sum(process["memory"]["major_faults_per_s"] for process in answer["processes"]) > 100
    assert memory["cgroup_limit"] == 80 * MIB


_SWAP = """
    import mmap, random, sys
    memory = mmap.mmap(-1, 120 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, len(memory), mmap.PAGESIZE):
        memory[at] = at >> 12 & 255
    print("ready", flush=True)
    while sys.argv[1] == "works":
        memory[random.randrange(len(memory))] += 0
    sys.stdin.read()
"""


@pytest.fixture
def swap(tmp_path: Path) -> Iterator[None]:
    """A swap file of this test alone."""
    path = tmp_path / "swap"
    path.touch(0o600)
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 256 * MIB)
    for command in ("mkswap", "swapon"):
        done = subprocess.run([command, path], capture_output=True, text=True, timeout=30)
        if done.returncode:
            pytest.skip(f"{command} refuses: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["swapoff", path], check=True, timeout=60)


@pytest.mark.root
@pytest.mark.parametrize("does", ["works", "sleeps"])
def test_swapping_in_a_control_group(group: Path, swap: None, does: str) -> None:
    """Memory that is needed and does not fit holds a job up; what is swapped out and not needed does not."""
    (group / "memory.limit_in_bytes").write_text(f"{64 * MIB}")
    with started(_SWAP, does, before=inside(group)) as child:
        answer = memory_of(child.pid, "-d", "1")
    memory = answer["memory"]
    (process,) = answer["processes"]
    assert process["memory"]["swap"] > 40 * MIB
    if does == "works":
        assert memory["verdict"] == "swap", memory
        assert "are swapped out" in memory["evidence"][0]
    else:
        assert memory["verdict"] not in ("swap", "thrash"), memory
        assert any(one["suspect"] == "memory.swap" for one in memory["cleared"])


_FIRST_READ = """
    import mmap, sys, time
    file = open(sys.argv[1], "rb")
    view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    view.madvise(mmap.MADV_RANDOM)
    touched = 0
    for at in range(0, len(view), mmap.PAGESIZE):
        touched += view[at]
        if at == mmap.PAGESIZE * 100:
            print("ready", flush=True)
        if at // mmap.PAGESIZE % 32 == 0:
            time.sleep(0.02)  # so that it is far from done whenever it is looked at
    print("done", flush=True)
    sys.stdin.read()
"""


@pytest.mark.root
def test_a_first_read_by_page_faults_is_no_thrash(group: Path, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    with path.open("wb") as file:
        file.write(os.urandom(MIB) * 200)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    limit_memory(group, 1024 * MIB)
    with started(_FIRST_READ, path, before=inside(group)) as child:
        answer = memory_of(child.pid, "-d", "1")
    memory = answer["memory"]
    assert memory["verdict"] == "normal", memory["evidence"]
    assert sum(process["memory"]["major_faults_per_s"] or 0 for process in answer["processes"]) > 100
    (one,) = memory["loading"]
    assert one["files"] == str(path)
    assert one["rate_bytes_per_s"] > MIB
    assert one["eta_s"] > 0
    assert one["done"] < one["total"] == 200 * MIB


_OOM = """
    import os, signal, sys, time
    child = os.fork()
    if child == 0:
        memory = []
        while True:
            memory.append(b"x" * (1 << 20))
    # Stays a zombie: nobody asks how it has ended.
    while open(f"/proc/{child}/stat").read().rsplit(")", 1)[1].split()[0] != "Z":
        time.sleep(0.01)
    if sys.argv[1] == "reap":
        os.wait()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.root
@pytest.mark.parametrize("then", ["leave", "reap"])
def test_an_oom_kill_in_a_control_group(group: Path, then: str) -> None:
    limit_memory(group, 60 * MIB)
    with started(_OOM, then, before=inside(group)) as child:
        answer = memory_of(child.pid, "-d", "0.1")
    memory = answer["memory"]
    assert memory["verdict"] == "oom_killed"
    (victim,) = memory["oom"]
    assert victim["limit_of"] == f"/{group.name}"
    assert victim["pid"] != child.pid
    if os.access("/dev/kmsg", os.R_OK):
        assert victim["ago_s"] < 60
        assert victim["proof"] == "the kernel's log names it"
    assert memory["oom_kills"] == 1
    assert f"at the limit of /{group.name}" in memory["summary"]


# As NCCL does for its segments: room for each is asked for before it is used, and again until there is some.
_SHM = """
    import os, sys, time
    folder, told = sys.argv[1], False
    os.system(f"mount -t tmpfs -o size=1m tmpfs {folder}")
    held = os.open(f"{folder}/held", os.O_RDWR | os.O_CREAT)
    while True:
        file = os.open(f"{folder}/segment", os.O_RDWR | os.O_CREAT)
        size = os.fstat(file).st_size
        try:
            os.posix_fallocate(file, 0, size + (64 << 10))
        except OSError:
            if not told:
                print("ready", flush=True)
            told = True
            time.sleep(0.01)
        os.close(file)
"""


@pytest.mark.root
@pytest.mark.parametrize("folder", ["/dev/shm", "elsewhere"])
def test_a_memory_file_system_that_is_too_small(tmp_path: Path, folder: str) -> None:
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("needs root, to mount a /dev/shm of its own")
    point = folder if folder.startswith("/") else str(tmp_path)
    with started(_SHM, point, before='[ -n "$INSIDE" ] || INSIDE=1 exec unshare -m "$@"') as child:
        memory = memory_of(child.pid, "-d", "0")["memory"]
    assert memory["verdict"] == "shm_full", memory
    assert f"{point} is full: 0 B of 1.0 MB free" in memory["summary"]


_MANY = """
    import ctypes, mmap, sys
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    count, page = int(sys.argv[1]), 4096
    start = libc.mmap(None, count * page, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(count * page), 15)
    ctypes.memset(start, 1, count * page)
    for number in range(0, count, 2):
        assert libc.mprotect(start + number * page, page, 1) == 0
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_process_of_fifty_thousand_mappings() -> None:
    count = 50_000
    limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    if limit < count + 1000:
        pytest.skip(f"vm.max_map_count is {limit}")
    with started(_MANY, str(count)) as child:
        answer = memory_of(child.pid, "--exact", "-d", "0")
    (process,) = answer["processes"]
    assert process["problem"] is None
    assert process["memory"]["rss"] > count * 4096
    # Whole kilobytes of each mapping do not get lost.
    assert process["memory"]["pss"] >= process["memory"]["uss"] >= count * 4096
    if answer["memory"]["mode"] == "pfn_union":
        assert answer["memory"]["group_low"] >= count * 4096
        assert answer["memory"]["group_low"] == pytest.approx(process["memory"]["rss"], rel=0.02)


@pytest.mark.root
def test_a_mmap_lock_that_is_held_for_ever(tmp_path: Path) -> None:
    program = compile_c(TARGETS / "stuck_mmap_lock.c", tmp_path / "stuck_mmap_lock")
    with frozen_file_system(tmp_path) as (mounted, freeze):
        data = mounted / "data"
        data.write_bytes(bytes(8 << 20))
        os.sync()
        with subprocess.Popen([program, data], stdout=subprocess.PIPE, start_new_session=True) as target:
            try:
                assert target.stdout is not None
                assert target.stdout.readline() == b"ready\n"
                freeze()
                target.send_signal(signal.SIGUSR1)
                await_that(
                    "a held mmap lock",
                    lambda: sorted(thread_states(target.pid).values()) == ["D", "D", "S"],
                )
                names = {
                    int(folder.name): (folder / "comm").read_text().strip()
                    for folder in Path(f"/proc/{target.pid}/task").iterdir()
                }
                writers = _native.mmap_lock_writers()
                if writers:  # where programs may be loaded, the kernel says it itself
                    assert names[writers[target.pid]] == "unmapper"
                for options in ((), ("--exact",)):
                    answer = memory_of(target.pid, *options)
                    (process,) = answer["processes"]
                    assert process["problem"] == "mmap_lock_held"
                    assert names[process["problem_tid"]] == "unmapper"
                    assert process["memory"]["rss"] > 0
                    assert answer["code"] == 3
                    assert answer["took_s"] < 15
                    await_that("no reader is stuck behind the lock", lambda: not left_over())
            finally:
                subprocess.run(["fsfreeze", "-u", str(mounted)], check=True, timeout=30)
                target.kill()


def left_over() -> list[str]:
    """Readers of ours whose parent is gone."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                command = (folder / "cmdline").read_bytes() if words[0] == "D" else b""
            except OSError:
                continue
            if b"pyhangtrace" in command and b"pyhangtrace" not in _command(words[1]):
                found.append(folder.name)
    return found


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


_ALIKE = """
    import mmap, sys
    memory = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    memory.madvise(mmap.MADV_MERGEABLE)
    for page in range(0, len(memory), mmap.PAGESIZE):
        memory[page : page + 8] = page.to_bytes(8, "little")
    print("ready", flush=True)
    sys.stdin.read()
"""
KSM = Path("/sys/kernel/mm/ksm")


@pytest.fixture
def merging() -> Iterator[None]:
    """The kernel looks for pages that are alike, and no longer does it afterwards."""
    if os.geteuid() != 0 or not (KSM / "run").exists():
        pytest.skip("needs root and KSM")
    with (KSM / "run").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever tests here at the same time waits
        before = {name: (KSM / name).read_text() for name in ("sleep_millisecs", "pages_to_scan", "run")}
        if before["run"].strip() != "0":
            pytest.skip("KSM is in use here")
        try:
            for name, value in (("sleep_millisecs", "5"), ("pages_to_scan", "4000"), ("run", "1")):
                (KSM / name).write_text(value)
            yield
        finally:
            (KSM / "run").write_text("2")
            for name, value in before.items():
                (KSM / name).write_text(value)


@pytest.mark.root
def test_pages_that_the_kernel_has_merged_count_once_in_the_lower_end(merging: None) -> None:
    size = 32 * MIB
    with started(_ALIKE) as one, started(_ALIKE) as other:
        if not Path(f"/proc/{one.pid}/ksm_merging_pages").exists():
            pytest.skip("the kernel does not tell of processes")
        await_that(
            "merged pages",
            lambda: int((KSM / "pages_sharing").read_text()) * mmap.PAGESIZE > size * 0.9,
        )
        both = f"{one.pid},{other.pid}"
        quick = memory_of(both, "-d", "0")["memory"]
        exact = memory_of(both, "-d", "0", "--exact")["memory"]
    assert quick["merged"] > size * 0.9
    assert quick["rss_sum"] > 2 * size
    if exact["mode"] == "pfn_union":
        assert quick["group_low"] <= exact["group_low"] <= quick["group_high"]
        assert exact["group_low"] < 2 * size


_BOOKS = """
    import mmap, os, signal, sys
    file = open(sys.argv[1], "rb")
    view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    touched = sum(view[:: mmap.PAGESIZE])
    memfd = os.memfd_create("shared")
    os.write(memfd, b"x" * (20 << 20))
    own = b"x" * (100 << 20)
    if os.fork() == 0:
        mine = b"y" * (30 << 20)
    elif True:
        print("ready", flush=True)
    sys.stdin.read()
    signal.pause()
"""


@pytest.mark.root
def test_the_books_of_a_job_alone_in_its_group_balance(group: Path, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    with path.open("wb") as file:
        file.write(os.urandom(MIB) * 64)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with started(_BOOKS, path, before=inside(group)) as child:
        answer = memory_of(child.pid, "--exact", "-d", "0.2")
    memory, books = answer["memory"], answer["memory"]["books"]
    assert books["path"] == f"/{group.name}"
    assert books["others"] == 0
    assert abs(books["residue"]) < 0.01 * books["usage"]
    parts = {entry["name"]: entry["size"] for entry in books["entries"]}
    # Before Linux 5.13 a group's counters lag behind by up to 32 pages for each CPU.
    lag = 32 * mmap.PAGESIZE * (os.cpu_count() or 1)
    assert parts["page cache"] >= 64 * MIB - lag
    assert parts["shared memory"] == pytest.approx(20 * MIB, abs=lag)
    assert parts["anonymous"] >= 100 * MIB - lag
    assert parts["kernel"] > 0
    if memory["mode"] == "pfn_union":
        # What the job holds is what it is charged for, but for the memfd that it does not map, libraries that others
        # brought in, and the kernel's part.
        held = memory["group_low"]
        assert held == pytest.approx(books["usage"] - parts["kernel"] - 20 * MIB, abs=30 * MIB)


_SLOW_LOAD = """
    import sys, time
    file = open(sys.argv[1], "rb", buffering=0)
    file.read(4 << 20)
    print("ready", flush=True)
    while sys.argv[2] == "slow" and file.read(1 << 20):
        time.sleep(0.02)
    sys.stdin.read()
"""


@pytest.mark.parametrize("pace", ["slow", "hung"])
def test_a_slow_load_is_told_from_one_that_hangs(tmp_path: Path, pace: str) -> None:
    path = tmp_path / "model-00001-of-00002.safetensors"
    for name in (path.name, "model-00002-of-00002.safetensors"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(4096 * MIB)
    with started(_SLOW_LOAD, path, pace) as child:
        (one,) = memory_of(child.pid, "-d", "0.5")["memory"]["loading"]
    assert one["files"] == f"{tmp_path}/model-*-of-*.safetensors"
    assert (one["count"], one["readers"], one["current"]) == (2, [child.pid], [path.name])
    if pace == "slow":
        assert MIB < one["rate_bytes_per_s"] < 100 * MIB
        assert one["eta_s"] > 1
    else:
        assert one["rate_bytes_per_s"] == 0
        assert "not a byte of it" in one["summary"]


_RANK_LOADS = """
    import sys, time
    def load_weights(file):
        while file.read(1 << 20):
            time.sleep(0.02)
    file = open(sys.argv[1], "rb", buffering=0)
    print("ready", flush=True)
    load_weights(file)
    sys.stdin.read()
"""


def test_attach_tells_how_far_a_load_is(tmp_path: Path) -> None:
    path = tmp_path / "model-00001-of-00001.safetensors"
    with path.open("wb") as file:
        file.truncate(4096 * MIB)
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
    with started(_RANK_LOADS, path, env=environment) as child:
        done = subprocess.run(
            [sys.executable, "-m", "pyhangtrace", "attach", str(child.pid), "--json", "--no-bpf"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    report = json.loads(done.stdout)
    phase = report["workload"]["phase"]
    assert phase["name"] == "weight_loading"
    assert MIB < phase["rate_bytes_per_s"] < 100 * MIB
    assert phase["eta_s"] > 1
    assert report["verdict"]["state"] != "hung"
    assert report["memory"]["loading"][0]["current"] == [path.name]
