"""What is done to which engine, and what a report of it must hold. Data; `tests.engines.trial` plays it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.hangs.facts import Facts, Waits, busy, healthy, hung

FUTEX, RUNNING = Waits.LOCK, Waits.RUNNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One server and what befalls it.

    Members by role: ``server`` is the process that was started; ``rankN`` and ``rankN.prefetch`` announce themselves;
    ``engine`` and ``detokenizer`` are known by title, ``holder`` and ``peer`` are processes beside the server; with
    `log_pipe`, ``reader`` has the other end of the pipe.
    """

    name: str
    engine: str
    summary: str
    hang: str = "never:0:none"  # POINT:RANK:WAY, see the plug-in
    #: Once the server serves: "arm" (the hang's point is live from now on), "ask" (a request is sent), "stop ROLE",
    #: "kill ROLE" (who is ``killed`` from then on), "flood" (requests until the log's pipe is full).
    serving: tuple[str, ...] | None = None  # None: it never comes to serve
    waits: Mapping[str, Waits] = field(default_factory=dict)  # how /proc shows that the scene is reached
    facts: Facts
    phases: frozenset[str | None]
    roles: Mapping[str, str]
    attach: str = "server"
    options: tuple[str, ...] = ()  # of the server
    env: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 2
    beside: tuple[str, ...] = ()  # "holder", "peer": processes that are no part of the server
    weights_gb: float | None = None  # size of a sparse file that every rank maps
    mappings: int = 0
    vocabulary: int | None = None  # of the model: 512 unless a bigger one is needed
    ends: bool = False  # the server ends by itself, soon
    log_pipe: bool = False  # the server writes into a pipe that nobody reads once it serves


_VLLM = {"server": "launcher", "engine": "engine", "rank0": "rank", "rank1": "rank"}
_SGLANG = {"server": "launcher", "detokenizer": "detokenizer", "rank0": "scheduler", "rank1": "scheduler"}
_SGLANG_STARTING = {"server": "launcher", "rank0": "scheduler", "rank1": "scheduler"}
_EAGER = ("--enforce-eager",)

MISSING = "collective.missing_rank"


def _vllm(name: str, summary: str, facts: Facts, *phases: str | None, **more: object) -> Scene:
    given = {"options": _EAGER, "roles": _VLLM, **more}
    return Scene(
        name=f"vllm-{name}",
        engine="vllm",
        summary=summary,
        facts=facts,
        phases=frozenset(phases),
        **given,  # type: ignore[arg-type]
    )


def _sglang(name: str, summary: str, facts: Facts, *phases: str | None, **more: object) -> Scene:
    serves = more.get("serving") is not None
    given = {"roles": _SGLANG if serves else _SGLANG_STARTING, **more}
    return Scene(
        name=f"sglang-{name}",
        engine="sglang",
        summary=summary,
        facts=facts,
        phases=frozenset(phases),
        **given,  # type: ignore[arg-type]
    )


#: Once a request has come, rank 1 asks a service outside of the job before it comes to the all-reduce.
_ASKS_BEFORE_ALL_REDUCE = {
    "hang": "all_reduce:1:peer",
    "serving": ("arm", "ask in vain"),
    "beside": ("peer",),
}


#: A rank waits for a service outside of the job: the rank may be named, and so may who does not answer.
def _by_peer(symptom: str | tuple[str | None, ...] | None, **facts: object) -> Facts:
    return hung(
        symptom, ("ipc.peer_silent", "unknown", None), culprit=("rank1",), may_name=("peer",), **facts
    )


