"""Groups made with multiprocessing, without PyTorch, and the demos as users see them."""

from __future__ import annotations

from tests.hangs.facts import Case, Facts, Program, Waits, busy, healthy, hung, may_withhold

PYTHON = "{python}"
MISSING = "collective.missing_rank"
LOCK, SLEEP = Waits.LOCK, Waits.SLEEP


def workers(
    what: str,
    summary: str,
    members: dict[str, Waits],
    facts: Facts,
    *,
    method: str = "fork",
    attach: tuple[str, ...] | None = None,
    slow: bool = False,
) -> Case:
    argv = (PYTHON, "{programs}/workers.py", "--method", method, what)
    return Case(
        kind=f"mp-{what}",
        summary=summary,
        programs=(Program(argv=argv, members=members),),
        attach=attach or tuple(members),
        facts=facts,
        slow=slow,
    )


def demo(name: str, members: dict[str, Waits], facts: Facts, *, attach: tuple[str, ...], slow: bool) -> Case:
    program = Program(
        argv=(PYTHON, "{programs}/run_demo.py", name),
        members=members,
        env={"PYTHONPATH": "{programs}:{repository}", "TMPDIR": "{scratch}"},
    )
    return Case(
        kind=f"demo-{name}",
        summary=f"hangtrace demo {name}",
        programs=(program,),
        attach=attach,
        facts=facts,
        slow=slow,
    )


def ranks(count: int, late: int, waits: Waits) -> dict[str, Waits]:
    return {f"rank{rank}": waits if rank == late else LOCK for rank in range(count)}


def victims(count: int, late: int) -> tuple[str, ...]:
    return tuple(f"rank{rank}" for rank in range(count) if rank != late)


