"""The rows of the table: which primitive, who holds it, and what a report can know of that.

A row says what memory records, not what one would like: where nothing records a holder, naming one is an error.
Programs are in `programs`; another language gets a program, a flavour and rows of its own here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tests.hangs.facts import Waits


class Flavour(Enum):
    """A program and what it is built with."""

    C = "C"
    CPP = "C++"
    MUSL = "musl"
    MUSL_STATIC = "musl static"
    GOMP = "libgomp"
    OMP = "libomp"


class Owner(Enum):
    """What a report can say of who holds the object."""

    RECORDED = "recorded"
    BY_FRAMES = "by frames"  # nothing records it, but the frames of one thread leave no other: likely
    NOBODY = "not recorded"
    LATE = "by role"  # nothing records it, but it is the only one that has not come
    GONE = "gone"  # recorded, and no such thread exists any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One primitive. `name` and `mode` are the arguments of its program (`stage.h`).

    `kinds`: of the wait, any of them is right. `addressed`: the program knows the object's address. `ring`: members
    of a cycle to try too, 0 for none; `members`: the row is a cycle by itself, of these. `proof`: what the cycle's
    confidence must be. `may_be`: states that the verdict must be one of, where that is the point.
    """

    flavour: Flavour
    name: str
    kinds: tuple[str, ...]
    owner: Owner = Owner.RECORDED
    mode: str = "held"
    addressed: bool = True
    timed: bool = False
    ring: int = 0
    members: tuple[str, ...] = ()
    proof: str = "proven"
    waiter: Waits = Waits.LOCK
    holder: Waits | None = Waits.SLEEP
    may_be: tuple[str, ...] = ()
    options: tuple[str, ...] = ("-d", "0.1")  # of the tool: what is hung stays so, longer looks see no more

    @property
    def identifier(self) -> str:
        """Unique among the rows."""
        mode = f", {self.mode}" if self.mode != "held" else ""
        return f"{self.flavour.value}: {self.name}{mode}"


def _mutexes(flavour: Flavour, *, normal: Owner) -> list[Row]:
    """Rows that glibc and musl have in common; musl's normal mutex records no owner.

    In musl, a shared one without frames that name it is known by its content alone. Of a deadlock over priority
    inheriting mutexes the C libraries keep nothing but a thread that sleeps for ever: what it wanted lies on its stack.
    """
    ring = 2 if normal is Owner.RECORDED else 0
    shared = "proven" if ring else "likely"

    def row(name: str, owner: Owner = Owner.RECORDED, *, cycle: int = 2, **more: object) -> Row:
        cycle = cycle if owner is Owner.RECORDED else 0
        return Row(
            flavour=flavour,
            name=name,
            kinds=("mutex",),
            owner=owner,
            ring=cycle,
            **more,  # type: ignore[arg-type]
        )

    return [
        row("mutex", normal),
        row("recursive"),
        row("errorcheck"),
        row("robust"),
        row("pi", proof="likely"),
        row("shared mutex", normal),
        row("shared recursive", proof=shared),
        row("shared robust", proof=shared),
        row("shared pi", cycle=ring, proof="likely"),
        row("timedlock", normal, timed=True, proof="likely"),
        row("timedlock recursive", timed=True, proof="likely"),
        row("timedlock robust", timed=True, proof="likely"),
        row("timedlock pi", timed=True, proof="likely"),
        # Each may have let go of its own each time its wait ran out.
        row("timedlock again", normal, timed=True, proof="none", may_be=("hung", "unknown")),
        row("mtx_lock", normal),
        row("mtx_timedlock", normal, timed=True, proof="likely"),
        row("robust", mode="seized", cycle=0),
        row("mutex", Owner.GONE if ring else Owner.NOBODY, mode="left", cycle=0, holder=None),
        row("recursive", Owner.GONE if ring else Owner.NOBODY, mode="left", cycle=0, holder=None),
        row("mutex", Owner.GONE if ring else Owner.NOBODY, mode="forked", cycle=0),
    ]


