"""Processes, threads and memory, on made-up trees and on ourselves."""

from __future__ import annotations

import os
import platform
import select
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pyhangtrace.collect import maps, processes, procfs, stacks
from pyhangtrace.collect.guarded import GuardedReader, HelperState
from pyhangtrace.collect.stacks import ProcessPicture
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.collect.threads import lock_keeper, parse_syscall, read_thread
from pyhangtrace.model import syscalls
from pyhangtrace.model.host import MappedFile
from pyhangtrace.model.process_table import parse_stat
from pyhangtrace.model.processes import PosixTimer
from pyhangtrace.model.threads import ThreadSample
from tests.unit.collect.helpers import blocked, program, stat_line, write

STATUS = """\
Name:\tpython
Umask:\t0022
State:\tS (sleeping)
Tgid:\t7
NSpid:\t7\t3
TracerPid:\t42
SigCgt:\t0000000000004002
Uid:\t1000\t1000\t1000\t1000
VmRSS:\t    1000 kB
RssAnon:\t     100 kB
RssFile:\t     800 kB
RssShmem:\t     100 kB
VmPTE:\t      12 kB
VmSwap:\t       0 kB
HugetlbPages:\t    2048 kB
"""
CGROUPS = "12:cpu,cpuacct:/a\n4:memory:/jobs/7\n0::/unified\n"


def test_one_process(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "uptime": "1000.00 50.00\n",
            "7/stat": stat_line(7, "a) (b", start=900 * os.sysconf("SC_CLK_TCK")),
            "7/status": STATUS,
            "7/cgroup": CGROUPS,
        },
    )
    table = procfs.read_table(str(tmp_path))
    facts = processes.describe([7, 8], table, {7: ("python", "-u", "x\n.py")}, proc_root=str(tmp_path))
    assert list(facts) == [7]
    seven = facts[7]
    assert seven.comm == "a) (b"
    assert seven.title == "python -u x .py"
    assert (seven.uid, seven.tracer_pid, seven.container, seven.cgroup) == (1000, 42, True, "/jobs/7")
    assert seven.started_s_ago == 100.0
    assert seven.signals_caught == (2, 15)
    assert (seven.memory.rss, seven.memory.file, seven.memory.hugetlb) == (1024000, 819200, 2097152)
    assert (seven.problem, seven.exit_code) == (None, None)


def test_timers_of_a_process() -> None:
    text = (
        "ID: 0\nsignal: 14/0000000000000000\nnotify: signal/pid.17023\nClockID: 1\n"
        "ID: 1\nsignal: 32/00007f0000000000\nnotify: signal/tid.8\nClockID: -6\n"
        "ID: 2\nsignal: 0/0000000000000000\nnotify: none/pid.7\nClockID: 0\n"
    )
    assert processes.parse_timers(text) == (
        PosixTimer(signal=14, clock=1),
        PosixTimer(signal=32, clock=-6),
        PosixTimer(signal=None, clock=0),
    )
    assert processes.parse_timers("") == ()
    assert processes.parse_timers("ID: 0\nsignal: x\nClockID: y\n") == ()


@pytest.mark.parametrize(
    ("line", "problem", "exit_code"),
    [
        (stat_line(7, state="Z", exit_code=9), "zombie", 9),
        (stat_line(7, flags=0x00200000), "kernel_thread", None),
    ],
)
def test_processes_without_anything_to_read(
    tmp_path: Path, line: str, problem: str, exit_code: int | None
) -> None:
    write(tmp_path, {"7/stat": line})
    facts = processes.describe([7], procfs.read_table(str(tmp_path)), {}, proc_root=str(tmp_path))[7]
    assert (facts.problem, facts.exit_code) == (problem, exit_code)
    assert facts.memory.rss is None


@pytest.mark.parametrize("text", ["", "7", "7 (x", "7 (x) S", "x (y) S " + "0 " * 50])
def test_a_broken_stat_line_is_nothing(text: str) -> None:
    assert parse_stat(text) is None


