"""Whether NCCL's RAS service may be asked: some releases end the job over a query. Pure; the releases are data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pyhangtrace.model.nccl import NcclCommunicator, NcclState
from pyhangtrace.model.threads import ThreadSample

Version = tuple[int, int, int]


class RasMode(str, Enum):
    """What the user wants: never, only where nothing speaks against it, unless something is known against it, or in
    any case.
    """

    NEVER = "never"
    SAFE = "safe"
    ASK = "ask"
    FORCE = "force"


class Hazard(str, Enum):
    """States of a job in which a query harms it."""

    INITIALISING = "a communicator that is being initialised or taken down"
    SILENT_RANK = "a rank that does not answer RAS"


class Known(str, Enum):
    """What is known of a hazard, of all hosts of the job."""

    EXCLUDED = "excluded"
    PRESENT = "present"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Danger:
    """Releases from `since` to before `until` (None: no fixed one is known), in which a query harms a job with the
    hazard. `hidden`: the hazard lasts for moments and is often there, so that only a user who insists may ask.
    `text_only`: the JSON form does without the code that fails.
    """

    since: Version
    until: Version | None
    hazard: Hazard
    effect: str
    source: str
    hidden: bool = False
    text_only: bool = False


DANGERS = (
    Danger(
        since=(2, 24, 0),
        until=(2, 27, 3),
        hazard=Hazard.INITIALISING,
        effect="a query can crash the job",
        source="https://github.com/NVIDIA/nccl/issues/1669 and /1718; fixed by peerInfoValid in 2.27.3",
        hidden=True,
    ),
    Danger(
        since=(2, 27, 0),
        until=(2, 29, 2),
        hazard=Hazard.SILENT_RANK,
        effect="a query can corrupt the memory of the process that answers",
        source="https://github.com/NVIDIA/nccl/issues/1762; fixed in 2.29.2, as its author says there",
    ),
    Danger(
        since=(2, 28, 0),
        until=None,
        hazard=Hazard.INITIALISING,
        effect="a query in text can crash the process that answers",
        source="https://github.com/NVIDIA/nccl/issues/2346; open",
        text_only=True,
    ),
)

FIRST_WITH_RAS: Version = (2, 24, 0)
FIRST_WITH_JSON: Version = (2, 28, 7)

# Functions of NCCL inside of which a communicator is not whole. Source: init.cc, bootstrap.cc and group.cc of NCCL.
_NOT_WHOLE = (
    "ncclCommInitRank",
    "ncclCommInitAll",
    "ncclCommInitRankConfig",
    "ncclCommInitRankScalable",
    "ncclCommInitRankFunc",
    "ncclCommInitChildComm",
    "ncclCommSplit",
    "ncclCommShrink",
    "ncclCommGrow",
    "ncclCommInitJob",
    "initTransportsRank",
    "bootstrapInit",
    "bootstrapSplit",
    "bootstrapRoot",
    "ncclCommFinalize",
    "ncclCommDestroy",
    "ncclCommAbort",
    "commDestroySync",
    "commReclaim",
    "commCleanup",
    "commFree",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Whether to ask, and why not. `json_only`: give up rather than ask for text. `fix`: how to get an answer."""

    granted: bool
    reason: str = ""
    fix: str = ""
    json_only: bool = False


def parse_version(text: str) -> Version | None:
    """ "2.27.7+cuda12.9" as numbers."""
    parts = text.partition("+")[0].split(".")
    numbers = [int(part) for part in parts[:3] if part.isascii() and part.isdecimal()]
    if len(numbers) < 2:
        return None
    return (numbers[0], numbers[1], numbers[2] if len(numbers) > 2 else 0)


