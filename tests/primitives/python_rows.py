"""The rows of the table for Python: which primitive, who holds it, and what a report can know of that.

A row says what memory records, not what one would like: where nothing records a holder, naming one is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tests.hangs.facts import Waits


class Owner(Enum):
    """What a report can say of who holds the object."""

    RECORDED = "recorded"
    BY_FRAMES = "by frames"  # nothing records it, but a frame of one thread says so: likely
    NOBODY = "not recorded"
    GONE = "gone"  # recorded, and no such thread exists any more
    PROCESS = "a process"  # recorded is a process, not which thread of it


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonRow:
    """One primitive. `name` and `mode` are the arguments of `programs/python`.

    `kinds`: of the wait, any of them is right; none: it need not be told. `addressed`: the program says where the
    object is; else `called` is its name in the report. `says`: words that the evidence of the wait must have.
    `ring`: members of a cycle to try too, 0 for none; `members`: the row is a cycle by itself, of these. `proof`:
    what the cycle's confidence must be. `states`: of the verdict, any of them is right. `may_name`: may be called
    the culprit, though nothing records it. `since`: the first Python that has it.
    """

    name: str
    kinds: tuple[str, ...] = ()
    owner: Owner = Owner.RECORDED
    mode: str = "held"
    addressed: bool = True
    called: str | None = None
    says: tuple[str, ...] = ()
    timed: bool = False
    ring: int = 0
    members: tuple[str, ...] = ()
    proof: str = "proven"
    waiter: Waits = Waits.LOCK
    holder: Waits | None = Waits.SLEEP
    states: tuple[str, ...] = ("hung",)
    may_name: tuple[str, ...] = ()
    free_threaded: bool = True  # there is such a thing in a build without GIL
    since: tuple[int, int] = (3, 8)

    @property
    def identifier(self) -> str:
        """Unique among the rows."""
        return self.name


_ANY_STATE = ("hung", "idle", "unknown", "running")
_WITHHELD = ("idle", "unknown")
# A child that sleeps may be meant to.
_CHILD = ("hung", "unknown")


def _threading() -> list[PythonRow]:
    frames, nobody = Owner.BY_FRAMES, Owner.NOBODY
    lock, condition = ("python_lock",), ("condition",)
    row = PythonRow
    return [
        row(name="Lock", kinds=lock, owner=frames, ring=2, proof="likely"),
        row(name="Lock timed", kinds=lock, owner=frames, timed=True, ring=2, proof="likely"),
        row(name="Lock by acquire", kinds=lock, owner=nobody, states=_ANY_STATE),
        row(name="PyMutex", kinds=lock, owner=nobody, states=_ANY_STATE, since=(3, 13)),
        row(name="RLock", kinds=lock, ring=3),
        row(name="RLock by acquire", kinds=lock, ring=2),
        row(name="RLock timed", kinds=lock, timed=True, ring=2, proof="likely"),
        row(name="Condition", kinds=condition, owner=nobody, states=_WITHHELD),
        row(
            name="Condition wait_for timed",
            kinds=condition,
            owner=nobody,
            timed=True,
            states=_WITHHELD,
        ),
        row(name="Condition entered", kinds=lock, ring=2),
        row(name="Condition of a Lock entered", kinds=lock, owner=frames, ring=2, proof="likely"),
        row(name="Condition notified", kinds=lock),
        row(name="Event", kinds=condition, owner=nobody, states=_WITHHELD),
        row(name="Semaphore", kinds=("semaphore",), owner=nobody, states=_WITHHELD),
        row(name="BoundedSemaphore", kinds=("semaphore",), owner=nobody, states=_WITHHELD),
        row(
            name="Barrier",
            kinds=("barrier",),
            owner=nobody,
            states=_WITHHELD,
            says=("1 of 3",),
        ),
        row(name="Thread.join", kinds=("join",), addressed=False, called="Thread-1", ring=3),
        row(
            name="Thread.join timed",
            kinds=("join",),
            addressed=False,
            called="Thread-1",
            timed=True,
            ring=2,
            proof="likely",
        ),
        row(name="Queue.get", kinds=("queue",), owner=nobody, says=("0 in it",), states=_WITHHELD),
        row(name="Queue.put", kinds=("queue",), owner=nobody, says=("1 of 1",), states=_WITHHELD),
        row(name="Queue.join", kinds=("queue",), owner=nobody, says=("1 unfinished",), states=_WITHHELD),
        row(name="PriorityQueue.get", kinds=("queue",), owner=nobody, says=("0 in it",), states=_WITHHELD),
        row(name="SimpleQueue.get", kinds=("queue",), owner=nobody, states=_WITHHELD),
        row(name="logging handler", kinds=lock, ring=2),
        row(name="import", kinds=("import_lock",), addressed=False, called="module0"),
        row(name="GIL", mode="alone", kinds=("gil",), addressed=False, free_threaded=False, waiter=Waits.ANY),
    ]


def _pools() -> list[PythonRow]:
    row = PythonRow
    future = ("condition",)
    return [
        row(name="Future.result", kinds=future, ring=2),
        row(name="Future.result timed", kinds=future, timed=True, ring=2, proof="likely"),
        row(name="Future.exception", kinds=future, ring=2),
        row(name="futures.wait", kinds=future, addressed=False, ring=2),
        row(name="Executor.map", kinds=future, addressed=False, ring=2),
        row(
            name="Executor.shutdown",
            kinds=("join",),
            addressed=False,
            called="ThreadPoolExecutor-0_0",
            ring=2,
        ),
        row(
            name="future that nobody completes",
            mode="alone",
            kinds=future,
            owner=Owner.NOBODY,
            holder=None,
            states=_WITHHELD,
        ),
        # Another worker may yet be started for the pool.
        row(name="future of an own pool", mode="alone", members=("member0",), proof="likely"),
    ]


def _cycles() -> list[PythonRow]:
    row = PythonRow
    both = ("member0", "member1")
    return [
        row(name="finaliser", mode="alone", members=("member0",), proof="likely"),
        row(
            name="finaliser by acquire",
            mode="alone",
            kinds=("python_lock",),
            owner=Owner.NOBODY,
            holder=None,
            states=_ANY_STATE,
        ),
        row(name="signal handler", mode="alone", members=("member0",), proof="likely"),
        row(name="GIL and mutex", mode="alone", members=both, free_threaded=False, waiter=Waits.ANY),
        row(name="import and RLock", mode="alone", members=both),
        row(name="join and Lock", mode="alone", members=both, proof="likely"),
        row(name="future and RLock", mode="alone", members=both),
        row(name="asyncio.to_thread and RLock", mode="alone", members=both),
    ]


def _exits() -> list[PythonRow]:
    row = PythonRow
    return [
        row(name="shutdown of threads", mode="alone", kinds=("join",), addressed=False),
        row(name="shutdown of a pool", mode="alone", kinds=("join",), addressed=False),
        row(
            name="after fork",
            mode="alone",
            kinds=("python_lock",),
            owner=Owner.NOBODY,
            may_name=("waiter",),
        ),
        row(
            name="RLock after fork",
            mode="alone",
            kinds=("python_lock",),
            owner=Owner.GONE,
            may_name=("waiter",),
        ),
        row(
            name="subprocess.wait",
            states=_CHILD,
            mode="alone",
            kinds=("child",),
            owner=Owner.PROCESS,
            addressed=False,
            waiter=Waits.CHILD,
        ),
        row(
            name="subprocess.communicate",
            mode="alone",
            kinds=("pipe", "poll", "child"),
            owner=Owner.PROCESS,
            addressed=False,
            waiter=Waits.POLL,
        ),
    ]


def _multiprocessing() -> list[PythonRow]:
    row = PythonRow
    nobody, semaphore = Owner.NOBODY, ("semaphore",)
    both = ("member0", "member1")

    def shared(name: str, kinds: tuple[str, ...], owner: Owner = nobody, **more: object) -> PythonRow:
        return row(name=name, mode="alone", kinds=kinds, owner=owner, **more)  # type: ignore[arg-type]

    def managed(name: str, **more: object) -> PythonRow:
        """The other end of the socket is the manager's process; who has the lock is known by its threads."""
        waits = {"waiter": Waits.READ, "holder": Waits.ANY}
        return shared(name, ("socket",), Owner.PROCESS, addressed=False, **waits, **more)

    return [
        shared("multiprocessing.Lock", semaphore, Owner.BY_FRAMES, addressed=False),
        # Nothing tells this from a semaphore of one.
        shared(
            "multiprocessing.Lock by acquire",
            semaphore,
            addressed=False,
            may_name=("holder",),
            states=_ANY_STATE,
        ),
        shared("multiprocessing.Lock spawned", semaphore, Owner.BY_FRAMES, addressed=False),
        shared("multiprocessing.RLock", semaphore, Owner.RECORDED, addressed=False),
        shared("multiprocessing.RLock of a thread", semaphore, Owner.RECORDED, addressed=False),
        row(name="multiprocessing.Lock ring", mode="alone", members=both, proof="likely"),
        row(name="multiprocessing.RLock ring", mode="alone", members=both),
        shared("multiprocessing.Semaphore", semaphore, addressed=False, states=_WITHHELD),
        shared("multiprocessing.Event", ("condition",), addressed=False, states=_WITHHELD),
        shared("multiprocessing.Condition", ("condition",), addressed=False, states=_WITHHELD),
        managed("Manager.RLock", may_name=("keeper",), says=("manager of multiprocessing",)),
        managed("Manager.RLock of who computes", may_name=("keeper",), states=("busy", "running")),
        managed("Manager.Lock", states=("unknown",)),
        row(name="Manager.RLock ring", mode="alone", members=both),
        # Processes of one parent are a group: the one that has not come is missing.
        shared("multiprocessing.Barrier", ("collective",), addressed=False, may_name=("holder",)),
        shared(
            "multiprocessing.Queue.get",
            ("queue", "pipe"),
            addressed=False,
            waiter=Waits.READ,
            states=_ANY_STATE,
        ),
        shared("multiprocessing.Queue.put", ("queue", "semaphore"), addressed=False, states=_ANY_STATE),
        shared(
            "multiprocessing.SimpleQueue.get",
            ("queue", "pipe"),
            addressed=False,
            waiter=Waits.READ,
            states=_ANY_STATE,
        ),
        shared("multiprocessing.Pipe", ("pipe", "socket"), Owner.PROCESS, addressed=False, waiter=Waits.READ),
        shared("Process.join", ("child",), Owner.PROCESS, addressed=False, waiter=Waits.CHILD, states=_CHILD),
        shared("Pool.map", ("queue",), Owner.PROCESS, addressed=False),
        shared("Pool.apply_async", ("queue",), Owner.PROCESS, addressed=False),
        shared("Pool.join", ("queue",), Owner.PROCESS, addressed=False),
        shared("ProcessPoolExecutor", ("queue",), Owner.PROCESS, addressed=False),
        shared("ProcessPoolExecutor.shutdown", ("queue",), Owner.PROCESS, addressed=False),
        shared("end of a pool of processes", ("queue",), Owner.PROCESS, addressed=False),
    ]