def test_family_table(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "1/stat": stat_line(1, ppid=0, start=0),
            "5/stat": stat_line(5, ppid=1, start=50),
            "9/stat": stat_line(9, ppid=5, start=70),
            "8/stat": stat_line(8, ppid=5, start=80),
            "10/stat": stat_line(10, ppid=8, start=90),
            "11/stat": "",
            "self": "",
        },
    )
    table = procfs.read_table(str(tmp_path))
    assert 11 not in table
    assert table.children(5) == (9, 8)
    assert table.descendants(5) == (9, 8, 10)
    assert list(table.ancestors(10)) == [8, 5, 1]


def test_command_lines_and_environments(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "7/cmdline": b"python\0-u\0train.py\0",
            "7/environ": b"RANK=3\0SECRET=x\0BROKEN\0RANK=4\0NAME=a=b\xff\0",
            "8/cmdline": b"sglang::scheduler_TP0" + bytes(40),
            "9/cmdline": b"",
        },
    )
    with GuardedReader(TASKS, proc_root=str(tmp_path)) as reader:
        arguments = processes.cmdlines(reader, [7, 8, 9, 10], deadline_s=10)
        variables = processes.environs(reader, [7, 8], ["RANK", "NAME"], deadline_s=10)
    assert arguments == {7: ("python", "-u", "train.py"), 8: ("sglang::scheduler_TP0",), 9: (), 10: ()}
    assert variables == {7: {"RANK": "3", "NAME": "a=b\N{REPLACEMENT CHARACTER}"}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("running\n", (None, (), True)),
        ("-1 0x7ff 0x7fe\n", (-1, (), False)),
        ("202 0x10 0x80 0x2 0x0 0x0 0x0 0x7ff 0x7fe\n", (202, (16, 128, 2, 0, 0, 0), False)),
        ("", (None, (), False)),
        (None, (None, (), False)),
        ("what is this", (None, (), False)),
    ],
)
def test_syscall_file(text: str | None, expected: tuple[int | None, tuple[int, ...], bool]) -> None:
    assert parse_syscall(text) == expected


def test_a_thread_of_ours() -> None:
    with program("import signal; print('ready', flush=True); signal.pause()") as child:
        sample = read_thread(child.pid, child.pid)
        pictures = stacks.threads_without_memory(child.pid)
    assert sample is not None
    assert (sample.pid, sample.tid) == (child.pid, child.pid)
    assert [thread.tid for thread in pictures] == [child.pid]
    assert read_thread(child.pid, child.pid) is None


def test_who_sleeps_with_the_memory_map_locked(tmp_path: Path) -> None:
    waits = ((7, "S", "futex_do_wait"), (8, "D", "rwsem_down_read_slowpath"), (9, "D", "__vma_start_write"))
    for tid, state, wchan in waits:
        write(
            tmp_path,
            {
                f"7/task/{tid}/stat": stat_line(tid, state=state),
                f"7/task/{tid}/wchan": wchan,
                f"7/task/{tid}/stack": f"[<0>] {wchan}+0x1/0x2\n[<0>] __do_munmap+0x3/0x4\n",
            },
        )
    threads = stacks.threads_without_memory(7, str(tmp_path))
    assert lock_keeper(threads) == 9
    assert [frame.function for frame in threads[2].frames] == ["__vma_start_write", "__do_munmap"]
    assert threads[0].frames == ()
    assert lock_keeper(threads[:2]) == 8
    # Who sleeps in a page fault has the lock of a mapping only; the call that changes the map waits for that one.
    machine = platform.machine()
    (munmap,) = [number for number, name in syscalls.names(machine).items() if name == "munmap"]
    fault = replace(threads[2], tid=5, wchan="percpu_rwsem_wait", syscall=-1)
    assert lock_keeper([fault, replace(threads[2], syscall=munmap)]) == 9
    assert lock_keeper(threads[:1]) is None


@pytest.fixture
def reader() -> Iterator[GuardedReader]:
    with GuardedReader(TASKS) as made:
        yield made


