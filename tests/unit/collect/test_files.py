"""Descriptors that matter and who holds the other ends, on real pipes, sockets and files."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pyhangtrace.collect import descriptors, file_locks, files, lock_files, named_places, same_file, sockets
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.procfs import read_table
from pyhangtrace.collect.tasks import TASKS
from pyhangtrace.model import syscalls
from pyhangtrace.model.kinds import FdKind
from pyhangtrace.model.open_files import FdFacts, Holder, LockRequest
from pyhangtrace.model.threads import NamedValue, ThreadSample
from tests.unit.collect.helpers import blocked, program, stat_line, write


@pytest.fixture
def reader() -> Iterator[GuardedReader]:
    with GuardedReader(TASKS) as made:
        yield made


def look(
    reader: GuardedReader, *samples: ThreadSample, members: tuple[int, ...] = ()
) -> dict[tuple[int, int], FdFacts]:
    found = files.collect(
        reader, samples, tuple(sample.pid for sample in samples), deadline_s=10, search_s=20
    )
    return {(fd.pid, fd.fd): fd for fd in files.facts(found)}


def waiting(pid: int, call: str, *fds: int) -> ThreadSample:
    sample = blocked(pid, lambda seen: syscalls.name(seen.syscall, os.uname().machine) == call)
    return replace(sample, io_fds=fds)


def test_a_pipe_and_its_writers(reader: GuardedReader) -> None:
    mine, theirs = os.pipe()
    try:
        with program("print('ready', flush=True); import sys; sys.stdin.read()") as child:
            facts = look(reader, waiting(child.pid, "read", 0))[(child.pid, 0)]
            assert child.stdin is not None
            writer = Holder(pid=os.getpid(), fd=child.stdin.fileno(), mode="w")
    finally:
        os.close(mine)
        os.close(theirs)
    assert facts.kind is FdKind.PIPE
    assert facts.mode == "r"
    assert facts.others == (writer,)
    assert f"pipe:[{facts.inode}]" == facts.target


def test_who_may_not_be_looked_into_may_hold_the_other_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid, link in ((1, "pipe:[5]"), (70, "pipe:[5]"), (71, "/c/lock")):
        write(tmp_path, {f"{pid}/fdinfo/0": "flags:\t0100000\n"})
        folder = tmp_path / str(pid) / "fd"
        folder.mkdir()
        (folder / "0").symlink_to(link)
    readlink = os.readlink

    def search(*refused: int) -> descriptors.Openers:
        def guarded(path: str) -> str:
            # A folder of descriptors can be listed where the links in it cannot be followed.
            if any(path.startswith(f"{tmp_path}/{pid}/") for pid in refused):
                raise PermissionError(13, "denied", path)
            return readlink(path)

        monkeypatch.setattr(os, "readlink", guarded)
        return descriptors.find_openers({"pipe:[5]", "/c/lock"}, [], budget_s=30, proc_root=str(tmp_path))

    assert search().complete
    assert [holder.pid for holder in search().of("pipe:[5]")] == [1, 70]
    assert search(70).partial == {"pipe:[5]", "/c/lock"}
    assert search(70).closed == {70}
    # Init may hold what its children inherit, but no lock of a job; the same goes for what is outside a container.
    assert search(1).partial == {"pipe:[5]"}
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self" / "ns" / "pid").symlink_to("pid:[4026532000]")
    assert search().partial == {"pipe:[5]"}
    assert search().closed == {0}


def test_a_pipe_whose_only_writer_is_the_reader_itself(reader: GuardedReader) -> None:
    source = "import os; r, w = os.pipe(); print('ready', flush=True); os.read(r, 1)"
    with program(source) as child:
        number = blocked(child.pid, lambda seen: seen.syscall == 0 or seen.syscall == 63).args[0]
        facts = look(reader, waiting(child.pid, "read", number))[(child.pid, number)]
        assert [(holder.pid, holder.mode) for holder in facts.others] == [(child.pid, "w")]


def test_unix_peers(reader: GuardedReader) -> None:
    source = """
        import os, socket
        a, b = socket.socketpair()
        if os.fork() == 0:
            a.close()
            b.recv(1)
            os._exit(0)
        b.close()
        print("ready", flush=True)
        a.recv(1)
        """
    with program(source) as child:
        sample = blocked(
            child.pid, lambda seen: syscalls.name(seen.syscall, os.uname().machine) == "recvfrom"
        )
        facts = look(reader, replace(sample, io_fds=(sample.args[0],)))[(child.pid, sample.args[0])]
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        assert facts.socket is not None
        assert facts.socket.family == "unix"
        assert facts.socket.state == "ESTABLISHED"
        assert [str(holder.pid) for holder in facts.peers] == children


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_tcp_peers(reader: GuardedReader, family: socket.AddressFamily) -> None:
    # A dual-stack listener with an IPv4 client: the two ends stand in different tables.
    try:
        listener = socket.create_server(("", 0), family=family, dualstack_ipv6=family == socket.AF_INET6)
    except (OSError, ValueError) as error:
        pytest.skip(f"no such socket here: {error}")
    source = """
        import socket, sys
        connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        print("ready", flush=True)
        connection.recv(1)
        """
    with listener, program(source, str(listener.getsockname()[1])) as child:
        accepted, _ = listener.accept()
        with accepted:
            accepted_fd = accepted.fileno()
            sample = blocked(
                child.pid, lambda seen: syscalls.name(seen.syscall, os.uname().machine) == "recvfrom"
            )
            facts = look(reader, replace(sample, io_fds=(sample.args[0],)))[(child.pid, sample.args[0])]
    assert facts.socket is not None
    assert facts.socket.family == "tcp"
    assert facts.socket.state == "ESTABLISHED"
    assert facts.socket.rx_queue == 0
    assert [(holder.pid, holder.fd) for holder in facts.peers] == [(os.getpid(), accepted_fd)]


def test_an_epoll_set_is_followed(reader: GuardedReader) -> None:
    source = """
        import os, select
        r, w = os.pipe()
        poll = select.epoll()
        poll.register(r)
        print("ready", flush=True)
        poll.poll()
        """
    with program(source) as child:
        sample = blocked(
            child.pid,
            lambda seen: (syscalls.name(seen.syscall, os.uname().machine) or "").startswith("epoll"),
        )
        found = look(reader, replace(sample, io_fds=(sample.args[0],)))
    epoll = found[(child.pid, sample.args[0])]
    assert epoll.kind is FdKind.EPOLL
    (watched,) = epoll.watches
    assert found[(child.pid, watched)].kind is FdKind.PIPE


def test_file_locks_with_holder_and_waiter(reader: GuardedReader, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = """
        import fcntl, signal, sys
        f = open(sys.argv[1], "w")
        fcntl.flock(f, fcntl.LOCK_EX)
        print("ready", flush=True)
        signal.pause()
        """
    waiter = "import fcntl, sys; f = open(sys.argv[1], 'w'); print('ready', flush=True); fcntl.flock(f, 2)"
    with program(holder, str(path)) as held, program(waiter, str(path)) as waits:
        sample = blocked(waits.pid, lambda seen: syscalls.name(seen.syscall, os.uname().machine) == "flock")
        locks = file_locks.concerning(file_locks.read() or [], (waits.pid,), ())
        known = file_locks.paths(locks)
        found = files.collect(
            reader,
            [replace(sample, io_fds=(sample.args[0],))],
            (waits.pid,),
            paths=set(known.values()),
            deadline_s=10,
            search_s=20,
        )
        (lock,) = file_locks.complete(locks, known, found.openers)
        facts = {fd.fd: fd for fd in files.facts(found)}[sample.args[0]]
    assert (lock.kind, lock.access, lock.pid, lock.waiters) == ("flock", "write", held.pid, (waits.pid,))
    assert lock.path == str(path)
    assert lock.inode == facts.inode
    assert lock.openers == tuple(sorted((held.pid, waits.pid)))
    assert [holder.pid for holder in lock.holders] == [held.pid]
    assert facts.kind is FdKind.FILE


def test_the_lock_of_a_dead_taker_is_found_at_its_heir(reader: GuardedReader, tmp_path: Path) -> None:
    source = """
        import fcntl, os, signal, sys
        f = open(sys.argv[1], "w")
        if os.fork() == 0:
            fcntl.flock(f, 2)
            os._exit(0)
        os.wait()
        print("ready", flush=True)
        signal.pause()
        """
    path = tmp_path / "lock"
    with program(source, str(path)) as heir:
        inode = path.stat().st_ino
        locks = file_locks.concerning(file_locks.read() or [], (), (inode,))
        openers = descriptors.find_openers({str(path)}, (heir.pid,), budget_s=10)
        (lock,) = file_locks.complete(locks, {(locks[0].device, inode): str(path)}, openers)
    assert lock.pid not in (heir.pid, os.getpid())
    assert [holder.pid for holder in lock.holders] == [heir.pid]


def test_who_opened_a_shared_file_apart_carries_a_lock_of_its_own(tmp_path: Path) -> None:
    source = """
        import fcntl, signal, sys
        f = open(sys.argv[1], "a")
        fcntl.flock(f, fcntl.LOCK_SH)
        print("ready", flush=True)
        signal.pause()
        """
    path = tmp_path / "lock"
    with program(source, str(path)) as one, program(source, str(path)) as two:
        inode = path.stat().st_ino
        locks = file_locks.concerning(file_locks.read() or [], (), (inode,))
        openers = descriptors.find_openers({str(path)}, (one.pid, two.pid), budget_s=10)
        done = file_locks.complete(locks, {(locks[0].device, inode): str(path)}, openers)
    assert {(lock.access, lock.pid, tuple(holder.pid for holder in lock.holders)) for lock in done} == {
        ("read", pid, (pid,)) for pid in (one.pid, two.pid)
    }


TABLE = """\
1: POSIX  ADVISORY  WRITE 3568 fd:00:2531452 0 EOF
1: -> POSIX  ADVISORY  WRITE 4000 fd:00:2531452 0 EOF
1:  -> POSIX  ADVISORY  READ 4001 fd:00:2531452 0 9
2: FLOCK  ADVISORY  WRITE 3517 08:02:2531448 0 EOF
3: OFDLCK ADVISORY  WRITE -1 08:01:1234 0 EOF
4: LEASE  ACTIVE    READ 77 08:01:99 0 EOF
5: garbage
"""


@pytest.mark.parametrize(
    ("kind", "whence", "start", "length", "position", "expected"),
    [
        (1, os.SEEK_SET, 10, 5, 0, ("write", 10, 14)),
        (0, os.SEEK_SET, 0, 0, 0, ("read", 0, None)),
        (1, os.SEEK_CUR, 2, 4, 100, ("write", 102, 105)),
        (1, os.SEEK_SET, 10, -5, 0, ("write", 5, 9)),
        (1, os.SEEK_END, 0, 1, 0, None),  # how long the file was is not known
        (2, os.SEEK_SET, 0, 0, 0, None),
        (1, os.SEEK_SET, -1, 1, 0, None),
    ],
)
def test_the_bytes_that_an_fcntl_asks_for(
    tmp_path: Path,
    kind: int,
    whence: int,
    start: int,
    length: int,
    position: int,
    expected: tuple[str, int, int | None] | None,
) -> None:
    write(tmp_path, {"100/fdinfo/7": f"pos:\t{position}\nflags:\t02\n"})
    asked = struct.pack("=hh4xqqi4x", kind, whence, start, length, 0)
    for call, pid in ((7, 100), (38, -1)):
        sample = ThreadSample(pid=100, tid=100, comm="x", args=(7, call, 0x1000, 0, 0, 0))
        found = named_places.lock_request(sample, "fcntl", {(0x1000, 32): asked}, str(tmp_path))
        if expected is None:
            assert found is None
        else:
            access, first, last = expected
            assert found == LockRequest(access=access, start=first, end=last, pid=pid)
    assert named_places.lock_request(sample, "fcntl", {}, str(tmp_path)) is None


def test_holders_of_one_open_file_are_told_from_those_of_their_own(
    reader: GuardedReader, tmp_path: Path
) -> None:
    source = """
        import fcntl, os, signal, struct, sys
        f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
        fcntl.fcntl(f, 38, struct.pack("=hhxxxxqqixxxx", fcntl.F_RDLCK, 0, 0, 0, 0))
        again = os.dup(f)
        print("ready", flush=True)
        signal.pause()
        """
    path = tmp_path / "lock"
    with program(source, str(path)) as one, program(source, str(path)) as two:
        inode = path.stat().st_ino
        locks = [lock for lock in file_locks.read() or [] if lock.inode == inode]
        openers = descriptors.find_openers([str(path)], (one.pid, two.pid), budget_s=10)
        known = {(locks[0].device, inode): str(path)}
        carriers = [
            holder for lock in file_locks.complete(locks[:1], known, openers) for holder in lock.holders
        ]
        if same_file.apart(reader, carriers, deadline_s=10) is None:
            pytest.skip("this kernel has no kcmp")
        done = file_locks.complete(
            locks, known, openers, apart=lambda each: same_file.apart(reader, each, deadline_s=10)
        )
    assert len(done) == 2
    assert sorted([holder.pid for holder in lock.holders] for lock in done) == sorted(
        [[one.pid] * 2, [two.pid] * 2]
    )
    # Without that, nobody is said to have which of them.
    assert [lock.holders for lock in file_locks.complete(locks, known, openers)] == [(), ()]


def test_table_of_locks(tmp_path: Path) -> None:
    write(tmp_path, {"locks": TABLE})
    locks = file_locks.read(str(tmp_path))
    assert locks is not None
    assert [(lock.kind, lock.access, lock.pid, lock.waiters) for lock in locks] == [
        ("posix", "write", 3568, (4000, 4001)),
        ("flock", "write", 3517, ()),
        ("ofd", "write", -1, ()),
        ("lease", "read", 77, ()),
    ]
    assert locks[0].device == os.makedev(0xFD, 0)
    assert [lock.pid for lock in file_locks.concerning(locks, (4001,), (1234,))] == [3568, -1]
    assert file_locks.read(str(tmp_path / "nothing")) is None


def test_a_polled_lock_file(reader: GuardedReader, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("4194305\n")
    os.utime(path, (1, 1))
    sample = ThreadSample(
        pid=os.getpid(),
        tid=os.getpid(),
        comm="x",
        named_values=(
            NamedValue(function="FileBaton.wait", name="lock_file_path", value=str(path)),
            NamedValue(function="FileBaton.wait", name="wait_seconds", value=3),
            NamedValue(function="Other.wait", name="lock_file_path", value="/etc/passwd"),
        ),
    )
    wanted = lock_files.paths(
        [sample, replace(sample, pid=os.getppid(), named_values=sample.named_values[2:])]
    )
    assert wanted == {os.getpid(): {str(path)}}
    polled, trouble = lock_files.collect(reader, wanted, deadline_s=10)
    openers = descriptors.find_openers({str(path)}, (), budget_s=10)
    table = read_table()
    (file,) = lock_files.complete(polled, openers, (os.getpid(),), table, 1e6)
    assert trouble == []
    assert (file.exists, file.openers, file.owner_pid, file.owner_alive) == (True, (), 4194305, False)
    assert file.older_than_job is True
    assert file.age_s is not None
    assert file.age_s > 1e8
    # In a chroot the file system it lies on may not be among those listed.
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    assert file.fs_type or "/" not in mounts
    path.unlink()
    polled, _ = lock_files.collect(reader, wanted, deadline_s=10)
    assert polled[0].exists is False


def test_holders_beyond_the_time_are_not_complete(tmp_path: Path) -> None:
    write(tmp_path, {"5/stat": stat_line(5)})
    (tmp_path / "5/fd").mkdir()
    (tmp_path / "5/fd/3").symlink_to("pipe:[77]")
    write(tmp_path, {"5/fdinfo/3": "pos:\t0\nflags:\t0100001\nmnt_id:\t14\nino:\t77\n"})
    found = descriptors.find_openers({"pipe:[77]"}, (), budget_s=-1.0, proc_root=str(tmp_path))
    assert not found.complete
    found = descriptors.find_openers({"pipe:[77]"}, (5,), budget_s=-1.0, proc_root=str(tmp_path))
    assert found.of("pipe:[77]") == (Holder(pid=5, fd=3, mode="w"),)


def test_fdinfo() -> None:
    info = descriptors.parse_fdinfo(
        "pos:\t0\nflags:\t02104002\nmnt_id:\t30\nino:\t9\nlock:\t1: FLOCK  ADVISORY  WRITE 5 08:01:9 0 EOF\n"
        "tfd:        8 events:       19 data:                8  pos:0 ino:61 sdev:5\n"
        "tfd:        9 events:        4 data:                9  pos:0 ino:62 sdev:5\n"
    )
    assert (info.mode, info.nonblocking, info.mount, info.watches) == ("rw", True, 30, (8, 9))
    assert info.watches_room == (9,)
    assert set(info.watches_room) <= set(info.watches_out)
    assert file_locks.carried(info)[0][1] == 9
    assert descriptors.parse_fdinfo("flags:\nmnt_id:\tx\ntfd:\n") == descriptors.FdInfo()


@pytest.mark.parametrize(
    ("link", "kind"),
    [
        ("pipe:[5]", FdKind.PIPE),
        ("socket:[5]", FdKind.SOCKET),
        ("anon_inode:[eventpoll]", FdKind.EPOLL),
        ("anon_inode:inotify", FdKind.INOTIFY),
        ("anon_inode:[perf_event]", FdKind.OTHER),
        ("/memfd:x (deleted)", FdKind.MEMFD),
        ("/dev/pts/3", FdKind.TTY),
        ("/tmp/file", None),
    ],
)
def test_kinds(link: str, kind: FdKind | None) -> None:
    assert descriptors.kind_of(link) is kind


def test_addresses() -> None:
    text = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000005 00:00000000 00000000     0        0 111 1 x\n"
        "   1: short\n"
    )
    ((inode, listener),) = sockets.parse_inet(text, "tcp")
    assert (inode, listener.local, listener.state, listener.rx_queue) == (111, "127.0.0.1:8080", "LISTEN", 5)
    text6 = (
        "header\n   0: 00000000000000000000000001000000:0050 0000000000000000FFFF00000100007F:0051"
        " 01 00000001:00000000 00:00000000 00000000 0 0 7 1 x\n"
    )
    ((_, six),) = sockets.parse_inet(text6, "tcp6")
    assert (six.local, six.remote, six.tx_queue) == ("[::1]:80", "127.0.0.1:81", 1)


def test_a_diagnostics_error_is_an_error() -> None:
    import struct

    refused = struct.pack("=IHHIIi", 20, 2, 0, 0, 0, -1)
    with pytest.raises(PermissionError):
        sockets.parse_unix(refused, [])
    assert sockets.parse_unix(struct.pack("=IHHII", 16, 3, 0, 0, 0), []) is False