def _rwlocks(flavour: Flavour, *, writer: Owner) -> list[Row]:
    ring = 2 if writer is Owner.RECORDED else 0

    def row(name: str, owner: Owner = writer, *, timed: bool = False, cycle: int = ring) -> Row:
        proof = "likely" if timed else "proven"
        return Row(
            flavour=flavour,
            name=name,
            kinds=("rwlock",) if ring else ("rwlock", "condition"),
            owner=owner,
            ring=cycle,
            timed=timed,
            proof=proof,
        )

    return [
        row("rdlock"),
        row("wrlock"),
        row("wrlock of readers", Owner.NOBODY, cycle=0),
        row("timedrdlock", timed=True),
        row("timedwrlock", timed=True),
        row("shared rdlock"),
        row("shared wrlock"),
    ]


def _signals(flavour: Flavour, *, normal: Owner) -> list[Row]:
    """Primitives that record nobody, and joins.

    In musl conditions and barriers sleep on words of the waiters' own stacks, and no frame says what it is.
    """
    known = normal is Owner.RECORDED

    def row(
        name: str, kind: str, owner: Owner = Owner.NOBODY, *, addressed: bool = True, **more: object
    ) -> Row:
        word = name in ("semaphore", "semaphore timed", "shared semaphore")
        return Row(
            flavour=flavour,
            name=name,
            kinds=(kind,) if known else (kind, "condition"),
            owner=owner,
            addressed=addressed and (known or word or kind == "mutex"),
            **more,  # type: ignore[arg-type]
        )

    return [
        row("condition", "condition"),
        row("condition timed", "condition", timed=True),
        row("condition inside", "mutex", normal, holder=Waits.LOCK),
        row("shared condition", "condition"),
        row("cnd_wait", "condition"),
        row("semaphore", "semaphore"),
        row("semaphore timed", "semaphore", timed=True),
        row("shared semaphore", "semaphore"),
        row("barrier", "barrier"),
        row("shared barrier", "barrier"),
        row("join", "join", Owner.RECORDED, addressed=False, ring=3),
        row("timedjoin", "join", Owner.RECORDED, addressed=False, timed=True, ring=3, proof="likely"),
        row("spin", "running", addressed=False, waiter=Waits.RUNNING),
    ]


def _backoff(flavour: Flavour) -> Row:
    """A cycle that both members end by themselves, again and again: never a proof."""
    return Row(
        flavour=flavour,
        name="timedlock backoff",
        mode="ring2",
        kinds=("mutex",),
        owner=Owner.NOBODY,
        addressed=False,
        members=("member0", "member1"),
        proof="none",
        waiter=Waits.ANY,
        options=(),
        may_be=("running", "slow", "unknown", "busy"),
    )


def _glibc() -> list[Row]:
    def row(name: str, kind: str, owner: Owner = Owner.RECORDED, **more: object) -> Row:
        return Row(flavour=Flavour.C, name=name, kinds=(kind,), owner=owner, **more)  # type: ignore[arg-type]

    return [
        row("condition mutex", "mutex"),
        row("adaptive", "mutex", ring=2),
        row("FILE", "mutex", ring=2),
        row("clocklock", "mutex", timed=True, ring=2, proof="likely"),
        row("clocklock pi", "mutex", timed=True, ring=2, proof="likely"),
        row("clockrdlock", "rwlock", timed=True, ring=2, proof="likely"),
        row("clockwrlock", "rwlock", timed=True, ring=2, proof="likely"),
        row("wrlock preferred", "rwlock", Owner.NOBODY),
        row("condition clock", "condition", Owner.NOBODY, timed=True),
        row("semaphore clock", "semaphore", Owner.NOBODY, timed=True),
        row("clockjoin", "join", addressed=False, timed=True, ring=3, proof="likely"),
        row("mutex and join", "join", addressed=False, ring=2),
        row("once", "once", Owner.BY_FRAMES),
        row(
            "once in once",
            "once",
            Owner.BY_FRAMES,
            mode="ring2",
            members=("member0", "member1"),
            proof="likely",
        ),
        row("once in once", "once", Owner.BY_FRAMES, mode="ring1", members=("member0",), proof="likely"),
        _backoff(Flavour.C),
    ]