def _silent_after_loading(name: str, *, ranks: int, stuck: int, mappings: int) -> Scene:
    """All ranks map the same weights, which makes the sum of their resident sets bigger than the host's memory; what
    stops them is a thread of one rank that holds a lock while it waits for a storage that does not answer.
    """
    rank = f"rank{stuck}"
    prefetch = f"{rank}.prefetch"
    others = {f"rank{each}": FUTEX for each in range(ranks) if each != stuck}
    return _sglang(
        name,
        f"silent after weight loading: a thread of rank {stuck} holds a lock and waits for a silent storage",
        hung(
            (MISSING, "rendezvous.missing_rank"),
            ("ipc.peer_silent", "lock.held"),
            culprit=(rank, prefetch),
            may_name=("peer",),
            missing=frozenset({stuck}),
            holder=rank,
            memory=frozenset({"rss_illusion"}),
            cleared=("memory",),
        ),
        "weight_loading",
        "barrier_after_load",
        hang=f"load:{stuck}:lock",
        waits={**others, rank: FUTEX, prefetch: Waits.READ},
        beside=("peer",),
        ranks=ranks,
        roles={"server": "launcher", **{f"rank{each}": "scheduler" for each in range(ranks)}},
        weights_gb=3.0,
        mappings=mappings,
    )


