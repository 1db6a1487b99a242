"""Ranks of a gloo job. Most miss one rank; the facts differ in why."""

from __future__ import annotations

from dataclasses import replace

from tests.hangs.facts import Case, Facts, Program, Waits, busy, hung

PYTHON, TRAIN = "{python}", "{programs}/train.py"
MISSING = "collective.missing_rank"


def train(
    *,
    ranks: int = 3,
    op: str = "all_reduce",
    late: int | None = None,
    instead: str = "sleep",
    path: str | None = None,
    launch: str = "fork",
    **members: Waits,
) -> Program:
    """One job. Members that are not named wait for the others in a futex."""
    options = ["--ranks", str(ranks), "--op", op]
    if late is not None:
        options += ["--late", str(late), "--instead", instead]
    if path is not None:
        options += ["--path", path]
    waits = {f"rank{rank}": Waits.LOCK for rank in range(ranks)}
    waits.update({role.replace("_", "."): state for role, state in members.items()})
    if launch == "siblings":
        argv = (PYTHON, TRAIN, "--launch", "none", *options)
        return Program(argv=argv, members=waits, ranks=tuple(range(ranks)))
    if launch == "torchrun":
        # --standalone would need a machine that knows the name localhost.
        rendezvous = (
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "127.0.0.1:{port}",
            "--local-addr",
            "127.0.0.1",
        )
        run = ("-m", "torch.distributed.run", *rendezvous, "--nproc-per-node", str(ranks))
        return Program(argv=(PYTHON, *run, TRAIN, "--launch", "none", *options), members=waits)
    argv = (PYTHON, TRAIN, "--launch", launch, *options)
    return Program(argv=argv, members={**waits, "launcher": Waits.ANY}, env={"MASTER_PORT": "{port}"})


def missing_one(
    kind: str,
    summary: str,
    program: Program,
    facts: Facts,
    *,
    before: tuple[Program, ...] = (),
    attach: tuple[str, ...] = ("rank0", "rank1"),
    slow: bool = False,
) -> Case:
    return Case(
        kind=kind,
        summary=summary,
        programs=(*before, program),
        attach=attach,
        facts=facts,
        torch=True,
        slow=slow,
    )


def missing(late: int, ranks: int, cause: str | tuple[str | None, ...], **more: object) -> Facts:
    """Rank `late` of so many is not there; everybody else is a victim."""
    role = f"rank{late}"
    facts: dict[str, object] = {
        "culprit": (role,),
        "victims": tuple(f"rank{rank}" for rank in range(ranks) if rank != late),
        "missing": frozenset({late}),
        **more,
    }
    return hung(MISSING, cause, **facts)


def without_rank1(program: Program) -> Program:
    """The same, of which rank 1 does not announce itself."""
    return replace(
        program, members={role: waits for role, waits in program.members.items() if role != "rank1"}
    )


def another_job(program: Program) -> Program:
    """The same, as a job of its own beside: its roles begin with `other.`."""
    return replace(
        program,
        members={f"other.{role}": waits for role, waits in program.members.items()},
        env={"HANGS_PREFIX": "other.", "MASTER_PORT": "{port2}"},
    )


def held_by_thread(variant: str, instead: str, op: str, launch: str, attach: str) -> Case:
    return missing_one(
        f"gloo-{variant}",
        f"a rank waits for a lock that another thread of it holds: {variant}",
        train(
            op=op,
            late=2,
            instead=instead,
            launch=launch,
            rank2_holder=Waits.READ,
        ),
        missing(2, 3, "lock.held", culprit=("rank2", "rank2.holder"), may_name=("rank2", "rank2.holder")),
        attach=(attach, "rank2"),
    )


def held_file(variant: str, instead: str, launch: str, attach: tuple[str, ...]) -> Case:
    path = "{scratch}/compile_cache.lock"
    how = "flock" if instead == "flock" else "fcntl"
    argv = (PYTHON, "{programs}/hold_file_lock.py", how, path)
    return missing_one(
        f"gloo-{variant}",
        f"a rank waits for a file lock that a foreign process holds: {variant}",
        train(op="all_reduce", late=1, instead=instead, path=path, launch=launch, rank1=Waits.FILE_LOCK),
        missing(1, 3, "file_lock.held", may_name=("holder",), holder="holder"),
        before=(Program(argv=argv, members={"holder": Waits.SLEEP}),),
        attach=attach,
    )