def test_how_long_a_thread_has_been_asleep(reader: GuardedReader) -> None:
    if stacks.exec_start_ms("/proc/self/sched") is None:
        pytest.skip("this kernel shows no scheduler clock")
    with program("import signal; print('ready', flush=True); signal.pause()") as child:
        blocked(child.pid, lambda sample: sample.state == "S")
        picture = _picture(child.pid)
        seen = time.monotonic()
        select.select([], [], [], 1.0)
        asked = time.monotonic()
        found, problem = stacks.with_asleep(reader, {child.pid: picture}, deadline_s=20)
        now = read_thread(child.pid, child.pid)
    assert problem == ""
    assert now is not None
    assert now.slices == picture.threads[0].slices, "it ran meanwhile, so nothing is known about its sleep"
    slept = found[child.pid].threads[0].asleep_for_s
    assert slept is not None
    # It has not run since we saw it. Time that a hypervisor took away from the CPU is missing in the clock.
    assert 0.7 * (asked - seen) <= slept < 60


def _picture(pid: int) -> ProcessPicture:
    sample = read_thread(pid, pid)
    assert sample is not None
    stat = procfs.read_text(f"/proc/{pid}/stat")
    assert stat is not None
    cpu = int(stat[stat.rfind(")") + 2 :].split()[36])
    state = ThreadSample(pid=pid, tid=pid, comm="x", state="S", run_ns=sample.run_ns, slices=sample.slices)
    return ProcessPicture(pid, (state,), None, None, None, {pid: cpu})


def test_sleep_is_carried_over_only_where_nothing_ran() -> None:
    def picture(asleep: float | None, slices: int, state: str = "S") -> dict[int, ProcessPicture]:
        sample = ThreadSample(
            pid=5, tid=5, comm="x", state=state, run_ns=100, slices=slices, asleep_for_s=asleep
        )
        return {5: ProcessPicture(5, (sample,), None, None, None, {5: 0})}

    def carried(before: dict[int, ProcessPicture], now: dict[int, ProcessPicture]) -> float | None:
        return stacks.carry_asleep(before, now, 0.5)[5].threads[0].asleep_for_s

    assert carried(picture(3.0, 7), picture(None, 7)) == 3.5
    assert carried(picture(3.0, 7), picture(None, 8)) is None
    assert carried(picture(None, 7), picture(None, 7)) is None
    assert carried(picture(3.0, 7), picture(None, 7, "R")) is None
    assert carried({}, picture(None, 7)) is None


MAPS = b"""\
55d0c0000000-55d0c0001000 r--p 00000000 fe:00 11 /usr/bin/python3.11
7f0000000000-7f0040000000 r--s 00000000 fe:00 99 /models/a b.safetensors
7f0040000000-7f0050000000 r-xp 00000000 fe:00 12 /x/torch/lib/libtorch_cpu.so
7f0050000000-7f0050001000 rw-s 00000000 00:01 33 /dev/shm/ring
7f0060000000-7f0060001000 rw-p 00000000 00:00 0
7f0070000000-7f0070001000 r-xp 00000000 fe:00 13 /x/libnccl.so.2
7ffc00000000-7ffc00001000 rw-p 00000000 00:00 0 [stack]
"""


def test_maps() -> None:
    frameworks, files, *_ = maps.parse(MAPS)
    assert frameworks == ("nccl", "torch")
    assert [(file.path, file.mapped, file.shared) for file in files] == [
        ("/models/a b.safetensors", 1 << 30, True),
        ("/x/torch/lib/libtorch_cpu.so", 1 << 28, False),
    ]


