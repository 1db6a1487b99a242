"""What NCCL's RAS service said about a job: its own view of communicators and ranks, on all hosts of the job.

RAS counts collectives that were launched, not those that completed. It leaves out sends and receives, launches inside
of captured graphs, and, in text, all ranks but those that differ. So it supports a verdict and never clears a job.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class RasFormat(str, Enum):
    """The form in which the answer came."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RasPeer:
    """A process or a rank as RAS names it. `host` and `pid` are those of its own host; `gpu` is RAS's text ("0",
    "0 (NVML 3)"). `rank` is the rank in the communicator, None for a whole process.
    """

    rank: int | None = None
    host: str = ""
    pid: int | None = None
    gpu: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RasGroup:
    """Ranks of one communicator that are in the same state: `number` of them, of which `ranks` are named.

    `launched` is how many times they have launched `op` ("" where all operations have one counter, before NCCL 2.26);
    `text` is a state or an error in RAS's words. One of both is None.
    """

    op: str = ""
    launched: int | None = None
    text: str | None = None
    number: int = 0
    ranks: tuple[RasPeer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RasCommunicator:
    """One communicator. In text only those with a problem are there.

    `hash` is NCCL's commHash in hexadecimal, as in its log; `second_hash` tells communicators of one hash apart (JSON
    only). `problems` are RAS's words for the sort of problem (MISMATCH, INCOMPLETE, ERROR).
    `missing` are ranks that gave no data, `missing_count` how many.
    """

    hash: str
    second_hash: str = ""
    size: int | None = None
    problems: tuple[str, ...] = ()
    counts: tuple[RasGroup, ...] = ()
    states: tuple[RasGroup, ...] = ()
    errors: tuple[RasGroup, ...] = ()
    missing: tuple[RasPeer, ...] = ()
    missing_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RasRow:
    """One line of the text's table: communicators alike. `status` and `errors` are RAS's words."""

    communicators: int
    nodes: str
    ranks_per_node: str
    ranks_per_communicator: str
    ranks: int
    status: tuple[str, ...]
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RasProblem:
    """Something RAS says of the whole job: INCOMPLETE, DEAD or TIMEOUT, in `text` its words, and the processes it
    names.
    """

    kind: str
    text: str
    processes: tuple[RasPeer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RasAnswer:
    """One query. `answered_by` is the process that answered (all of a host share one address).

    `complete`: the answer was there to its end. `unknown` are lines of it that this version does not know, at most a
    few. `took_s` is how long the answer took; several seconds mean that somebody did not answer RAS.
    """

    answered_by: int | None = None
    address: str = ""
    format: RasFormat = RasFormat.TEXT
    nccl_version: str = ""
    cuda_runtime: int | None = None
    cuda_driver: int | None = None
    complete: bool = False
    communicators: tuple[RasCommunicator, ...] = ()
    table: tuple[RasRow, ...] = ()
    problems: tuple[RasProblem, ...] = ()
    no_data: bool = False
    timeouts: int = 0
    unknown: tuple[str, ...] = ()
    took_s: float = 0.0