def silent_server(variant: str, instead: str, family: str) -> Case:
    path = "{scratch}/server"
    argv = (PYTHON, "{programs}/silent_server.py", family, path)
    return missing_one(
        f"gloo-{variant}",
        f"a rank waits for the answer of a server that does not answer: {variant}",
        train(op="broadcast", late=0, instead=instead, path=path, rank0=Waits.READ),
        missing(0, 3, "ipc.peer_silent", may_name=("server",)),
        before=(Program(argv=argv, members={"server": Waits.ACCEPT}),),
        attach=("rank1", "launcher"),
    )


def parties(
    kind: str,
    summary: str,
    symptom: tuple[str, ...],
    *,
    ranks: int,
    op: str,
    cycle: bool = False,
    named: tuple[str, ...] | None = None,
    slow: bool = False,
) -> Case:
    """Everybody came, but not to the same thing: nobody is singled out."""
    everybody = tuple(f"rank{rank}" for rank in range(ranks))
    facts = hung(
        symptom,
        (*symptom, None, "unknown"),
        parties=named or everybody,
        may_name=everybody,
        cycle=cycle,
    )
    return Case(
        kind=kind,
        summary=summary,
        programs=(train(ranks=ranks, op=op),),
        attach=everybody,
        facts=facts,
        torch=True,
        slow=slow,
    )


SLEEPS = Waits.SLEEP

