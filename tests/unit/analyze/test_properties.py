"""What holds for any evidence, however odd."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pyhangtrace.analyze import analyze, more_time_wanted, outsiders_wanted
from pyhangtrace.analyze.components import components
from pyhangtrace.model.codec import pack, report_from_json, report_to_json, unpack
from pyhangtrace.model.evidence import Evidence, Look
from pyhangtrace.model.kinds import FdKind, FrameKind, Part, Role, State
from pyhangtrace.model.open_files import FdFacts, FileLock, Holder, LockFile, SocketFacts
from pyhangtrace.model.processes import ProcessFacts, RankClaim
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import LockFacts, ThreadSample
from tests.unit.analyze import builders as b

PIDS = st.sampled_from([0, 1, 100, 101, 102, 103, 300, 900])
TIDS = st.sampled_from([100, 101, 102, 103, 201, 202, 300, 900])
MAYBE_SECONDS = st.one_of(st.none(), st.floats(0, 1e5))

FUNCTIONS = (
    *(
        "all_reduce",
        "broadcast",
        "recv",
        "wait",
        "Barrier.wait",
        "get",
        "c10d::Work::wait(long)",
        "take_gil",
        "",
    ),
    *(
        "init_process_group",
        "_worker",
        "FileBaton.wait",
        "Thread.join",
        "_try_get_data",
        "main",
        "run_forever",
    ),
)
FILES = (
    None,
    "",
    b.C10D,
    b.THREADING,
    b.SYNCHRONIZE,
    "queue.py",
    "/x/torch/utils/file_baton.py",
    "/job/train.py",
    "/x/torch/utils/data/dataloader.py",
    "asyncio/base_events.py",
    "concurrent/futures/thread.py",
)

FRAMES = st.builds(
    Frame,
    kind=st.sampled_from(FrameKind),
    function=st.sampled_from(FUNCTIONS),
    file=st.sampled_from(FILES),
    line=st.one_of(st.none(), st.integers(0, 3)),
)

LOCKS = st.builds(
    LockFacts,
    kind=st.sampled_from(
        [
            "mutex_normal",
            "rwlock_read",
            "join",
            "condition",
            "semaphore",
            "python_lock",
            "python_rlock",
            "gil",
            "futex",
        ]
    ),
    address=st.integers(0, 3),
    uaddr=st.integers(0, 3),
    op=st.just(0),
    value=st.just(0),
    timeout=st.booleans(),
    owner_tid=st.one_of(st.none(), TIDS, st.just(0)),
    owner_exact=st.booleans(),
    shared_key=st.one_of(st.none(), st.just((1, 2, 3))),
)

THREADS = st.builds(
    ThreadSample,
    pid=PIDS,
    tid=TIDS,
    comm=st.sampled_from(["python3", "pt_gloo_runloop", "QueueFeederThre", ""]),
    state=st.sampled_from(["S", "R", "D", "T", "t", "Z", "X", "?"]),
    syscall=st.sampled_from(
        [None, -1, 0, 1, 7, 23, 34, 42, 43, 45, 58, 61, 72, 73, 202, 230, 232, 247, 9999]
    ),
    args=st.sampled_from([(), (5,), (101, 7, 0, 0, 0, 0), (0xFFFFFFFF, 0, 0, 0, 0, 0), (2**64 - 1,) * 6]),
    run_ns=st.one_of(st.none(), st.integers(0, 3)),
    slices=st.one_of(st.none(), st.integers(0, 3)),
    running=st.booleans(),
    asleep_for_s=MAYBE_SECONDS,
    holds_gil=st.booleans(),
    frames=st.lists(FRAMES, max_size=4).map(tuple),
    lock=st.one_of(st.none(), LOCKS),
    io_fds=st.lists(st.integers(3, 6), max_size=3).map(tuple),
    timeout_s=MAYBE_SECONDS,
    remaining_s=MAYBE_SECONDS,
)

HOLDERS = st.lists(
    st.builds(Holder, pid=PIDS, fd=st.integers(0, 6), mode=st.sampled_from(["r", "w", "rw", ""])), max_size=3
).map(tuple)

FDS = st.builds(
    FdFacts,
    pid=PIDS,
    fd=st.integers(3, 6),
    kind=st.sampled_from(FdKind),
    target=st.just("x"),
    inode=st.one_of(st.none(), st.integers(1, 3)),
    others=HOLDERS,
    peers=HOLDERS,
    socket=st.one_of(
        st.none(),
        st.builds(SocketFacts, family=st.just("unix"), state=st.sampled_from(["LISTEN", "ESTABLISHED"])),
    ),
    watches=st.lists(st.integers(3, 6), max_size=2).map(tuple),
    holders_complete=st.booleans(),
)

LOOKS = st.lists(
    st.builds(
        Look,
        at_s=st.just(0.0),
        threads=st.lists(THREADS, max_size=10).map(tuple),
        fds=st.lists(FDS, max_size=5).map(tuple),
        file_locks=st.lists(
            st.builds(
                FileLock,
                kind=st.sampled_from(["flock", "posix", "ofd"]),
                access=st.just("write"),
                pid=st.one_of(PIDS, st.just(-1)),
                device=st.just(1),
                inode=st.integers(1, 3),
                waiters=st.lists(PIDS, max_size=3).map(tuple),
                openers=st.lists(PIDS, max_size=3).map(tuple),
            ),
            max_size=2,
        ).map(tuple),
        lock_files=st.lists(
            st.builds(
                LockFile,
                path=st.just("/lock"),
                exists=st.booleans(),
                pid=PIDS,
                openers=st.lists(PIDS, max_size=2).map(tuple),
                older_than_job=st.one_of(st.none(), st.booleans()),
            ),
            max_size=2,
        ).map(tuple),
    ),
    min_size=1,
    max_size=3,
).map(lambda looks: tuple(replace(look, at_s=index * 0.1) for index, look in enumerate(looks)))

PROCESSES = st.lists(
    st.builds(
        ProcessFacts,
        pid=PIDS,
        ppid=PIDS,
        role=st.sampled_from(Role),
        comm=st.sampled_from(["python3", "cc1plus"]),
        title=st.sampled_from(["a", "b"]),
        exe=st.sampled_from(["", "/e"]),
        state=st.sampled_from(["S", "R", "Z", "T", "?"]),
        exit_code=st.one_of(st.none(), st.sampled_from([0, 9, 256])),
        claims=st.lists(
            st.builds(
                RankClaim,
                source=st.sampled_from(["environ RANK", "title", "start order"]),
                rank=st.one_of(st.none(), st.integers(-1, 4)),
                world_size=st.one_of(st.none(), st.sampled_from([0, 2, 4])),
            ),
            max_size=2,
        ).map(tuple),
        gone=st.booleans(),
        cpu_s_in_window=MAYBE_SECONDS,
    ),
    max_size=6,
    unique_by=lambda process: process.pid,
)

EVIDENCE = st.builds(b.evidence, PROCESSES, LOOKS)

relaxed = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # To shrink such evidence takes minutes, more than a test has.
    phases=[Phase.explicit, Phase.generate],
)


@relaxed
@given(EVIDENCE)
def test_any_evidence_gives_a_report(evidence: Evidence) -> None:
    report = analyze(evidence)
    assert report.verdict.summary
    assert report_from_json(report_to_json(report)) == report
    assert 0.0 <= more_time_wanted(evidence) <= 3.0
    assert all(pid > 0 for pid in outsiders_wanted(evidence).pids)


@relaxed
@given(EVIDENCE)
def test_saved_evidence_gives_the_same_report(evidence: Evidence) -> None:
    assert report_to_json(analyze(unpack(pack(evidence)))) == report_to_json(analyze(evidence))


@relaxed
@given(EVIDENCE)
def test_who_is_accused_is_on_the_chain(evidence: Evidence) -> None:
    report = analyze(evidence)
    verdict = report.verdict
    waits = {wait.id: wait for wait in report.waits}
    assert {*verdict.chain, *verdict.cycle} <= set(waits)
    on_chain = {waits[one].pid for one in (*verdict.chain, *verdict.cycle)}
    led_to = {holder.pid for one in verdict.chain for holder in waits[one].candidates}
    led_to |= {wait.holder.pid for one in verdict.chain if (wait := waits[one]).holder is not None}
    over = {process.pid for process in report.processes if process.state in ("Z", "X", "gone")}
    for who in verdict.culprits:
        if verdict.state is State.ENDED:
            # Nobody waits for it, and it waits for nothing any more.
            assert who.pid in over
        elif who.part is Part.CULPRIT and who.pid is not None:
            # One of several missing ranks is beside the chain, but a candidate of a wait on it.
            assert who.pid in on_chain | led_to
    if verdict.state in (State.RUNNING, State.IDLE):
        assert verdict.culprits == ()
    if verdict.state is State.UNKNOWN:
        assert not any(who.part is Part.CULPRIT for who in verdict.culprits)
    accused = {(who.pid, who.tid) for who in verdict.culprits if who.part is Part.CULPRIT}
    assert not accused & {(victim.pid, victim.tid) for victim in verdict.victims}


@relaxed
@given(EVIDENCE, st.randoms(use_true_random=False))
def test_order_of_the_evidence_does_not_matter(evidence: Evidence, random: object) -> None:
    def shuffled(items: tuple[object, ...]) -> tuple[object, ...]:
        order = list(items)
        random.shuffle(order)  # type: ignore[attr-defined]
        return tuple(order)

    # The first of two samples of one thread in one look counts, so leave those in order.
    looks = []
    for look in evidence.looks:
        unique = {(thread.pid, thread.tid): thread for thread in reversed(look.threads)}
        looks.append(replace(look, threads=tuple(unique.values())))
    plain = replace(evidence, looks=tuple(looks))
    mixed = replace(
        plain,
        processes=shuffled(plain.processes),
        looks=tuple(replace(look, threads=shuffled(look.threads)) for look in looks),
    )
    assert analyze(mixed).verdict == analyze(plain).verdict


@given(st.dictionaries(st.integers(0, 12), st.lists(st.integers(0, 12), max_size=4)))
def test_components_agree_with_reachability(edges: dict[int, list[int]]) -> None:
    nodes = sorted({*edges, *(target for targets in edges.values() for target in targets)})
    graph = {(node, 0): tuple((target, 0) for target in edges.get(node, ())) for node in nodes}

    def reachable(start: tuple[int, int]) -> set[tuple[int, int]]:
        found: set[tuple[int, int]] = set()
        todo = [start]
        while todo:
            for target in graph[todo.pop()]:
                if target not in found:
                    found.add(target)
                    todo.append(target)
        return found

    reach = {node: reachable(node) for node in graph}
    found = components(sorted(graph), lambda node: graph[node])
    assert sorted(node for component in found for node in component) == sorted(graph)
    place = {node: index for index, component in enumerate(found) for node in component}
    for one in graph:
        for other in graph:
            together = one == other or (other in reach[one] and one in reach[other])
            assert (place[one] == place[other]) == together
            if other in reach[one]:
                assert place[other] <= place[one]


def test_a_chain_of_ten_thousand_waits_is_no_problem() -> None:
    count = 10_000
    threads = [b.on_mutex(100, 1000 + number, owner=1001 + number) for number in range(count)]
    last = b.asleep(100, 1000 + count, seconds=3600)
    report = analyze(b.evidence([b.process(100)], b.twice(*threads, last)))
    assert report.verdict.state is State.HUNG
    assert len(report.verdict.chain) == count + 1