def hazards(
    threads: Iterable[ThreadSample],
    pids: Sequence[int],
    states: Sequence[NcclState] = (),
    *,
    ended: bool = False,
) -> dict[Hazard, Known]:
    """What stacks, states and NCCL's own memory show of the local processes, of which one may have ended.

    That all communicators of this host are whole counts as a word for the job; that all ranks answer only where all of
    them are here.
    """
    found = {Hazard.INITIALISING: Known.UNKNOWN, Hazard.SILENT_RANK: Known.UNKNOWN}
    if _all_whole(pids, states):
        found[Hazard.INITIALISING] = Known.EXCLUDED
        if all_here(states):
            found[Hazard.SILENT_RANK] = Known.EXCLUDED
    if any(_is_half(communicator) for state in states for communicator in state.communicators):
        found[Hazard.INITIALISING] = Known.PRESENT
    silent = ended
    for thread in threads:
        silent = silent or thread.state in ("T", "t")
        for frame in thread.frames:
            name = frame.function.removeprefix("p")
            if name.partition("(")[0] in _NOT_WHOLE:
                found[Hazard.INITIALISING] = Known.PRESENT
    if silent:
        found[Hazard.SILENT_RANK] = Known.PRESENT
    return found


def _all_whole(pids: Sequence[int], states: Sequence[NcclState]) -> bool:
    """Whether the memory of every process was read, and has communicators that all are set up."""
    read = {
        state.pid
        for state in states
        if state.problem is None
        and state.communicators
        and all(comm.init_state == 0 and not _is_half(comm) for comm in state.communicators)
    }
    return bool(pids) and read.issuperset(pids)


def _is_half(comm: NcclCommunicator) -> bool:
    torn = comm.finalizing or comm.destroyed or comm.aborted or comm.revoked
    return bool(comm.setting_up or comm.peers_known is False or torn)


def all_here(states: Sequence[NcclState]) -> bool:
    """Whether all ranks of all communicators are in the processes that were read."""
    ranks: dict[tuple[int, int], set[int]] = {}
    for state in states:
        for comm in state.communicators:
            ranks.setdefault((comm.comm_hash, comm.n_ranks), set()).add(comm.rank)
    return bool(ranks) and all(len(found) == size for (_, size), found in ranks.items())


def leave(mode: RasMode, version: Version | None, known: Mapping[Hazard, Known], *, pid: int) -> Leave:
    """Whether this job may be asked. `pid` is for the command that asks nevertheless."""
    if mode is RasMode.NEVER:
        return Leave(granted=False, reason="not asked: --ras never")
    if mode is RasMode.FORCE:
        return Leave(granted=True)
    force = f"hangtrace attach --ras force {pid}, if the job may be lost"
    if version is None:
        return Leave(granted=False, reason="not asked: the release of NCCL is not known", fix=force)
    name = ".".join(map(str, version))
    if version < FIRST_WITH_RAS:
        return Leave(granted=False, reason=f"NCCL {name} has no RAS service (2.24 and newer have)")
    json_only = False
    unsure: Danger | None = None
    for danger in DANGERS:
        if not danger.since <= version < (danger.until or (99, 0, 0)):
            continue
        state = known.get(danger.hazard, Known.UNKNOWN)
        if danger.text_only and version >= FIRST_WITH_JSON:
            json_only = True  # other hosts may be in that state
            continue
        if state is Known.EXCLUDED and not danger.hidden:
            continue
        # A hidden one may come while the query is on its way, or be on another host.
        if state is Known.PRESENT or danger.hidden:
            there = "there is" if state is Known.PRESENT else "with"
            why = f"NCCL {name}: {danger.effect} {there} {danger.hazard.value}"
            return Leave(granted=False, reason=f"not asked: {why}", fix=force)
        unsure = unsure or danger
    if mode is RasMode.ASK:
        return Leave(granted=True, json_only=json_only)
    ask = f"hangtrace attach --ras ask {pid}"
    if unsure is not None:
        return Leave(
            granted=False,
            reason=f"not asked: NCCL {name}, {unsure.effect} with {unsure.hazard.value}",
            fix=ask,
        )
    if known.get(Hazard.INITIALISING) is not Known.EXCLUDED:
        # No failure is known, but this is where all of them were.
        return Leave(
            granted=False,
            reason=f"not asked: NCCL {name}, and whether a communicator is being initialised is not known",
            fix=ask,
        )
    return Leave(granted=True, json_only=json_only)