def test_what_one_process_maps_twice_and_what_is_too_small_to_be_listed() -> None:
    found = maps.parse(
        b"""\
7f0000000000-7f0000400000 r--s 00000000 fe:00 99 /w
7f0000400000-7f0000800000 rw-p 00200000 fe:00 99 /w
7f0000800000-7f0000900000 rw-p 00000000 fe:00 99 /w
7f0001000000-7f0001001000 r--p 00000000 fe:00 7 /x.so
7f0001001000-7f0001002000 r-xp 00001000 fe:00 7 /x.so
7f0001002000-7f0001003000 rw-p 00001000 fe:00 7 /x.so
"""
    )
    assert [(file.mapped, file.end) for file in found.files] == [(9 << 20, 6 << 20)]
    assert found.small == 3 << 12
    assert found.twice == (3 << 20) + (1 << 12)
    # A file of which two map the same counts once, what is too small for each.
    assert maps.unlisted({1: found, 2: found}, ()) == (6 << 20) + 2 * (3 << 12)
    shown = MappedFile(
        path="/w", device=os.makedev(0xFE, 0), inode=99, size=None, resident=None, mappers=(1, 2)
    )
    assert maps.unlisted({1: found, 2: found}, (shown,)) == 2 * (3 << 12)


def test_shared_files_and_what_is_cached(reader: GuardedReader, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(8 << 20))
    source = """
        import mmap, signal, sys
        f = open(sys.argv[1], "rb")
        m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        print("ready", flush=True)
        signal.pause()
        """
    with program(source, str(path)) as one, program(source, str(path)) as two:
        mapped = maps.collect(reader, [one.pid, two.pid], deadline_s=10)
        found = {file.path: file for file in maps.shared_files(reader, mapped, deadline_s=10)}
    file = found[str(path)]
    assert file.mappers == tuple(sorted((one.pid, two.pid)))
    assert (file.size, file.kind) == (8 << 20, "file")
    # Just written, so all of it is cached; kernels before 6.5 do not say.
    assert file.resident in (8 << 20, None)
    assert all(each.mappers for each in found.values())


def test_a_segment_in_shared_memory(reader: GuardedReader) -> None:
    source = """
        import mmap, os, signal, sys
        fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(fd, 64 << 20)
        m = mmap.mmap(fd, 0)
        m[: 2 << 20] = bytes(2 << 20)
        print("ready", flush=True)
        signal.pause()
        """
    path = Path("/dev/shm") / f"hangtrace-test-{os.getpid()}"
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no shared memory file system")
    try:
        with program(source, str(path)) as child:
            mapped = maps.collect(reader, [child.pid], deadline_s=10)
            found = {file.path: file for file in maps.shared_files(reader, mapped, deadline_s=10)}
    finally:
        path.unlink(missing_ok=True)
    assert found[str(path)].kind == "shmem"
    assert found[str(path)].size == 64 << 20
    resident = found[str(path)].resident
    assert resident is not None
    assert 2 << 20 <= resident < 64 << 20


def test_a_deleted_segment(reader: GuardedReader) -> None:
    source = """
        import mmap, os, signal
        fd = os.memfd_create("weights")
        os.ftruncate(fd, 64 << 20)
        m = mmap.mmap(fd, 0)
        m[: 2 << 20] = bytes(2 << 20)
        print("ready", flush=True)
        signal.pause()
        """
    with program(source) as child:
        mapped = maps.collect(reader, [child.pid], deadline_s=10)
        found = {file.path: file for file in maps.shared_files(reader, mapped, deadline_s=10)}
    file = found["/memfd:weights (deleted)"]
    assert file.kind == "shmem"
    if os.geteuid() == 0:  # others may not follow /proc/PID/map_files
        assert file.size == 64 << 20
        assert file.resident is not None
        assert 2 << 20 <= file.resident < 64 << 20


def test_sleep_that_could_not_be_asked_for_in_time_is_no_fault_of_the_kernel(reader: GuardedReader) -> None:
    with program("import signal; print('ready', flush=True); signal.pause()") as child:
        blocked(child.pid, lambda sample: sample.state == "S")
        state = HelperState(proc_root="/proc")
        task = stacks.asleep_task(state, [0, child.pid], ({child.pid: [(child.pid, 0)]}, 0.0), lambda _: None)
        assert dict(task) == {0: False, child.pid: {}}