def _cpp() -> list[Row]:
    def row(name: str, kind: str, owner: Owner = Owner.RECORDED, **more: object) -> Row:
        return Row(flavour=Flavour.CPP, name=name, kinds=(kind,), owner=owner, **more)  # type: ignore[arg-type]

    nobody = Owner.NOBODY
    return [
        row("mutex", "mutex", ring=2),
        row("scoped_lock", "mutex", ring=2),
        row("recursive_mutex", "mutex", ring=2),
        row("timed_mutex", "mutex", ring=2),
        row("timed_mutex for", "mutex", timed=True, ring=2, proof="likely"),
        row("recursive_timed_mutex for", "mutex", timed=True, ring=2, proof="likely"),
        row("shared_mutex", "rwlock", ring=2),
        row("shared_mutex shared", "rwlock", ring=2),
        row("shared_mutex of readers", "rwlock", nobody),
        row("shared_timed_mutex for", "rwlock", timed=True, ring=2, proof="likely"),
        row("shared_timed_mutex shared", "rwlock", timed=True, ring=2, proof="likely"),
        row("condition_variable", "condition", nobody),
        row("condition_variable for", "condition", nobody, timed=True),
        # Its own mutex and condition lie behind a pointer.
        row("condition_variable_any", "condition", nobody, addressed=False),
        row("promise", "condition", nobody, addressed=False),
        row("promise for", "condition", nobody, addressed=False, timed=True),
        row("async", "join", addressed=False),
        row("async for", "condition", nobody, addressed=False, timed=True),
        row(
            "async and mutex",
            "join",
            addressed=False,
            members=("member0", "member1"),
        ),
        row("latch", "condition", nobody),
        row("barrier", "condition", nobody, addressed=False),
        row("counting_semaphore", "condition", nobody),
        row("binary_semaphore for", "condition", nobody, timed=True),
        row("atomic", "condition", nobody),
        row("atomic_flag", "condition", nobody, addressed=False),
        row("call_once", "once", Owner.BY_FRAMES),
        row("static", "once", Owner.BY_FRAMES, addressed=False),
        *(
            row(
                name,
                "once",
                Owner.BY_FRAMES,
                mode="ring1",
                addressed=False,
                members=("member0",),
                proof="likely",
            )
            for name in ("call_once in itself", "static in itself")
        ),
        row("thread", "join", addressed=False),
        row("jthread", "join", addressed=False),
    ]


def _teams(flavour: Flavour, *locks: str) -> list[Row]:
    """OpenMP: who has not come is known by its frames; nothing records who has a lock."""

    def row(name: str, kind: str, owner: Owner) -> Row:
        return Row(flavour=flavour, name=name, kinds=(kind,), owner=owner, addressed=False)

    meetings = [row(name, "barrier", Owner.LATE) for name in ("barrier", "end")]
    return [*meetings, *(row(name, "mutex", Owner.NOBODY) for name in locks)]


ROWS: tuple[Row, ...] = (
    *_mutexes(Flavour.C, normal=Owner.RECORDED),
    *_rwlocks(Flavour.C, writer=Owner.RECORDED),
    *_signals(Flavour.C, normal=Owner.RECORDED),
    *_glibc(),
    *_cpp(),
    *_mutexes(Flavour.MUSL, normal=Owner.NOBODY),
    *_rwlocks(Flavour.MUSL, writer=Owner.NOBODY),
    *_signals(Flavour.MUSL, normal=Owner.NOBODY),
    *_mutexes(Flavour.MUSL_STATIC, normal=Owner.NOBODY),
    *_signals(Flavour.MUSL_STATIC, normal=Owner.NOBODY),
    *_teams(Flavour.GOMP, "critical", "lock", "ordered"),
    *_teams(Flavour.OMP),
    # Python has rows of its own, in `python_rows`.
)