def _asyncio() -> list[PythonRow]:
    def row(name: str, *says: str, **more: object) -> PythonRow:
        more = {"states": _WITHHELD, "holder": None, "kinds": ("poll",), "addressed": False, **more}
        return PythonRow(
            name=name,
            mode="alone",
            owner=Owner.NOBODY,
            waiter=Waits.POLL,
            says=says,
            **more,  # type: ignore[arg-type]
        )

    return [
        row("asyncio.Lock", "Lock.acquire"),
        row("asyncio.Event", "Event.wait"),
        row("asyncio.Queue", "Queue.get"),
        row("asyncio.Condition", "Condition.wait", "nothing is left to wake"),
        *(
            row(
                f"asyncio.{name}",
                said,
                "nothing is left to wake",
                kinds=(kind,),
                addressed=True,
                states=("hung",),
            )
            for name, said, kind in (
                ("Semaphore", "0 permits left", "semaphore"),
                ("Queue.put", "1 of 1 in it", "queue"),
                ("Queue.join", "1 unfinished", "queue"),
            )
        ),
        row(
            "asyncio.Barrier",
            "2 of 3 have come",
            kinds=("barrier",),
            addressed=True,
            states=("hung",),
            since=(3, 11),
        ),
        row("asyncio.gather", "gather of 2"),
        row("asyncio.wait_for"),
        row(
            "asyncio stream",
            "StreamReader._wait_for_data",
            "could be made ready by pid",
            holder=Waits.SLEEP,
            states=("idle",),
        ),
        row(
            "asyncio task asking for its own end",
            "naps in a loop that asks `done()`",
            kinds=("condition",),
            states=("unknown",),
        ),
        PythonRow(name="asyncio cycle", mode="alone", members=("waiter",), waiter=Waits.POLL, proof="likely"),
        PythonRow(
            name="asyncio.to_thread",
            mode="alone",
            kinds=("condition",),
            owner=Owner.BY_FRAMES,
            addressed=False,
            waiter=Waits.POLL,
        ),
        PythonRow(
            name="asyncio and a process pool",
            mode="alone",
            kinds=("queue",),
            owner=Owner.PROCESS,
            addressed=False,
            waiter=Waits.POLL,
        ),
        *(
            PythonRow(name=name, mode="alone", members=("waiter",), waiter=Waits.POLL, proof="likely")
            for name in (
                "asyncio.Lock ring",
                "asyncio.Lock ring behind a server",
                "asyncio.Condition and Lock",
                "asyncio.Lock in itself",
                "asyncio.BoundedSemaphore ring",
            )
        ),
        PythonRow(name="result of its own loop", mode="alone", members=("waiter",), proof="likely"),
        # It may stop trying.
        PythonRow(
            name="result of its own loop, retried",
            mode="alone",
            members=("waiter",),
            proof="possible",
        ),
        PythonRow(
            name="asyncio.Lock by acquire",
            mode="alone",
            kinds=("python_lock",),
            owner=Owner.NOBODY,
            waiter=Waits.POLL,
            holder=None,
        ),
        PythonRow(
            name="run_coroutine_threadsafe and RLock",
            mode="alone",
            members=("member0", "member1"),
            proof="likely",
        ),
        PythonRow(
            name="task, worker and thread",
            mode="alone",
            members=("member0", "member1", "member2"),
            waiter=Waits.ANY,
            proof="likely",
        ),
    ]


