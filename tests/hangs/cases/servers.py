"""Serving engines: processes of the shape of vLLM's and SGLang's, with their titles and ways to talk."""

from __future__ import annotations

from tests.hangs.facts import Case, Facts, Program, Waits, healthy, hung

ANY, POLL, LOCK, SLEEP = Waits.ANY, Waits.POLL, Waits.LOCK, Waits.SLEEP
MODULES = ("zmq", "setproctitle")


def vllm(how: str, summary: str, facts: Facts, **members: Waits) -> Case:
    return _case("vllm", how, summary, facts, members)


def sglang(how: str, summary: str, facts: Facts, **members: Waits) -> Case:
    return _case("sglang", how, summary, facts, members)


def _case(engine: str, how: str, summary: str, facts: Facts, members: dict[str, Waits]) -> Case:
    argv = ("{python}", f"{{programs}}/{engine}_like.py", how, "{scratch}", "{port}")
    return Case(
        kind=f"{engine}-{how.replace('_', '-')}",
        summary=summary,
        programs=(Program(argv=argv, members=members),),
        attach=tuple(role for role in members if role != "logger"),
        facts=facts,
        torch=True,
        modules=MODULES,
        slow=True,
    )


def missing(**more: object) -> Facts:
    return hung(
        "collective.missing_rank",
        ("timer", "collective.missing_rank"),
        culprit=("rank1",),
        op="all_reduce",
        **more,
    )


CASES = (
    vllm(
        "idle",
        "a vLLM-like server without requests",
        healthy("idle"),
        api=POLL,
        engine=LOCK,
        rank0=POLL,
        rank1=POLL,
    ),
    vllm(
        "stuck",
        "a worker of a vLLM-like server does not come to a step, the engine waits for its answer",
        missing(victims=("rank0", "engine")),
        rank1=SLEEP,
        rank0=LOCK,
        engine=POLL,
        api=POLL,
    ),
    vllm(
        "lost",
        "engine and workers of a vLLM-like server wait for each other: an answer was lost",
        hung(
            ("ipc.cycle", "ipc.peer_silent"),
            "ipc.cycle",
            parties=("engine", "rank0"),
            may_name=("rank1",),
            cycle=True,
        ),
        engine=POLL,
        rank0=POLL,
        rank1=POLL,
        api=POLL,
    ),
    vllm(
        "full",
        "the API server of a vLLM-like server writes to a full pipe whose reader does not read",
        hung(
            ("ipc.pipe_full", None),
            ("ipc.pipe_full", "timer", "child.stuck"),
            culprit=("logger", "api"),
            may_name=("logger",),
        ),
        api=Waits.WRITE,
        logger=SLEEP,
        engine=LOCK,
        rank0=POLL,
        rank1=POLL,
    ),
    vllm(
        "killed",
        "a worker of a vLLM-like server was killed while nobody asked for anything",
        Facts(
            state=frozenset({"ended"}),
            cause=frozenset({"peer.exited", "peer.oom_killed"}),
            culprit=("worker1",),
        ),
        api=POLL,
        engine=LOCK,
        worker0=POLL,
        worker1=Waits.ENDED,
    ),
    sglang(
        "idle",
        "an SGLang-like server without requests: its ranks spin in a broadcast",
        healthy("idle"),
        rank0=ANY,
        rank1=ANY,
        detokenizer=POLL,
        api=POLL,
    ),
    sglang(
        "stuck",
        "a rank of an SGLang-like server does not come to a batch",
        missing(victims=("rank0",)),
        detokenizer=POLL,
        rank0=LOCK,
        rank1=SLEEP,
        api=POLL,
    ),
    sglang(
        "stopped_detokenizer",
        "the detokenizer of an SGLang-like server is stopped, and what it is sent lies unread",
        hung((None, "peer.stopped"), "peer.stopped", culprit=("detokenizer",)),
        detokenizer=Waits.STOPPED,
        rank0=ANY,
        rank1=ANY,
        api=POLL,
    ),
    sglang(
        "stopped_scheduler",
        "a rank of an SGLang-like server is stopped",
        hung(
            ("collective.missing_rank", "peer.stopped"),
            "peer.stopped",
            culprit=("rank1",),
            victims=("rank0",),
        ),
        rank1=Waits.STOPPED,
        rank0=LOCK,
        detokenizer=POLL,
        api=POLL,
    ),
    sglang(
        "dead_detokenizer",
        "the detokenizer of an SGLang-like server was killed",
        Facts(
            state=frozenset({"ended"}),
            cause=frozenset({"peer.exited", "peer.oom_killed"}),
            culprit=("detokenizer",),
        ),
        api=POLL,
        rank0=ANY,
        rank1=ANY,
        detokenizer=Waits.ENDED,
    ),
)
