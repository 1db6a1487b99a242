"""Ground truth: what NCCL itself has written about its communicators and the operations it was asked for."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.hangs.processes import POLL_S, NotReached

#: Of the last calls: the files grow while the processes block in them.
LOGGED_DEADLINE_S = 30.0

# "ncclCommInitRank comm 0x55d0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x9d33 - Init COMPLETE"; 2.18 has
# no nvmlDev, and since 2.31 ranks of one device may be told apart by more words.
_COMMUNICATOR = re.compile(
    r"comm (?P<address>0x[0-9a-f]+) rank (?P<rank>\d+) n[rR]anks (?P<n_ranks>\d+) cudaDev (?P<device>\d+).*?"
    r" busId (?P<bus>[0-9a-f]+) commId (?P<hash>0x[0-9a-f]+).*Init (?P<phase>START|COMPLETE)"
)
# "AllReduce: opCount 0 sendbuff 0x… recvbuff 0x… count 4096 datatype 7 op 0 root 0 comm 0x55d0 [nranks=2] stream 0x…"
_CALL = re.compile(
    r"INFO (?P<function>\w+): opCount [0-9a-f]+ .*count (?P<count>\d+) datatype (?P<dtype>\d+)"
    r" op (?P<op>\d+) root -?\d+ comm (?P<address>0x[0-9a-f]+) \[nranks=\d+\]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedComm:
    """A communicator of one rank. `complete`: its set-up has ended."""

    pid: int
    address: int
    rank: int
    n_ranks: int
    device: int
    bus_id: int
    comm_hash: int
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCall:
    """An operation that the program asked for; numbers as in nccl.h."""

    pid: int
    function: str
    count: int
    dtype: int
    op: int
    address: int  # of the communicator


@dataclass(frozen=True, slots=True)
class Log:
    """Of all processes of a case, in the order of their files."""

    comms: tuple[LoggedComm, ...]
    calls: tuple[LoggedCall, ...]

    def comms_of(self, pid: int) -> list[LoggedComm]:
        return [comm for comm in self.comms if comm.pid == pid]

    def calls_of(self, pid: int) -> list[LoggedCall]:
        return [call for call in self.calls if call.pid == pid]


def read(folder: Path) -> Log:
    """What the processes have written into the folder so far."""
    comms: dict[tuple[int, int], LoggedComm] = {}
    calls = []
    for pid, line in _lines(folder):
        if (found := _COMMUNICATOR.search(line)) is not None:
            comm = LoggedComm(
                pid=pid,
                address=int(found["address"], 16),
                rank=int(found["rank"]),
                n_ranks=int(found["n_ranks"]),
                device=int(found["device"]),
                bus_id=int(found["bus"], 16),
                comm_hash=int(found["hash"], 16),
                complete=found["phase"] == "COMPLETE",
            )
            comms[pid, comm.address] = comm
        elif (found := _CALL.search(line)) is not None:
            calls.append(
                LoggedCall(
                    pid=pid,
                    function=found["function"],
                    count=int(found["count"]),
                    dtype=int(found["dtype"]),
                    op=int(found["op"]),
                    address=int(found["address"], 16),
                )
            )
    return Log(tuple(comms.values()), tuple(calls))


def _lines(folder: Path) -> Iterator[tuple[int, str]]:
    for file in sorted(folder.glob("nccl.*")):
        pid = int(file.name.rpartition(".")[2])
        for line in file.read_text(errors="replace").splitlines():
            yield pid, line


def await_calls(folder: Path, expected: Mapping[int, int]) -> None:
    """Waits until the log of each process has as many calls. Raises NotReached."""
    until = time.monotonic() + LOGGED_DEADLINE_S
    while True:
        seen = read(folder)
        missing = {pid: count for pid, count in expected.items() if len(seen.calls_of(pid)) < count}
        if not missing:
            return
        if time.monotonic() > until:
            raise NotReached(f"calls not in NCCL's log: {missing}")
        time.sleep(POLL_S)