CASES = (
    workers(
        "barrier-sleep",
        "a worker sleeps, the others wait in a multiprocessing barrier",
        {"worker0": LOCK, "worker1": SLEEP, "worker2": LOCK, "launcher": Waits.CHILD},
        hung(MISSING, "timer", culprit=("worker1",), victims=("worker0", "worker2")),
        method="spawn",
    ),
    workers(
        "barrier-exit",
        "a worker has ended, the others wait in a multiprocessing barrier",
        {"worker0": LOCK, "worker1": Waits.ENDED, "worker2": LOCK, "launcher": Waits.CHILD},
        hung(
            (MISSING, "peer.exited"),
            "peer.exited",
            culprit=("worker1",),
            victims=("worker0", "worker2"),
        ),
        attach=("worker0", "launcher"),
    ),
    workers(
        "queue",
        "a consumer waits for a producer that sleeps",
        {"consumer": Waits.READ, "producer": SLEEP, "launcher": Waits.CHILD},
        may_withhold(
            ("ipc.peer_silent", "worker.stuck", "unknown", None),
            ("timer", "ipc.peer_silent", "worker.stuck", "unknown", None),
            may_name=("producer",),
        ),
        slow=True,
    ),
    workers(
        "lock",
        "a worker holds a multiprocessing lock and sleeps, two others want it; no owner is recorded",
        {"holder": SLEEP, "waiter0": LOCK, "waiter1": LOCK},
        may_withhold(
            ("lock.held", "unknown", None),
            ("lock.held", "timer", "unknown", None),
            may_name=("holder",),
        ),
        slow=True,
    ),
    workers(
        "event",
        "two workers wait for an event that nobody will set",
        {"waiter0": LOCK, "waiter1": LOCK, "launcher": Waits.CHILD},
        may_withhold(
            ("lock.handoff_lost", "child.stuck", "unknown", None),
            ("lock.handoff_lost", "unknown", None),
            may_name=("waiter0", "waiter1"),
        ),
        slow=True,
    ),
    workers(
        "pool",
        "a pool waits for a task that sleeps",
        {"launcher": LOCK, "worker": SLEEP},
        may_withhold(
            ("worker.stuck", "child.stuck", "unknown", None),
            ("worker.stuck", "child.stuck", "timer", "unknown", None),
            may_name=("worker",),
        ),
        slow=True,
    ),
    workers(
        "pool-dead",
        "a pool whose worker was killed in the middle of a piece of work, which it forgets",
        {"launcher": LOCK, "worker": Waits.ASLEEP},
        hung(("worker.dead", None), "worker.dead", parties=("launcher",)),
    ),
    workers(
        "pool-fed-slowly",
        "a pool that waits for its next piece of work, which the program makes in an hour",
        {"launcher": LOCK, "worker": Waits.ASLEEP},
        healthy("idle", "unknown"),
        attach=("launcher",),
    ),
    Case(
        kind="rss-illusion",
        summary="eight ranks map one file; one waits for a file lock of a foreign process",
        programs=(
            Program(
                argv=(PYTHON, "{programs}/hold_file_lock.py", "flock", "{scratch}/compile_cache.lock"),
                members={"holder": SLEEP},
            ),
            Program(
                argv=(PYTHON, "{programs}/mapped_weights.py", "{scratch}"),
                members=ranks(8, 5, Waits.FILE_LOCK),
            ),
        ),
        attach=("rank0", "rank5"),
        facts=hung(
            MISSING,
            "file_lock.held",
            culprit=("rank5",),
            may_name=("holder",),
            holder="holder",
            victims=victims(8, 5),
            missing=frozenset({5}),
            memory=frozenset({"rss_illusion"}),
            cleared=("memory",),
        ),
    ),
    demo(
        "file-lock",
        {**ranks(8, 3, Waits.FILE_LOCK), "lock_holder": SLEEP},
        hung(
            MISSING,
            "file_lock.held",
            culprit=("rank3",),
            may_name=("lock_holder",),
            holder="lock_holder",
            victims=victims(8, 3),
            missing=frozenset({3}),
            memory=frozenset({"rss_illusion"}),
            cleared=("memory",),
        ),
        attach=("rank0", "rank3"),
        slow=False,
    ),
    demo(
        "stopped",
        ranks(4, 2, Waits.STOPPED),
        hung(MISSING, "peer.stopped", culprit=("rank2",), victims=victims(4, 2), missing=frozenset({2})),
        attach=("rank0",),
        slow=False,
    ),
    demo(
        "silent-pipe",
        ranks(4, 1, Waits.READ),
        hung(MISSING, ("ipc.no_eof", "ipc.peer_silent"), culprit=("rank1",), victims=victims(4, 1)),
        attach=("rank3",),
        slow=False,
    ),
    demo(
        "data-worker",
        {**ranks(2, 1, Waits.READ), "data_worker": SLEEP},
        hung(
            MISSING,
            ("worker.stuck", "child.stuck", "ipc.peer_silent"),
            culprit=("rank1",),
            may_name=("data_worker",),
            victims=("rank0",),
        ),
        attach=("rank0",),
        slow=False,
    ),
    demo(
        "busy",
        ranks(2, 1, Waits.RUNNING),
        busy(MISSING, ("cpu.busy", "cpu.spin"), culprit=("rank1",), victims=("rank0",)),
        attach=("rank0",),
        slow=False,
    ),
    demo(
        "mutex-cycle",
        {"reader": LOCK, "writer": LOCK},
        hung(("lock.cycle", "lock.held", None), "lock.cycle", parties=("reader", "writer"), cycle=True),
        attach=("reader",),
        slow=False,
    ),
    demo(
        "gil",
        {"callback": LOCK, "flush": LOCK},
        hung(
            ("lock.cycle", "lock.gil", "lock.held", None),
            ("lock.cycle", "lock.gil"),
            parties=("callback", "flush"),
            cycle=True,
        ),
        attach=("callback",),
        slow=False,
    ),
    demo("idle", {"server": Waits.POLL}, healthy("idle"), attach=("server",), slow=False),
)
