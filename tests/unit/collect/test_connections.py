"""Who is connected with whom, by their descriptors and the kernel's tables."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from pyhangtrace.collect.connections import collect, connections_task
from pyhangtrace.collect.guarded import GuardedReader, HelperState
from pyhangtrace.collect.tasks import TASKS

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LINE = "   0: {here} {there} {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0\n"
STORE, CLIENT, ELSEWHERE = "0100007F:7148", "0100007F:C000", "0A00000A:7148"


def process(root: Path, pid: int, namespace: str, inodes: tuple[int, ...], *lines: str) -> None:
    folder = root / str(pid)
    for name in ("fd", "ns", "net"):
        (folder / name).mkdir(parents=True)
    (folder / "ns/net").symlink_to(f"net:[{namespace}]")
    (folder / "net/tcp").write_text(HEADER + "".join(lines))
    for fd, inode in enumerate(inodes):
        (folder / f"fd/{fd}").symlink_to(f"socket:[{inode}]")


def line(here: str, there: str, inode: int, state: str = "01") -> str:
    return LINE.format(here=here, there=there, inode=inode, state=state)


def test_both_ends_and_no_listener(tmp_path: Path) -> None:
    table = (
        line(STORE, CLIENT, 11),
        line(CLIENT, STORE, 12),
        line(STORE, "00000000:0000", 13, "0A"),
        line(CLIENT, ELSEWHERE, 14),
    )
    process(tmp_path, 1, "1", (11, 13), *table)
    process(tmp_path, 2, "1", (12, 14, 99), *table)
    process(tmp_path, 3, "2", (12,), *table)  # another container, where the same numbers mean others
    found = dict(connections_task(HelperState(proc_root=str(tmp_path)), [1, 2, 3], None, lambda pid: None))
    ((local, remote),) = found[1]
    assert found[2] == [(remote, local), (remote, "10.0.0.10:29000")]
    assert (remote, local) not in found[3]


def test_our_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, GuardedReader(TASKS) as reader:
        with socket.create_connection(server.getsockname()), server.accept()[0]:
            found = collect(reader, [os.getpid()], deadline_s=5.0)[os.getpid()]
        assert any((remote, local) in found for local, remote in found)
