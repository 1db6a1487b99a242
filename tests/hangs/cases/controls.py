"""Programs that are well, and must not be called hung."""

from __future__ import annotations

from tests.hangs.cases.gloo import another_job, train
from tests.hangs.facts import Case, Facts, Program, Waits, healthy

PYTHON, HEALTHY = "{python}", "{programs}/healthy.py"


def control(
    kind: str,
    summary: str,
    *programs: Program,
    attach: tuple[str, ...],
    facts: Facts,
    torch: bool = False,
    slow: bool = False,
) -> Case:
    return Case(
        kind=kind, summary=summary, programs=programs, attach=attach, facts=facts, torch=torch, slow=slow
    )


def program(what: str, members: dict[str, Waits], *, stdin_open: bool = False) -> Program:
    argv = (PYTHON, HEALTHY, what, "{scratch}/socket")
    return Program(argv=argv, members=members, stdin_open=stdin_open)


CASES = (
    control(
        "well-serving",
        "a server that gets a request every 400 ms",
        program("serve", {"server": Waits.ANY}),
        program("client", {"client": Waits.ANY}),
        attach=("server", "client"),
        facts=healthy("running", "idle"),
    ),
    control(
        "well-asyncio",
        "an asyncio server with a thread pool and nothing to do",
        program("asyncio", {"server": Waits.POLL}),
        attach=("server",),
        facts=healthy("idle"),
    ),
    control(
        "well-accept",
        "a server that waits for a connection",
        program("accept", {"server": Waits.ACCEPT}),
        attach=("server",),
        facts=healthy("idle"),
    ),
    control(
        "well-threads",
        "a thread pool with nothing to do, commands come from standard input",
        program("threads", {"main": Waits.READ}, stdin_open=True),
        attach=("main",),
        facts=healthy("idle"),
    ),
    control(
        "well-pool",
        "a multiprocessing pool with nothing to do",
        program("pool", {"main": Waits.ACCEPT, "worker0": Waits.ANY, "worker1": Waits.ANY}),
        attach=("main", "worker0"),
        facts=healthy("idle"),
    ),
    control(
        "well-pool-naps",
        "a multiprocessing pool at work, each piece of which naps for 30 ms",
        program("pool_naps", {"main": Waits.LOCK, "worker0": Waits.ANY, "worker1": Waits.ANY}),
        attach=("main", "worker0"),
        facts=healthy("running"),
    ),
    control(
        "well-pool-computes",
        "a multiprocessing pool at work, each piece of which takes some milliseconds of the CPU",
        program("pool_computes", {"main": Waits.LOCK, "worker0": Waits.ANY, "worker1": Waits.ANY}),
        attach=("main", "worker1"),
        facts=healthy("running"),
    ),
    control(
        "well-steps",
        "a process that has a child nap for 30 ms again and again, and waits for its answers",
        program("steps", {"main": Waits.ANY, "worker": Waits.ANY}),
        attach=("main", "worker"),
        facts=healthy("running"),
    ),
    control(
        "well-fed-queue",
        "a queue with room for two, whose consumer naps for 30 ms a piece",
        program("fed_queue", {"main": Waits.ANY, "worker": Waits.ANY}),
        attach=("main", "worker"),
        facts=healthy("running"),
    ),
    control(
        "well-threads-in-turn",
        "two threads that take turns: each naps for 30 ms, and wakes the other one",
        program("threads_in_turn", {"main": Waits.ANY}),
        attach=("main",),
        facts=healthy("running"),
    ),
    control(
        "well-orders",
        "of two workers that take orders from one queue one computes, and its answer is waited for",
        program("orders", {"main": Waits.READ, "worker": Waits.RUNNING}),
        attach=("main", "worker"),
        facts=healthy("busy", "running", may_name=("worker",)),
    ),
    control(
        "well-orders-of-clients",
        "two workers without orders: the main thread waits for their answers, another one listens for clients",
        program(
            "orders_of_clients",
            {"main": Waits.READ, "listener": Waits.ACCEPT, "worker0": Waits.ASLEEP, "worker1": Waits.ASLEEP},
        ),
        attach=("main", "worker0", "worker1"),
        facts=healthy("idle"),
    ),
    control(
        "well-compute",
        "a process that computes and for which nobody waits",
        program("compute", {"main": Waits.RUNNING}),
        attach=("main",),
        facts=healthy("running"),
    ),
    control(
        "well-straggler",
        "a job with a rank that needs two seconds a step",
        train(ranks=2, op="straggle", rank0=Waits.ANY, rank1=Waits.ANY),
        attach=("rank0", "rank1", "launcher"),
        facts=healthy("slow", "running", may_name=("rank1",)),
        torch=True,
    ),
    control(
        "well-straggler-long",
        "a job with a rank that sleeps for twenty seconds: slow, not hung",
        train(ranks=2, op="straggle_long", rank0=Waits.LOCK, rank1=Waits.SLEEP),
        attach=("rank1", "rank0"),
        facts=healthy("slow", may_name=("rank1",)),
        torch=True,
    ),
    control(
        "well-idle-engine",
        "rank 0 waits for a request, the others in broadcast for what it will tell them",
        train(ranks=3, op="idle_engine", rank0=Waits.ACCEPT),
        attach=("rank1", "rank0"),
        facts=healthy("idle"),
        torch=True,
    ),
    control(
        "well-training",
        "a job at full speed",
        train(ranks=2, op="full_speed", launch="siblings", rank0=Waits.ANY, rank1=Waits.ANY),
        attach=("rank0", "rank1"),
        facts=healthy("running"),
        torch=True,
    ),
    control(
        "well-beside-hung",
        "a job at full speed; of another one on the same machine a rank sleeps",
        another_job(train(ranks=2, late=1, launch="siblings", rank1=Waits.SLEEP)),
        train(ranks=2, op="full_speed", launch="siblings", rank0=Waits.ANY, rank1=Waits.ANY),
        attach=("rank0", "rank1"),
        facts=healthy("running"),
        torch=True,
    ),
)