def _healthy() -> list[PythonRow]:
    def row(
        name: str,
        waiter: Waits = Waits.ACCEPT,
        since: tuple[int, int] = (3, 8),
        states: tuple[str, ...] = ("idle",),
    ) -> PythonRow:
        return PythonRow(
            name=name,
            mode="alone",
            owner=Owner.NOBODY,
            addressed=False,
            waiter=waiter,
            holder=None,
            states=states,
            since=since,
        )

    return [
        row("idle thread pool"),
        row("idle queue workers"),
        row("idle event loop", Waits.POLL),
        row("asyncio task asking beside a server", Waits.POLL),
        row("idle process pool"),
        row("idle executor of processes"),
        row("idle consumers of a shared queue"),
        row("idle clients of a manager"),
        row("server in a pool"),
        row("server beyond the end"),
        row("socketserver", Waits.POLL),
        row("select of an own pair", Waits.POLL),
        # What its tasks do when their time is over, whether they try again, does not show.
        row("asyncio ring that times out", Waits.POLL, states=("idle", "unknown")),
        *(
            row(f"asyncio.{what} and a {waker}", Waits.POLL, since=(3, 11) if what == "Barrier" else (3, 8))
            for what in ("Semaphore", "Queue.put", "Queue.join", "Barrier", "Condition")
            for waker in ("timer", "thread", "socket", "signal")
        ),
        row("asyncio.Lock given up in its block", Waits.POLL),
        row("server in a worker of a loop", Waits.POLL),
        row("server in a process of a loop", Waits.POLL),
        row("result of a loop that serves", Waits.LOCK),
        row("thread of a task that serves", Waits.POLL),
    ]


ROWS: tuple[PythonRow, ...] = (
    *_threading(),
    *_pools(),
    *_cycles(),
    *_exits(),
    *_multiprocessing(),
    *_asyncio(),
    *_healthy(),
)
