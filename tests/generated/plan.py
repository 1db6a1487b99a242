"""A made-up job as plain data: what a seed stands for. Drawing one reads nothing but the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

from tests.generated import links
from tests.generated.links import Place


class Launch(Enum):
    """How the ranks come to be."""

    FORK = "fork"
    SPAWN = "spawn"
    SIBLINGS = "siblings"


class Meeting(Enum):
    """Where the ranks wait for each other."""

    BARRIER = "a barrier of multiprocessing"
    GLOO = "a collective of PyTorch"
    FILE_LOCK = "a file lock that the late one holds"
    RECEIVE = "a connection to the late one"


class Health(Enum):
    """What a job does that is well."""

    STEPS = "steps with small pauses of random length"
    STRAGGLER = "one rank needs two seconds a step"
    FED = "the first rank hands out work over queues every so often"
    WAITING = "all but the first wait for work, and the first for a connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Actor `k` waits for actor `k + 1` by this."""

    kind: str
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One job. ``steps`` and ``end`` say what the late rank is in; with ``back_to`` the last actor waits for that
    one, so that there is a cycle, and ``end`` says by what.
    """

    seed: int
    launch: Launch
    meeting: Meeting
    op: str
    ranks: int
    numbered: bool  # whether ranks are told their number
    late: int | None
    steps: tuple[Step, ...] = ()
    end: str = "sleep"
    back_to: int | None = None
    health: Health | None = None
    noise: tuple[str, ...] = ()  # in each rank
    noise_before: bool = True  # whether it starts before the rest, in order of threads
    bystander: bool = False
    attach: int = 0  # to which of those that may be attached to, counted round

    @property
    def needs_torch(self) -> bool:
        return self.meeting is Meeting.GLOO

    def processes(self) -> tuple[int, ...]:
        """For each actor, the number of its process: 0 is the late rank itself."""
        numbers = [0]
        for step in self.steps:
            numbers.append(numbers[-1] + (0 if step.place.same_process else 1))
        return tuple(numbers)

    def foreign_from(self) -> int | None:
        """The first actor of a process that was there before, None if there is none."""
        for index, step in enumerate(self.steps):
            if step.place is Place.FOREIGN:
                return index + 1
        return None


OPS = ("all_reduce", "broadcast", "all_gather", "barrier")

# A name of `noise.KINDS` each; here as data, so that drawing imports no templates.
NOISE = (
    "pool",
    "timer",
    "server",
    "heartbeat",
    "talk",
    "queue",
    "counter",
    "asyncio",
    "child",
    "patrol",
)


def draw(seed: int, *, torch: bool = True) -> Plan:
    """The job of a seed; without `torch` one that needs none."""
    rng = random.Random(seed)
    launch = rng.choice(tuple(Launch))
    apart = (Meeting.FILE_LOCK, Meeting.RECEIVE)
    meetings = apart if launch is Launch.SIBLINGS else (Meeting.BARRIER, Meeting.BARRIER)
    meeting = rng.choice((*meetings, Meeting.GLOO)) if torch else rng.choice(meetings)
    ranks = rng.randint(2, 4)
    numbered = launch is Launch.SIBLINGS or meeting is Meeting.GLOO or rng.random() < 0.7
    noise = tuple(rng.sample(NOISE, rng.choice((0, 0, 1, 2, 3))))
    bystander = rng.random() < 0.2
    attach = rng.randrange(1000)
    common = {
        "seed": seed,
        "launch": launch,
        "meeting": meeting,
        "op": rng.choice(OPS),
        "ranks": ranks,
        "numbered": numbered,
        "noise": noise,
        "noise_before": rng.random() < 0.7,
        "bystander": bystander,
        "attach": attach,
    }
    if rng.random() < 0.15:
        health = [Health.STEPS, Health.STRAGGLER]
        if launch is not Launch.SIBLINGS:
            # In these, ranks wait in queues: a meeting is only what they did before.
            health += [Health.FED, Health.WAITING]
        if meeting in apart:
            # There is no meeting that could be repeated.
            common["meeting"] = Meeting.GLOO if torch else Meeting.BARRIER
            if not torch:
                common["launch"] = Launch.FORK
        return Plan(late=None, health=rng.choice(health), **common)  # type: ignore[arg-type]
    late = rng.randrange(ranks)
    steps = _draw_steps(rng, meeting)
    end, back_to = _draw_end(rng, steps)
    return Plan(late=late, steps=steps, end=end, back_to=back_to, **common)  # type: ignore[arg-type]


def _draw_steps(rng: random.Random, meeting: Meeting) -> tuple[Step, ...]:
    steps: list[Step] = []
    foreign = False
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))):
        pairs = [(one, place) for one in links.LINKS for place in one.places]
        if foreign:
            # Another program started that one: it takes no part of ours before ours is there.
            pairs = [(one, place) for one, place in pairs if place is not Place.FOREIGN]
        if meeting in (Meeting.FILE_LOCK, Meeting.RECEIVE):
            # A forked child would inherit the lock or the connection that the others wait for.
            pairs = [(one, place) for one, place in pairs if place not in (Place.FORK, Place.PROCESS)]
        one, place = rng.choice(pairs)
        foreign = foreign or place is Place.FOREIGN
        steps.append(Step(kind=one.kind, place=place))
    return tuple(steps)


def _draw_end(rng: random.Random, steps: tuple[Step, ...]) -> tuple[str, int | None]:
    last = len(steps)
    places = [Place.EXEC, *(step.place for step in steps)]
    first_of_process = not places[last].same_process
    # No way back over a border that was crossed before our program began.
    nearest = max([0, *(index + 1 for index, step in enumerate(steps) if step.place is Place.FOREIGN)])
    if last > nearest and rng.random() < 0.35:
        back_to = rng.randrange(nearest, last)
        inside = all(place.same_process for place in places[back_to + 1 : last + 1])
        kinds = (*links.BACK_INSIDE, *links.BACK_OUTSIDE) if inside else links.BACK_OUTSIDE
        return rng.choice(kinds), back_to
    ends = [one.kind for one in links.ENDS if first_of_process or not one.alone]
    return rng.choice(ends), None