CASES = (
    # -- every operation, every way to start, the same cause --------------------------------------------------
    missing_one(
        "gloo-sleep-all_reduce",
        "a rank sleeps for an hour, the others wait in all_reduce; siblings with RANK",
        train(late=1, launch="siblings", rank1=SLEEPS),
        missing(1, 3, "timer", op="all_reduce"),
    ),
    missing_one(
        "gloo-sleep-broadcast",
        "the root sleeps, the others wait in broadcast; torchrun",
        train(op="broadcast", late=0, launch="torchrun", rank0=SLEEPS),
        missing(0, 3, "timer", op="broadcast"),
        attach=("rank1", "rank0"),
    ),
    missing_one(
        "gloo-sleep-all_gather",
        "a rank sleeps, the other one waits in all_gather; spawn",
        train(ranks=2, op="all_gather", late=1, launch="spawn", rank1=SLEEPS),
        missing(1, 2, "timer", op="all_gather"),
        attach=("launcher", "rank0"),
    ),
    missing_one(
        "gloo-sleep-barrier",
        "a rank sleeps, the others wait in barrier; fork",
        train(ranks=4, op="barrier", late=3, rank3=SLEEPS),
        missing(3, 4, "timer", op="barrier"),
        attach=("rank3", "launcher", "rank0"),
    ),
    missing_one(
        "gloo-sleep-8",
        "the same with eight ranks",
        train(ranks=8, late=5, rank5=SLEEPS),
        missing(5, 8, "timer", op="all_reduce"),
        attach=("rank7", "rank5"),
    ),
    # -- causes ----------------------------------------------------------------------------------------------
    held_by_thread("lock-with", "lock_with", "all_reduce", "fork", "rank0"),
    held_by_thread("lock-acquire", "lock_acquire", "barrier", "fork", "rank1"),
    held_by_thread("rlock", "rlock", "all_gather", "siblings", "rank0"),
    held_by_thread("c-mutex", "c_mutex", "all_reduce", "fork", "launcher"),
    held_file("flock", "flock", "siblings", ("rank0", "rank1")),
    held_file("fcntl", "fcntl_lock", "fork", ("rank2", "launcher")),
    missing_one(
        "gloo-stopped",
        "a rank was stopped by SIGSTOP",
        train(ranks=4, op="all_reduce", late=2, instead="be_stopped", rank2=Waits.STOPPED),
        missing(2, 4, "peer.stopped"),
        attach=("rank0", "rank2"),
    ),
    missing_one(
        "gloo-stopped-inside",
        "a rank came first and was stopped inside the collective",
        train(ranks=3, op="all_reduce_after_a_stop", late=1, instead="stopped_inside", rank1=Waits.STOPPED),
        missing(1, 3, "peer.stopped"),
        attach=("rank0", "rank1"),
        slow=True,
    ),
    missing_one(
        "gloo-gil",
        "a rank waits for the GIL, which an extension keeps while it sleeps",
        train(ranks=2, late=1, instead="gil", rank1_holder=SLEEPS),
        missing(1, 2, "lock.gil", culprit=("rank1", "rank1.holder"), may_name=("rank1.holder",)),
        attach=("rank0", "rank1"),
    ),
    missing_one(
        "gloo-pipe",
        "a rank reads from a pipe whose other end is with a child that does nothing",
        train(late=1, instead="read_pipe", rank1=Waits.READ, rank1_child=SLEEPS),
        missing(1, 3, ("ipc.peer_silent", "child.stuck"), may_name=("rank1.child",)),
    ),
    missing_one(
        "gloo-own-pipe",
        "a rank reads from a pipe of which it holds the only write end",
        train(ranks=2, op="broadcast", late=0, instead="read_own_pipe", rank0=Waits.READ),
        missing(0, 2, ("ipc.peer_silent", "ipc.no_eof")),
        slow=True,
    ),
    silent_server("unix-socket", "read_socket", "unix"),
    silent_server("tcp-socket", "read_tcp", "tcp"),
    missing_one(
        "gloo-full-pipe",
        "a rank writes to a full pipe; the child at the other end does not read",
        train(ranks=2, late=1, instead="write_full_pipe", rank1=Waits.WRITE, rank1_child=SLEEPS),
        missing(1, 2, ("ipc.pipe_full", "child.stuck"), may_name=("rank1.child",)),
    ),
    missing_one(
        "gloo-data-loader",
        "a rank waits for its data loader; one of the two workers sleeps in __getitem__",
        train(ranks=2, late=1, instead="data_loader", rank1=Waits.POLL, rank1_worker=SLEEPS),
        missing(1, 2, "worker.stuck", may_name=("rank1.worker",)),
        attach=("rank0", "rank1.worker", "rank1"),
    ),
    missing_one(
        "gloo-child",
        "a rank waits for a child that sleeps",
        train(ranks=2, op="barrier", late=0, instead="child", rank0=Waits.CHILD),
        missing(0, 2, ("child.stuck", "timer"), may_name=("rank0/*",)),
        slow=True,
    ),
    missing_one(
        "gloo-spin",
        "a rank spins in Python",
        train(ranks=2, late=1, instead="spin", rank1=Waits.RUNNING),
        busy(MISSING, ("cpu.spin", "cpu.busy"), culprit=("rank1",), victims=("rank0",)),
    ),
    missing_one(
        "gloo-compute",
        "a rank multiplies matrices",
        train(ranks=2, op="barrier", late=0, instead="compute", rank0=Waits.RUNNING),
        busy(MISSING, ("cpu.busy", "cpu.spin"), culprit=("rank0",), victims=("rank1",)),
        slow=True,
    ),
    missing_one(
        "gloo-compile",
        "a rank waits for a compiler that works",
        train(ranks=2, late=1, instead="compile_kernel", path="{scratch}", rank1=Waits.COMPILER),
        busy(MISSING, "compile.running", culprit=("rank1",), victims=("rank0",), may_name=("rank1/*",)),
    ),
    missing_one(
        "gloo-stale-lock",
        "a rank waits for the lock file of a builder that is gone",
        train(ranks=2, late=1, instead="stale_baton", path="{scratch}/lock", rank1=SLEEPS),
        missing(1, 2, "file_lock.stale", culprit=("rank1",), victims=("rank0",)),
    ),
    # -- the same seen from other calls ----------------------------------------------------------------------
    missing_one(
        "gloo-async",
        "async_op=True and wait()",
        train(ranks=2, op="async_wait", late=1, rank1=SLEEPS),
        missing(1, 2, "timer"),
    ),
    missing_one(
        "gloo-monitored-barrier",
        "monitored_barrier, which waits for one rank after the other",
        train(ranks=3, op="monitored_barrier", late=2, rank2=SLEEPS),
        missing(2, 3, "timer", missing=None),
        slow=True,
    ),
    missing_one(
        "gloo-object",
        "all_gather_object",
        train(ranks=2, op="all_gather_object", late=0, rank0=SLEEPS),
        missing(0, 2, "timer"),
        slow=True,
    ),
    missing_one(
        "gloo-ddp",
        "the reduction of a DDP backward pass",
        train(ranks=2, op="ddp_backward", late=1, instead="ddp_then_sleep", launch="siblings", rank1=SLEEPS),
        missing(1, 2, "timer"),
        slow=True,
    ),
    missing_one(
        "gloo-side-thread",
        "the main thread joins one that is in the collective",
        train(ranks=2, op="side_thread", late=1, rank0_comm=Waits.LOCK, rank1=SLEEPS),
        missing(1, 2, "timer"),
        slow=True,
    ),
    missing_one(
        "gloo-subgroup",
        "rank 1 sleeps, rank 0 waits for it in a group of two, the others for rank 0 in the world",
        train(ranks=4, op="subgroup_waits", rank1=SLEEPS),
        missing(1, 4, "timer", missing=None),
        attach=("rank3", "rank0"),
    ),
    missing_one(
        "gloo-one-holds-two-miss",
        "rank 1 sleeps with a file lock that rank 2 wants, so two ranks are missing and one is to blame",
        train(op="one_holds_two_miss", path="{scratch}/lock", rank1=SLEEPS, rank2=Waits.FILE_LOCK),
        missing(1, 3, "timer", victims=("rank0",), holder=None, missing=frozenset({1, 2})),
        attach=("rank0", "rank2", "rank1"),
    ),
    missing_one(
        "gloo-lock-and-collective",
        "rank 0 waits in all_reduce with a file lock that rank 1 wants before it comes",
        train(ranks=2, op="lock_then_collective", path="{scratch}/lock", rank1=Waits.FILE_LOCK),
        hung(
            (MISSING, "lock.cycle", "file_lock.held"),
            ("lock.cycle", "file_lock.held"),
            parties=("rank0", "rank1"),
            cycle=True,
        ),
    ),
    missing_one(
        "gloo-beside-healthy",
        "a rank sleeps; another job on the same machine trains at full speed",
        train(ranks=2, late=1, launch="siblings", rank1=SLEEPS),
        missing(1, 2, "timer"),
        before=(
            another_job(train(ranks=2, op="full_speed", launch="siblings", rank0=Waits.ANY, rank1=Waits.ANY)),
        ),
        slow=True,
    ),
    missing_one(
        "gloo-never-started",
        "the last rank was never started: the others wait in init_process_group",
        Program(
            argv=(PYTHON, "{programs}/join_job.py"),
            members={"rank0": Waits.SLEEP, "rank1": Waits.POLL},
            ranks=(0, 1),
            world_size=3,
        ),
        hung(
            "rendezvous.missing_rank",
            ("rendezvous.missing_rank", None, "unknown"),
            absent=(2,),
            victims=("rank0", "rank1"),
        ),
    ),
    missing_one(
        "gloo-most-never-started",
        "three of eight ranks were started: all five others are missing",
        Program(
            argv=(PYTHON, "{programs}/join_job.py"),
            members={"rank0": Waits.ANY, "rank1": Waits.POLL, "rank2": Waits.POLL},
            ranks=(0, 1, 2),
            world_size=8,
        ),
        hung(
            "rendezvous.missing_rank",
            ("rendezvous.missing_rank", None, "unknown"),
            absent=(3, 4, 5, 6, 7),
            victims=("rank0", "rank1", "rank2"),
        ),
    ),
    # -- the program of a rank is over, its interpreter is not ---------------------------------------------------
    *(
        missing_one(
            f"gloo-{instead.replace('_', '-')}",
            summary,
            train(late=1, instead=instead, launch="siblings"),
            missing(1, 3, "lock.teardown", says=("the end of its program",)),
            attach=("rank0", "rank1"),
        )
        for instead, summary in (
            ("raise_beside_a_thread", "a rank has raised, and waits for a thread that waits for an event"),
            ("exit_into_a_handler", "a rank has ended, and a function of atexit waits for an event"),
            ("exit_with_a_pool", "a rank has ended, and waits for a piece of work in a pool of threads"),
        )
    ),
    missing_one(
        "gloo-exit-leaving-a-child",
        "a rank has ended, and what it had forked sleeps on with its connections",
        without_rank1(
            train(late=1, instead="exit_leaving_a_child", launch="siblings", rank1_left=Waits.SLEEP)
        ),
        hung(
            MISSING,
            "peer.exited",
            absent=(1,),
            victims=("rank0", "rank2"),
            missing=frozenset({1}),
            says=("which it had forked",),
        ),
        attach=("rank0", "rank2", "rank1.left"),
    ),
    # -- everybody came, but not to the same thing -----------------------------------------------------------
    parties(
        "gloo-other-op",
        "one rank calls broadcast, the others all_reduce",
        ("collective.op_mismatch",),
        ranks=3,
        op="other_op",
    ),
    parties(
        "gloo-gather-for-reduce",
        "one rank calls all_gather_into_tensor, the other all_reduce",
        ("collective.op_mismatch",),
        ranks=2,
        op="gather_for_reduce",
        slow=True,
    ),
    parties(
        "gloo-one-call-more",
        "rank 1 does one all_reduce more, the others are in the barrier that follows",
        ("collective.op_mismatch",),
        ranks=3,
        op="one_call_more",
        slow=True,
    ),
    parties(
        "gloo-opposite-groups",
        "two ranks use two groups in opposite order",
        ("collective.group_cycle",),
        ranks=2,
        op="opposite_groups",
        cycle=True,
    ),
    parties(
        "gloo-both-receive",
        "two ranks both receive first",
        ("p2p.cycle",),
        ranks=2,
        op="both_receive",
        cycle=True,
    ),
)
