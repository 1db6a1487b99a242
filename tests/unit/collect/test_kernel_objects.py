"""What the kernel says of objects that threads wait for: its text and its numbers, with a little of a file system."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from pyhangtrace.collect import (
    cgroups,
    descriptors,
    file_locks,
    ipc,
    mapped_places,
    maps,
    mounts,
    named_places,
    sockets,
)
from pyhangtrace.model.open_files import SocketFacts
from pyhangtrace.model.threads import ThreadSample
from tests.unit.collect.helpers import write

OPENAT, CONNECT, SEMOP = 257, 42, 65


def sample(call: int, *args: int, wchan: str | None = None) -> ThreadSample:
    return ThreadSample(
        pid=7, tid=7, comm="x", syscall=call, args=(*args, *[0] * (6 - len(args))), wchan=wchan
    )


def memory_of(one: ThreadSample, call: str, content: bytes) -> dict[tuple[int, int], bytes]:
    """As if the content lay where the first piece does."""
    address, _ = named_places.pieces(one.args, call)[0]
    whole = content.ljust(1 << 14, b"\xff")
    return {(at, size): whole[at - address :][:size] for at, size in named_places.pieces(one.args, call)}


@pytest.mark.parametrize(
    ("folder", "content", "path"),
    [
        (-100, b"/run/lock\0", "/run/lock"),
        (-100, b"lock\0", "/data/lock"),
        (5, b"../lock\0", "/data/lock"),
        (9, b"lock\0", "lock"),  # a folder that is closed by now
        (-100, b"\0", None),
        (-100, b"", None),  # no end within what could be read
    ],
)
def test_path_of_an_open(tmp_path: Path, folder: int, content: bytes, path: str | None) -> None:
    (tmp_path / "7" / "fd").mkdir(parents=True)
    (tmp_path / "7" / "cwd").symlink_to("/data")
    (tmp_path / "7" / "fd" / "5").symlink_to("/data/sub")
    one = sample(OPENAT, folder & (1 << 64) - 1, 0x7FFE)  # the string crosses a page
    assert named_places.path(one, "openat", memory_of(one, "openat", content), str(tmp_path)) == path


@pytest.mark.parametrize(
    ("raw", "address"),
    [
        (struct.pack("=H", 1) + b"/run/x.sock\0", "/run/x.sock"),
        (struct.pack("=H", 1) + b"\0name", "@name"),
        (struct.pack("=H2s4s8x", 2, b"\x00\x50", b"\x7f\0\0\1"), "127.0.0.1:80"),
        (struct.pack("=H2s4x16s4x", 10, b"\x1f\x90", b"\0" * 15 + b"\1"), "[::1]:8080"),
        (struct.pack("=H6x", 40), None),
        (b"\1", None),
    ],
)
def test_address_of_a_connect(raw: bytes, address: str | None) -> None:
    one = sample(CONNECT, 3, 0x1000, len(raw))
    assert named_places.path(one, "connect", memory_of(one, "connect", raw)) == address


def test_file_system_of_a_path_that_a_thread_sleeps_on(tmp_path: Path) -> None:
    line = "{} 1 0:{} / {} rw - {} {} rw\n"
    mounts = [
        (20, 5, "/", "ext4", "/dev/vda"),
        (21, 6, "/data", "nfs4", "nas:/data"),
        (22, 7, "/data/x", "tmpfs", "none"),
    ]
    write(tmp_path, {"7/mountinfo": "".join(line.format(*each) for each in mounts) + "damaged - \n"})

    def words(path: str, state: str = "D", wchan: str | None = None) -> str | None:
        one = ThreadSample(pid=7, tid=7, comm="x", state=state, wchan=wchan)
        words, _ = named_places.mount_words(one, path, str(tmp_path))
        return words

    assert words("/data/file") == "nfs4 mounted at /data from nas:/data"
    assert words("/data/x/file") == "tmpfs mounted at /data/x"
    assert words("/database") == "ext4 mounted at / from /dev/vda"
    assert words("/data", "S", "request_wait_answer") is not None
    assert words("/data", "S", "hrtimer_nanosleep") is None
    assert words("127.0.0.1:80") is None


def test_mapped_files_that_a_server_has_to_provide() -> None:
    table = mounts.parse_mounts(
        "20 1 8:1 / / rw - ext4 /dev/vda rw\n21 20 0:39 / /m rw - fuse.sshfs host:/m rw\n"
    )
    maps_text = (
        b"7f0000000000-7f0000001000 r--s 00000000 00:27 2    /m/one two\n"
        b"7f0000001000-7f0000002000 r--s 00001000 00:27 2    /m/one two\n"
        b"7f0000002000-7f0000003000 r-xp 00000000 08:01 9    /usr/lib/x.so\n"
        b"7f0000003000-7f0000004000 rw-p 00000000 00:00 0\n"
        b"damaged 00:27 \n"
    )
    found = mapped_places.served(table, maps_text)
    assert found == [("/m/one two", "fuse.sshfs mounted at /m from host:/m", 39)]
    assert mapped_places.served(table[:1], maps_text) == []


def test_operations_of_a_semop() -> None:
    one = sample(SEMOP, 4, 0x1000, 2)
    raw = struct.pack("=HhhHhh", 1, -1, 0, 3, 2, 0x1000)
    assert named_places.semaphores(one.args, "semop", memory_of(one, "semop", raw)) == ((1, -1), (3, 2))
    assert named_places.semaphores(one.args, "semop", {}) == ()


def test_numbers_of_fdinfo() -> None:
    info = descriptors.parse_fdinfo(
        "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t9\neventfd-count:               1f\neventfd-id: 12\n"
        "it_value: (3, 500000000)\nit_interval: (x, 0)\nsigmask:\t0000000000004200\nPid:\t-1\nSqTail: many\n"
    )
    assert dict(info.numbers) == {
        "ino": 9,
        "eventfd-count": 31,
        "eventfd-id": 12,
        "it_value_ns": 3_500_000_000,
        "sigmask": 0x4200,
        "Pid": -1,
    }
    assert descriptors.link_of_one(descriptors.EVENTFD, info.numbers) == f"{descriptors.EVENTFD}#12"
    assert descriptors.link_of_one("pipe:[5]", info.numbers) == "pipe:[5]"


def test_event_counters_are_searched_for_among_the_given_processes_only(tmp_path: Path) -> None:
    for pid, identity in ((10, 3), (11, 4), (12, 3)):
        write(tmp_path, {f"{pid}/fdinfo/5": f"flags:\t02\neventfd-id: {identity}\n"})
        folder = tmp_path / str(pid) / "fd"
        folder.mkdir()
        (folder / "5").symlink_to(descriptors.EVENTFD)
    found = descriptors.find_openers({descriptors.EVENTFD}, [10, 11], budget_s=30, proc_root=str(tmp_path))
    assert [one.pid for one in found.of(f"{descriptors.EVENTFD}#3")] == [10]
    assert [one.pid for one in found.of(f"{descriptors.EVENTFD}#4")] == [11]


def test_queues_and_semaphores_of_system_v() -> None:
    text = (
        "       key      msqid perms      cbytes       qnum lspid lrpid   uid\n"
        "        -1         32768   600         128          2    71    70     0\n"
        "damaged\n"
    )
    (queue,) = ipc.parse_queues(text, 5)
    assert (queue.id, queue.key, queue.queued, queue.messages) == (32768, 0xFFFFFFFF, 128, 2)
    assert (queue.last_sender, queue.last_receiver, queue.pid) == (71, 70, 5)
    assert list(ipc.parse_keys("key semid\n 17 3 600 2\nx y\n")) == [(3, 17)]


def test_only_semaphores_that_are_to_fall_hold_up_a_semop() -> None:
    one = ThreadSample(
        pid=7, tid=7, comm="x", syscall=SEMOP, args=(4, 0, 0, 0, 0, 0), semaphores=((0, 1), (1, -1), (2, 0))
    )
    assert ipc.wanted_by([one, one], "x86_64") == {7: [("sem", 4, 1), ("sem", 4, 2)]}


def test_who_asks_for_a_lease_is_queued_without_a_file() -> None:
    text = "1: LEASE  BREAKING  UNLCK 31600 fe:00:2148527 0 EOF\n1: -> LEASE  BREAKER   WRITE 31599 <none>:0 0 EOF\n"
    (lock,) = file_locks.held(file_locks.parse(text))
    assert (lock.kind, lock.pid, lock.inode, lock.waiters) == ("lease", 31600, 2148527, (31599,))


def test_a_lock_that_was_inherited_with_its_open_file(tmp_path: Path) -> None:
    """Taken by 31600; 31601 has the same open file, 31602 another one of the same file."""
    table = (
        "1: FLOCK  ADVISORY  WRITE 31600 fe:00:77 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 31599 fe:00:77 0 EOF\n"
    )
    carries = "pos:\t0\nflags:\t0100002\nlock:\t1: FLOCK  ADVISORY  WRITE 31600 fe:00:77 0 EOF\n"
    for pid, content in ((31601, carries), (31602, "pos:\t0\nflags:\t0100002\n")):
        write(tmp_path, {f"{pid}/fdinfo/3": content, f"{pid}/fd/3": ""})
    locks = file_locks.held(file_locks.parse(table))
    found = {
        pid: file_locks.inherited(locks, [pid], proc_root=str(tmp_path)) for pid in (31600, 31601, 31602)
    }
    # Who took it, or waits for it, is found by its number.
    assert {pid: [lock.inode for lock in each] for pid, each in found.items()} == {
        31600: [],
        31601: [77],
        31602: [],
    }
    assert file_locks.inherited(locks, [31599, 31601], proc_root=str(tmp_path)) == []


def test_groups_of_both_hierarchies(tmp_path: Path) -> None:
    write(tmp_path, {"7/cgroup": "9:name=systemd:/\n6:freezer:/a/b\n1:cpu,cpuacct:/c\n0::/u\n"})
    assert cgroups.paths(7, str(tmp_path)) == {
        "name=systemd": "/",
        "freezer": "/a/b",
        "cpu": "/c",
        "cpuacct": "/c",
        "": "/u",
    }


def test_a_group_is_frozen_by_the_one_above(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "freezer/a/freezer.self_freezing": "1\n",
            "freezer/a/b/freezer.self_freezing": "0\n",
            "freezer/a/b/freezer.state": "FROZEN\n",
            "freezer/c/freezer.state": "THAWED\n",
            "u/cgroup.events": "populated 1\nfrozen 1\n",
            "v/cgroup.events": "populated 1\nfrozen 0\n",
        },
    )
    root = str(tmp_path)
    assert cgroups.frozen_by({"freezer": "/a/b", "": "/v"}, root) == f"{root}/freezer/a"
    assert cgroups.frozen_by({"freezer": "/c"}, root) is None
    assert cgroups.frozen_by({"freezer": "/"}, root) is None
    assert cgroups.frozen_by({"": "/u"}, root) == f"{root}/u"
    assert cgroups.frozen_by({"": "/v"}, root) is None
    assert cgroups.frozen_by({}, root) is None
    # Above the root of our own namespace; and what no kernel writes.
    assert cgroups.frozen_by({"freezer": "/../a/b"}, root) is None
    assert cgroups.quota_group({"cpu": "//", "": "a/b"}, root) is None


def test_the_unified_hierarchy_beside_the_first_version(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "freezer/a/freezer.state": "THAWED\n",
            "unified/u/cgroup.freeze": "1\n",
            "unified/u/v/cgroup.freeze": "0\n",
            "unified/u/v/cgroup.events": "populated 1\nfrozen 1\n",
            "unified/w/cgroup.events": "populated 1\nfrozen 0\n",
            "unified/u/cpu.max": "50000 100000\n",
        },
    )
    root = str(tmp_path)
    # It is the group above that has to be thawed.
    assert cgroups.frozen_by({"freezer": "/a", "": "/u/v"}, root) == f"{root}/unified/u"
    assert cgroups.frozen_by({"freezer": "/a", "": "/w"}, root) is None
    assert cgroups.quota_group({"": "/u/v"}, root) == f"{root}/unified/u"


def test_the_nearest_quota_and_what_it_took(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "cpu/a/cpu.cfs_quota_us": "2000\n",
            "cpu/a/cpu.stat": "nr_periods 9\nnr_throttled 8\nthrottled_time 2500000000\n",
            "cpu/a/b/cpu.cfs_quota_us": "-1\n",
            "u/cpu.max": "max 100000\n",
            "u/v/cpu.max": "50000 100000\n",
            "u/v/cpu.stat": "usage_usec 1\nthrottled_usec 1500000\n",
        },
    )
    root = str(tmp_path)
    assert cgroups.quota_group({"cpu": "/a/b"}, root) == f"{root}/cpu/a"
    assert cgroups.quota_group({"": "/u/v"}, root) == f"{root}/u/v"
    assert cgroups.quota_group({"": "/u"}, root) is None
    assert cgroups.throttled_s(f"{root}/cpu/a") == 2.5
    assert cgroups.throttled_s(f"{root}/u/v") == 1.5
    assert cgroups.throttled_s(f"{root}/u") is None


def tcp(state: str, local: str, remote: str, unread: int = 0) -> SocketFacts:
    return SocketFacts(family="tcp", state=state, local=local, remote=remote, rx_queue=unread)


def test_whom_a_connection_is_asked_of() -> None:
    table = [
        (1, tcp("SYN_SENT", "10.0.0.1:999", "10.0.0.1:80")),
        (2, tcp("LISTEN", "0.0.0.0:80", "0.0.0.0:0")),
        (3, tcp("SYN_SENT", "10.0.0.1:998", "10.0.0.9:80")),
        (4, tcp("SYN_SENT", "127.0.0.1:997", "127.0.0.1:81")),
        (5, tcp("LISTEN", "127.0.0.1:81", "0.0.0.0:0")),
        (6, tcp("ESTABLISHED", "10.0.0.1:5", "10.0.0.1:6", unread=3)),
        (7, tcp("ESTABLISHED", "10.0.0.1:6", "10.0.0.1:5", unread=4)),
    ]
    found = sockets.select(table, {1, 3, 4, 6})
    assert {inode: found[inode].peer_inode for inode in (1, 3, 4, 6)} == {1: 2, 3: None, 4: 5, 6: 7}
    assert (found[6].rx_queue, found[6].peer_rx_queue) == (3, 4)
    assert 2 not in found  # a listener is nobody's other end


def test_a_semaphore_has_the_name_that_others_open_it_by(tmp_path: Path) -> None:
    shm = tmp_path / "shm"
    write(shm, {"sem.jobs": "", "sem.other": "", "data": ""})
    inode = os.stat(shm / "sem.jobs").st_ino
    line = "7f0000000000-7f0000001000 rw-s 00000000 00:1b {} {}\n"
    _, files, *_ = maps.parse(
        (
            line.format(inode, "/dev/shm/sem.Xy12 (deleted)") + line.format(4, "/dev/shm/sem.gone (deleted)")
        ).encode()
    )
    assert [file.path for file in maps._with_names(files, str(shm))] == ["/dev/shm/sem.jobs"]
    _, files, *_ = maps.parse(line.format(inode, "/dev/shm/sem.jobs").encode())
    assert maps._with_names(files, str(tmp_path / "nothing")) == []
