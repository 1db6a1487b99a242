"""Parsers of what the kernel prints: names may hold anything, lines may be cut, and nothing of it may raise."""

from __future__ import annotations

import ipaddress
import os
import struct
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyhangtrace import _native
from pyhangtrace.collect import descriptors, file_locks, ipc, kernel, maps, mounts, procfs, sockets, threads
from pyhangtrace.collect.processes import describe
from pyhangtrace.discover import recognise
from pyhangtrace.model.host import OomKill
from pyhangtrace.model.process_table import ProcessTable, parse_stat
from tests.fuzz import texts
from tests.fuzz.budget import budget

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def decoded(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def stat_line(pid: int, comm: bytes, state: str, ppid: int, start: int) -> bytes:
    rest = f"{state} {ppid} {pid} {pid} 0 -1 0 1 0 2 0 5 6 0 0 20 0 3 0 {start} " + "0 " * 29 + "0\n"
    return b"%d (%b) " % (pid, comm) + rest.encode()


@budget(2000)
@given(texts.comms, st.sampled_from("RSDTtZX"), st.integers(0, 1 << 22), texts.numbers)
def test_stat_comes_back_whatever_the_name(comm: bytes, state: str, ppid: int, start: int) -> None:
    row = parse_stat(decoded(stat_line(77, comm, state, ppid, start)))
    assert row is not None
    assert (row.pid, row.state, row.ppid, row.start_ticks) == (77, state, ppid, start)
    assert row.comm.encode(errors="surrogateescape") == comm
    assert (row.minor_faults, row.major_faults, row.threads) == (1, 2, 3)


@budget(2000)
@given(texts.garbage)
def test_single_values_survive_garbage(raw: bytes) -> None:
    text = decoded(raw)
    parse_stat(text)
    threads.parse_syscall(text)
    threads.parse_schedstat(text)
    descriptors.parse_fdinfo(text)
    descriptors.kind_of(text)
    descriptors.named_inode(text)
    procfs.kilobytes(text)
    msgspec.json.encode([procfs.printable(text), *map(procfs.printable, procfs.split_arguments(raw))])


@budget(400)
@given(texts.comms, texts.names, texts.names, st.integers(1, 1 << 30))
def test_a_process_is_described_by_its_own_fields(comm: bytes, group: bytes, title: bytes, rss: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "77"
        folder.mkdir()
        (folder / "stat").write_bytes(stat_line(77, comm, "S", 1, 5))
        # The kernel escapes newlines and backslashes in the name here, and nothing else.
        (folder / "status").write_bytes(
            b"Name:\t%b\nUid:\t1000\t1000\t1000\t1000\n" % comm.replace(b"\\", b"\\\\")
            + b"VmRSS:\t%d kB\n" % rss
        )
        (folder / "cgroup").write_bytes(b"0::/%b\n" % group)
        (Path(root) / "uptime").write_text("12.5 3.0\n")
        row = procfs.read_stat(77, root)
        assert row is not None
        arguments = procfs.split_arguments(title)
        facts = describe([77], ProcessTable.of([row]), {77: arguments}, proc_root=root)[77]
    assert (facts.uid, facts.memory.rss, facts.tracer_pid) == (1000, rss * 1024, None)
    assert facts.memory.anon is None
    msgspec.json.encode(facts)


LOCKS = st.lists(
    st.tuples(
        st.booleans(),
        st.sampled_from([("FLOCK", "flock"), ("POSIX", "posix"), ("OFDLCK", "ofd"), ("LEASE", "lease")]),
        st.sampled_from(["READ", "WRITE"]),
        st.integers(-1, 1 << 22),
        st.integers(0, 0xFFF),
        st.integers(0, 0xFFFFF),
        texts.numbers,
    ),
    max_size=8,
)


@budget(1000)
@given(LOCKS)
def test_the_lock_table_comes_back(rows: list[tuple[bool, tuple[str, str], str, int, int, int, int]]) -> None:
    lines = []
    held = 0
    for waits, (word, _), access, pid, major, minor, inode in rows:
        waits = waits and held > 0
        held += not waits
        arrow = "-> " if waits else ""
        lines.append(f"{held}: {arrow}{word}  ADVISORY  {access} {pid} {major:02x}:{minor:02x}:{inode} 0 EOF")
    found = file_locks.parse("\n".join(lines))
    assert [(one.lock.kind, one.lock.pid, one.lock.inode) for one in found] == [
        (kind, pid, inode) for _, (_, kind), _, pid, _, _, inode in rows
    ]
    assert [one.lock.device for one in found] == [os.makedev(row[4], row[5]) for row in rows]
    locks = file_locks.held(found)
    assert len(locks) == held
    assert {pid for one in found if one.blocked for pid in [one.lock.pid]} == {
        pid for lock in locks for pid in lock.waiters
    }


@budget(1000)
@given(texts.garbage)
def test_tables_survive_garbage(raw: bytes) -> None:
    text = decoded(raw)
    file_locks.held(file_locks.parse(text))
    file_locks.carried(descriptors.parse_fdinfo("lock:\t" + text))
    for family in ("tcp", "tcp6"):
        msgspec.json.encode([str(found) for found in sockets.parse_inet("head\n" + text, family)])
    mounts.parse_mounts(text)
    descriptors.parse_fdinfo(text)
    list(ipc.parse_queues("head\n" + text, 1))
    list(ipc.parse_keys("head\n" + text))
    maps.parse(raw)
    kills: list[OomKill] = []
    xids: list[str] = []
    kernel.note(raw, 10.0, None, kills, xids)
    msgspec.json.encode([kills, xids])


@budget(1000)
@given(
    st.ip_addresses(),
    st.integers(0, 65535),
    st.integers(0, 0xFFFFFFFF),
    st.integers(0, 0xFFFFFFFF),
    texts.numbers,
)
def test_addresses_come_back(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int, transmit: int, receive: int, inode: int
) -> None:
    words = [address.packed[at : at + 4] for at in range(0, len(address.packed), 4)]
    host = "".join((word[::-1] if sys.byteorder == "little" else word).hex().upper() for word in words)
    zero = "0" * len(host)
    line = f"   0: {host}:{port:04X} {zero}:0000 01 {transmit:08X}:{receive:08X} 00:00000000 00000000 0 0 {inode} 1"
    ((found, facts),) = sockets.parse_inet("head\n" + line, "tcp")
    mapped = getattr(address, "ipv4_mapped", None)
    shown = str(mapped or address) if address.version == 4 or mapped else f"[{address}]"
    assert (found, facts.local, facts.state) == (inode, f"{shown}:{port}", "ESTABLISHED")
    assert (facts.tx_queue, facts.rx_queue) == (transmit, receive)


@budget(2000)
@given(st.data())
def test_socket_diagnostics_survive_cuts_and_changes(data: st.DataObject) -> None:
    peer, name = data.draw(st.integers(0, 0xFFFFFFFF)), data.draw(texts.names)
    attributes = struct.pack("=HHI", 8, 2, peer) + struct.pack("=HH", 4 + len(name), 0) + name
    attributes += bytes(-len(attributes) % 4)
    body = struct.pack("=BBBBIII", 1, 1, 1, 0, 4242, 0, 0) + attributes
    message = struct.pack("=IHHII", 16 + len(body), 20, 2, 1, 0) + body
    whole: list[tuple[int, object]] = []
    assert sockets.parse_unix(message, whole)  # type: ignore[arg-type]
    ((inode, facts),) = whole
    assert (inode, facts.peer_inode) == (4242, peer or None)  # type: ignore[attr-defined]
    msgspec.json.encode(facts)
    broken = bytearray(message * data.draw(st.integers(1, 3)))
    for _ in range(data.draw(st.integers(0, 8))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(broken[: data.draw(st.integers(0, len(broken)))])
    found: list[tuple[int, object]] = []
    try:
        sockets.parse_unix(cut, found)  # type: ignore[arg-type]
    except OSError:
        pass  # the bytes say that the kernel refuses
    msgspec.json.encode([str(one) for one in found])


MAPPINGS = st.lists(
    st.tuples(st.integers(1, 1 << 12), st.booleans(), st.integers(0, 9), st.integers(1, 5), texts.names),
    max_size=6,
)


@budget(600)
@given(MAPPINGS)
def test_mappings_come_back_whatever_their_files_are_called(
    rows: list[tuple[int, bool, int, int, bytes]],
) -> None:
    lines, start = [], 0x10000
    sizes: dict[tuple[int, int], int] = {}
    for megabytes, shared, minor, inode, name in rows:
        end = start + (megabytes << 20)
        lines.append(
            b"%x-%x r-x%c 00000000 08:%02x %d    /%b"
            % (start, end, b"s" if shared else b"p", minor, inode, name.lstrip())
        )
        key = (os.makedev(8, minor), inode)
        sizes[key] = sizes.get(key, 0) + end - start
        start = end
    content = b"".join(line + b"\n" for line in lines)
    _, files, *_ = maps.parse(content)
    assert {(file.device, file.inode): file.mapped for file in files} == sizes
    msgspec.json.encode([file.path for file in files])
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / "7").mkdir()
        (Path(root) / "7" / "maps").write_bytes(content)
        native = _native.maps(7, root)
    assert [(one[1] - one[0], one[6]) for one in native] == [(row[0] << 20, row[3]) for row in rows]


@budget(600)
@given(texts.garbage, texts.garbage, texts.garbage)
def test_the_extension_survives_garbage(first: bytes, second: bytes, third: bytes) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "7"
        (folder / "task" / "7").mkdir(parents=True)
        (folder / "task" / "7" / "schedstat").write_bytes(first)
        for name, content in (
            ("maps", second),
            ("status", third),
            ("smaps", first),
            ("smaps_rollup", second),
        ):
            (folder / name).write_bytes(content)
        msgspec.json.encode([list(one) for one in _native.thread_counters([7], root)])
        for read in (_native.maps, _native.map_records, _native.status, _native.smaps, _native.smaps_rollup):
            try:
                read(7, root)
            except OSError:
                pass  # nothing in it makes sense, which it says


@budget(2000)
@given(texts.comms, st.lists(texts.names, max_size=5))
def test_command_lines_are_only_recognised(comm: bytes, words: list[bytes]) -> None:
    arguments = tuple(map(decoded, words))
    name = procfs.printable(decoded(comm))
    recognise.programs(name, arguments)
    recognise.launcher(name, arguments)
    recognise.boundary(name, arguments)
    recognise.compiler(name, arguments)
    recognise.title(arguments)
    recognise.script_of(arguments)
    recognise.module_of(arguments)
    recognise.multiprocessing_helper(arguments)
    for word in arguments:
        recognise.coordinates(word)