SCENES: tuple[Scene, ...] = (
    _vllm(
        "idle",
        "a server with nothing to do",
        healthy("idle"),
        "serving",
        serving=("ask",),
    ),
    _sglang(
        "idle",
        "a server with nothing to do: its schedulers spin in broadcasts that complete",
        healthy("idle"),
        "serving",
        serving=("ask",),
    ),
    _vllm(
        "all-reduce-shm",
        "rank 1 asks a silent service before an all-reduce over vLLM's shared memory, rank 0 spins in it",
        _by_peer((MISSING, "worker.stuck", "ipc.peer_silent", None)),
        "serving",
        waits={"rank0": RUNNING, "rank1": Waits.READ},
        **_ASKS_BEFORE_ALL_REDUCE,
    ),
    _vllm(
        "all-reduce-gloo",
        "the same, with the all-reduce of gloo",
        _by_peer(MISSING, missing=frozenset({1}), op="all_reduce"),
        "serving",
        waits={"rank0": FUTEX, "rank1": Waits.READ},
        **_ASKS_BEFORE_ALL_REDUCE,
        env={"ENGINE_GLOO": "1"},
    ),
    _sglang(
        "all-reduce",
        "rank 1 asks a silent service before an all-reduce",
        _by_peer(MISSING, missing=frozenset({1}), op="all_reduce"),
        "serving",
        waits={"rank0": FUTEX, "rank1": Waits.READ},
        **_ASKS_BEFORE_ALL_REDUCE,
    ),
    _vllm(
        "load-file-lock",
        "rank 1 waits for the locked cache of kernels while it loads weights, the others are done",
        hung(
            ("file_lock.held", "worker.stuck", MISSING, None),
            "file_lock.held",
            culprit=("holder", "rank1"),
            may_name=("holder",),
            holder="holder",
        ),
        "weight_loading",
        hang="load:1:file_lock",
        waits={"rank1": Waits.FILE_LOCK, "rank0": Waits.POLL},
        beside=("holder",),
    ),
    _sglang(
        "load-event",
        "rank 1 waits for an event that nobody sets while it loads weights, the others are in monitored_barrier",
        hung(
            (MISSING, "rendezvous.missing_rank"),
            ("lock.handoff_lost", "unknown", None),
            culprit=("rank1",),
            missing=frozenset({1}),
        ),
        "weight_loading",
        "barrier_after_load",
        hang="load:1:event",
        waits={"rank0": FUTEX, "rank1": FUTEX},
    ),
    _silent_after_loading("load-lock", ranks=2, stuck=1, mappings=5),
    _silent_after_loading("load-lock-tp4", ranks=4, stuck=3, mappings=3),
    _vllm(
        "warm-up",
        "rank 1 waits for an event that nobody sets in the warm-up of a model that was compiled",
        hung(
            (MISSING, "worker.stuck", None),
            ("lock.handoff_lost", "unknown", None),
            culprit=("rank1",),
            missing=frozenset({1}),
        ),
        "warm_up",
        "memory_setup",
        hang="warm_up:1:event",
        env={"ENGINE_GLOO": "1"},
        options=(),
        waits={"rank0": FUTEX, "rank1": FUTEX},
    ),
    _sglang(
        "detokenizer-stopped",
        "the detokenizer was stopped while a request is served",
        hung(("peer.stopped", "ipc.peer_silent", None), "peer.stopped", culprit=("detokenizer",)),
        "serving",
        serving=("stop detokenizer", "ask in vain"),
        waits={"detokenizer": Waits.STOPPED},
    ),
    _sglang(
        "detokenizer-killed",
        "the detokenizer was killed; the server notices and ends within seconds",
        # Its parent may have waited for it already: then only the log tells.
        Facts(
            state=frozenset({"hung", "ended", "unknown"}),
            cause=frozenset({"peer.exited", "worker.dead", "peer.oom_killed"}),
            may_name=("killed",),
        ),
        "shutdown",
        "serving",
        None,
        serving=("kill detokenizer",),
        roles=_SGLANG_STARTING,
        ends=True,
    ),
    _sglang(
        "scheduler-stopped",
        "the scheduler of rank 1 was stopped, rank 0 waits for it in a collective",
        hung(MISSING, "peer.stopped", culprit=("rank1",)),
        "serving",
        serving=("stop rank1",),
        waits={"rank0": FUTEX, "rank1": Waits.STOPPED},
    ),
    _vllm(
        "worker-killed",
        "the worker of rank 1 was killed while it serves; the server notices and ends within seconds",
        # Its parent may have waited for it already: then only the log tells.
        Facts(
            state=frozenset({"hung", "ended", "unknown"}),
            cause=frozenset({"peer.exited", "worker.dead", "peer.oom_killed"}),
            may_name=("killed",),
        ),
        "shutdown",
        "serving",
        serving=("kill rank1",),
        roles={role: _VLLM[role] for role in ("server", "engine", "rank0")},
        ends=True,
    ),
    _vllm(
        "lost-answer",
        "an answer of rank 0 was lost: the engine waits for it, the worker for the engine's next message",
        hung(
            ("ipc.cycle", "ipc.peer_silent", None),
            "ipc.cycle",
            parties=("rank0", "engine"),
            cycle=True,
        ),
        "serving",
        hang="answer:0:none",
        # The first request has something compiled.
        serving=("ask", "arm", "ask in vain"),
        waits={"engine": Waits.POLL, "rank0": Waits.POLL},
    ),
    _vllm(
        "log-pipe-full",
        "nobody reads the pipe that the API server logs into",
        hung(
            ("ipc.pipe_full", None),
            "ipc.pipe_full",
            culprit=("server", "reader"),
            may_name=("server", "reader"),
        ),
        "serving",
        serving=("flood",),
        waits={"server": Waits.WRITE},
        log_pipe=True,
    ),
    _sglang(
        "jit-compile",
        "rank 1 compiles a kernel, the others wait in monitored_barrier",
        busy(
            (MISSING, "rendezvous.missing_rank", None),
            "compile.running",
            culprit=("rank1",),
            may_name=("rank1/*",),
        ),
        "compile",
        "weight_loading",
        "barrier_after_load",
        hang="load:1:compile",
        waits={"rank0": FUTEX, "rank1": Waits.COMPILER},
    ),
    _sglang(
        "stale-build-lock",
        "rank 1 waits for the lock file of a build whose process is gone",
        hung((MISSING, "rendezvous.missing_rank"), "file_lock.stale", culprit=("rank1",)),
        "compile",
        "weight_loading",
        "barrier_after_load",
        hang="load:1:stale_lock",
        waits={"rank0": FUTEX, "rank1": Waits.SLEEP},
    ),
    _sglang(
        "slow-load",
        "all read their weights from a disk that gives 10 MB/s",
        healthy("slow", may_name=("rank0", "rank1")),
        "weight_loading",
        hang="load:*:throttle",
        waits={"rank0": Waits.ANY, "rank1": Waits.ANY},
        vocabulary=960_000,
    ),
)
