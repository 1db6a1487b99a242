"""Draws a plan from a seed. Nothing but the seed is read."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tests.lockgraphs.kinds import KINDS, Held, Kind, Language, Record
from tests.lockgraphs.plan import Last, Plan, Player, Process, Shape, Take, Thing

DAY_MS = 24 * 3600 * 1000
#: Seeds from here on are about file locks alone, and the threads of the processes that have them.
FILES_FROM = 100_001
#: How many threads beside those the shape is about: up to some sixty in all.
DECOYS = (0, 0, 1, 2, 3, 5, 8, 20, 45)

_WEIGHTS = {
    Shape.CYCLE: 22,
    Shape.CYCLE_APART: 14,
    Shape.SOFT_CYCLE: 14,
    Shape.TWO_CYCLES: 5,
    Shape.ITSELF: 3,
    Shape.SINK: 9,
    Shape.WORKING: 5,
    Shape.READING: 4,
    Shape.AFTER_FORK: 4,
    Shape.OWNER_GONE: 4,
    Shape.TURNS: 6,
    Shape.FED: 5,
    Shape.CROSSED: 5,
    Shape.FILE_KEPT: 5,
}


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    rng = random.Random(seed)
    language = rng.choice(tuple(Language))
    shape = rng.choices(tuple(_WEIGHTS), tuple(_WEIGHTS.values()))[0] if seed < FILES_FROM else Shape.FILES
    drawing = _Drawing(rng, language)
    _SHAPES[shape](drawing)
    if shape not in (Shape.AFTER_FORK, Shape.FILES):
        _decoys(drawing)
    return Plan(
        seed=seed,
        language=language,
        shape=shape,
        things=tuple(drawing.things),
        processes=tuple(drawing.processes),
        players=tuple(drawing.players),
    )


@dataclass(slots=True)
class _Drawing:
    """A plan in the making. Players are changed in place, by index."""

    rng: random.Random
    language: Language
    things: list[Thing] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    players: list[Player] = field(default_factory=list)

    def process(self, *, late: bool = False) -> int:
        parent = -1 if not self.processes else 0
        self.processes.append(Process(parent=parent, late=late))
        return len(self.processes) - 1

    def thing(self, kind: str, **values: object) -> str:
        name = f"o{len(self.things)}"
        self.things.append(Thing(name=name, kind=kind, **values))  # type: ignore[arg-type]
        return name

    def player(self, process: int, last: Last = Last.PAUSE, **values: object) -> int:
        name = f"t{len(self.players)}"
        self.players.append(Player(name=name, process=process, last=last, **values))  # type: ignore[arg-type]
        return len(self.players) - 1

    def change(self, index: int, **values: object) -> None:
        self.players[index] = replace(self.players[index], **values)  # type: ignore[arg-type]

    def holds(self, index: int, thing: str, *, shared: bool = False) -> None:
        taken = (*self.players[index].takes, Take(thing=thing, shared=shared))
        self.change(index, takes=taken)

    def kinds(self, *, record: Sequence[Record], across: bool = False) -> list[Kind]:
        """Kinds that are so well recorded, by which two players of one process or of several can wait."""
        return [
            kind
            for kind in KINDS[self.language].values()
            if kind.record in record and (kind.crosses if across else kind.inside)
        ]

    def wait(self, waiter: int, holder: int, kind: Kind, *, shared: bool = False) -> None:
        """Lets one player wait for another by a new object of that kind."""
        name = self.players[holder].name
        if kind.held is Held.ENDS:
            self.change(waiter, last=Last.JOIN, on=name)
        elif kind.held is Held.SIGNAL:
            amount = 2 if kind.name == "barrier" else 0
            thing = self.thing(kind.name, shared=shared, signaller=name, amount=amount)
            self.change(waiter, last=Last.AWAIT, on=thing)
        else:
            thing = self.thing(kind.name, shared=shared, amount=1)
            as_reader = kind.name in ("rwlock", "std_shared")
            self.holds(holder, thing)
            last = Last.SHARE if as_reader and self.rng.random() < 0.4 else Last.WANT
            self.change(waiter, last=last, on=thing)

    def ring(self, members: Sequence[int], kinds: Sequence[Kind], *, needs: Kind | None = None) -> None:
        """Each waits for the next, and the last for the first. ``needs``: one of them by this kind."""
        must = self.rng.randrange(len(members)) if needs else -1
        joined = False
        chosen: list[Kind] = []
        for place in range(len(members)):
            fit = [kind for kind in kinds if not (joined and kind.held is Held.ENDS)]
            kind = needs if needs is not None and place == must else self.rng.choice(fit)
            # The C library refuses to join in a ring of two, and one join a ring is enough.
            joined = joined or kind.held is Held.ENDS
            chosen.append(kind)
        for refused, instead in (("fcntl", "flock"), ("mutex_pi", "mutex_normal")):
            if all(kind.name == refused for kind in chosen):
                # The kernel refuses a ring of these.
                chosen[0] = KINDS[self.language][instead]
        for place, kind in enumerate(chosen):
            waiter, holder = members[place], members[(place + 1) % len(members)]
            apart = self.players[waiter].process != self.players[holder].process
            self.wait(waiter, holder, kind, shared=apart)

    def chains(self, onto: Sequence[int], most: int) -> None:
        """Threads that wait for these, or for one another, in the processes of these."""
        ends = list(onto)
        for _ in range(self.rng.randint(0, most)):
            target = self.rng.choice(ends)
            process = self.players[target].process
            fit = self.kinds(record=(Record.THREAD, Record.FRAMES))
            if self._joined(target):
                fit = [kind for kind in fit if kind.held is not Held.ENDS]
            waiter = self.player(process)
            self.wait(waiter, target, self.rng.choice(fit))
            ends.append(waiter)

    def _joined(self, target: int) -> bool:
        """A thread can be joined by one other only, and the main thread had better not be."""
        name = self.players[target].name
        return self._is_main(target) or any(player.on == name for player in self.players)

    def _is_main(self, index: int) -> bool:
        process = self.players[index].process
        return index == next(place for place, player in enumerate(self.players) if player.process == process)

    def time_one(self, members: Sequence[int]) -> None:
        """Lets one of these wait with a timeout, if one can."""
        timed = {kind.name for kind in KINDS[self.language].values() if kind.timed}
        kinds = {thing.name: thing.kind for thing in self.things}
        for index in members:
            player = self.players[index]
            if player.last is Last.WANT and player.on is not None and kinds[player.on] in timed:
                again = self.rng.random() < 0.5
                self.change(index, last=Last.REARM if again else Last.TIMED, amount=200 if again else DAY_MS)
                return

    def idle_main(self, process: int) -> int:
        """A main thread that has no part in it; what it does is settled by `settle_main`."""
        return self.player(process, decoy=True)

    def settle_main(self, main: int, member: int | None = None) -> None:
        """Lets the main thread wait for a thread, for its children, for a signal or for the time."""
        options: list[Callable[[], None]] = [
            lambda: self.change(main, last=Last.PAUSE),
            lambda: self.change(main, last=Last.SLEEP, amount=DAY_MS),
        ]
        if member is not None and not self._joined(member):
            name = self.players[member].name
            options += [lambda: self.change(main, last=Last.JOIN, on=name, decoy=False)] * 3
        process = self.players[main].process
        if any(one.parent == process for one in self.processes):
            options += [lambda: self.change(main, last=Last.CHILD)] * 3
        self.rng.choice(options)()


_EXACT = (Record.THREAD,)
_OWNED = (Record.THREAD, Record.FRAMES)
_ACROSS = (Record.THREAD, Record.PROCESS)


def _ring_inside(drawing: _Drawing, process: int, main: int | None, kinds: Sequence[Kind]) -> list[int]:
    """A ring of threads of one process, the main thread among them if it is given."""
    size = drawing.rng.randint(2, 6)
    members = [drawing.player(process) for _ in range(size - (main is not None))]
    if main is not None:
        members.insert(drawing.rng.randrange(len(members) + 1), main)
        drawing.change(main, decoy=False)
        kinds = [kind for kind in kinds if kind.held is not Held.ENDS]
    drawing.ring(members, kinds)
    return members


def _cycle(drawing: _Drawing) -> None:
    process = drawing.process()
    main = drawing.idle_main(process)
    inside = drawing.rng.random() < 0.4
    record = drawing.rng.choice((_EXACT, _OWNED))
    kinds = drawing.kinds(record=record)
    if drawing.rng.random() < 0.1:
        kinds += drawing.kinds(record=(Record.PROCESS,))
    members = _ring_inside(drawing, process, main if inside else None, kinds)
    if drawing.rng.random() < 0.2:
        drawing.time_one(members)
    if not inside:
        drawing.settle_main(main, drawing.rng.choice(members))
    drawing.chains(members, 4)


def _cycle_apart(drawing: _Drawing) -> None:
    count = drawing.rng.randint(2, 4)
    processes = [drawing.process() for _ in range(count)]
    mains = [drawing.idle_main(process) for process in processes]
    members = []
    threaded = drawing.language is Language.CPP and drawing.rng.random() < 0.5
    for process, main in zip(processes, mains, strict=True):
        if threaded and drawing.rng.random() < 0.5:
            member = drawing.player(process)
            members.append(member)
            continue
        drawing.change(main, decoy=False)
        members.append(main)
    kinds = drawing.kinds(record=(Record.THREAD,) if threaded else _ACROSS, across=True)
    drawing.ring(members, kinds)
    for main, member in zip(mains, members, strict=True):
        if main != member:
            drawing.settle_main(main, member)
    if drawing.rng.random() < 0.5:
        drawing.chains(members, 3)


def _soft_cycle(drawing: _Drawing) -> None:
    across = drawing.rng.random() < 0.3
    needs = drawing.rng.choice(drawing.kinds(record=(Record.NONE,), across=across))
    size = drawing.rng.randint(2, 4)
    kinds = drawing.kinds(record=(Record.NONE, *_ACROSS) if across else (Record.NONE, *_OWNED), across=across)
    if across:
        members = [drawing.player(drawing.process()) for _ in range(size)]
        drawing.ring(members, kinds, needs=needs)
        return
    process = drawing.process()
    main = drawing.idle_main(process)
    members = [drawing.player(process) for _ in range(size)]
    drawing.ring(members, kinds, needs=needs)
    drawing.settle_main(main, drawing.rng.choice(members))


def _two_cycles(drawing: _Drawing) -> None:
    first = drawing.process()
    main = drawing.idle_main(first)
    kinds = drawing.kinds(record=_EXACT)
    second = first if drawing.rng.random() < 0.5 else drawing.process()
    other_main = main if second == first else drawing.idle_main(second)
    one = _ring_inside(drawing, first, None, kinds)
    two = _ring_inside(drawing, second, None, kinds)
    drawing.settle_main(main, drawing.rng.choice(one))
    if other_main != main:
        drawing.settle_main(other_main, drawing.rng.choice(two))


def _itself(drawing: _Drawing) -> None:
    process = drawing.process()
    main = drawing.idle_main(process)
    again = (
        ("mutex_normal", "mutex_adaptive", "std_mutex")
        if drawing.language is Language.CPP
        else ("with_lock",)
    )
    member = drawing.player(process)
    drawing.wait(member, member, KINDS[drawing.language][drawing.rng.choice(again)])
    drawing.settle_main(main, member)
    drawing.chains([member], 3)


def _behind(drawing: _Drawing, last: Last, **values: object) -> None:
    """Somebody who holds what others want, and is in something else."""
    process = drawing.process()
    main = drawing.idle_main(process)
    if drawing.rng.random() < 0.3:
        end = main
        drawing.change(main, decoy=False)
    else:
        end = drawing.player(process)
    waiter = drawing.player(process)
    fit = [kind for kind in drawing.kinds(record=_OWNED) if end != main or kind.held is not Held.ENDS]
    drawing.wait(waiter, end, drawing.rng.choice(fit))
    drawing.change(end, last=last, **values)
    drawing.chains([end, waiter], 5)
    if end != main:
        drawing.settle_main(main, drawing.rng.choice([end, waiter]))


def _sink(drawing: _Drawing) -> None:
    _behind(drawing, Last.SLEEP, amount=drawing.rng.randint(500, 90000) * 1000)


def _working(drawing: _Drawing) -> None:
    _behind(drawing, Last.COMPUTE)


def _reading(drawing: _Drawing) -> None:
    apart = drawing.rng.random() < 0.4
    pipe = drawing.thing("pipe", writer=1 if apart else 0)
    _behind(drawing, Last.AWAIT, on=pipe)
    if apart:
        drawing.player(drawing.process(), Last.SLEEP, amount=DAY_MS)


def _after_fork(drawing: _Drawing) -> None:
    parent = drawing.process()
    main = drawing.idle_main(parent)
    own = ("mutex_normal", "mutex_recursive", "mutex_adaptive", "std_mutex", "rwlock")
    kinds = own if drawing.language is Language.CPP else ("rlock", "with_lock", "lock")
    kind = drawing.rng.choice(kinds)
    thing = drawing.thing(kind)
    # To an RLock the first thread of the child is the one that forked it.
    # and a `with` block that it forked in is its own as well.
    by_main = kind not in ("rlock", "with_lock") and drawing.rng.random() < 0.4
    holder = main if by_main else drawing.player(parent)
    drawing.holds(holder, thing)
    if holder != main:
        drawing.change(holder, last=Last.SLEEP, amount=DAY_MS, decoy=True)
    child = drawing.process(late=True)
    drawing.player(child, Last.WANT, on=thing)
    drawing.change(main, last=Last.CHILD)


def _owner_gone(drawing: _Drawing) -> None:
    process = drawing.process()
    main = drawing.idle_main(process)
    own = ("mutex_normal", "mutex_recursive", "mutex_errorcheck", "mutex_adaptive", "std_mutex", "rwlock")
    kinds = own if drawing.language is Language.CPP else ("rlock",)
    owner = drawing.player(process, Last.EXIT)
    waiter = drawing.player(process)
    drawing.wait(waiter, owner, KINDS[drawing.language][drawing.rng.choice(kinds)])
    drawing.chains([waiter], 3)
    drawing.settle_main(main, waiter)


_TURNS = {
    Language.CPP: ("mutex_normal", "mutex_recursive", "mutex_adaptive", "mutex_pi", "std_mutex", "rwlock"),
    Language.PYTHON: ("with_lock", "lock", "rlock", "with_rlock", "semaphore"),
}
_FED = {
    Language.CPP: ("condition", "semaphore", "pipe"),
    Language.PYTHON: ("condition", "queue", "semaphore", "pipe"),
}


def _turns(drawing: _Drawing) -> None:
    process = drawing.process()
    main = drawing.idle_main(process)
    for _ in range(drawing.rng.randint(1, 3)):
        thing = drawing.thing(drawing.rng.choice(_TURNS[drawing.language]), amount=1)
        for _ in range(drawing.rng.randint(2, 4)):
            drawing.player(process, Last.TURNS, on=thing, amount=drawing.rng.randint(1, 5), decoy=True)
    drawing.settle_main(main)


def _fed(drawing: _Drawing) -> None:
    process = drawing.process()
    main = drawing.idle_main(process)
    thing = drawing.thing(drawing.rng.choice(_FED[drawing.language]))
    for _ in range(drawing.rng.randint(1, 6)):
        drawing.player(process, Last.EAT, on=thing, decoy=True)
    drawing.player(process, Last.FEED, on=thing, amount=drawing.rng.choice((20, 100, 400)), decoy=True)
    if drawing.rng.random() < 0.5:
        again = drawing.thing("semaphore")
        drawing.player(process, Last.REARM, on=again, amount=200, decoy=True)
    drawing.settle_main(main)


def _crossed(drawing: _Drawing) -> None:
    """Each process waits for a file that the other has, but by a thread that soon comes back."""
    files = [drawing.thing(drawing.rng.choice(("flock", "ofd")), shared=True) for _ in range(2)]
    for number in range(2):
        process = drawing.process()
        drawing.player(process, Last.WANT, on=files[1 - number], decoy=True)
        helper = drawing.player(process, Last.NAPS, amount=drawing.rng.randint(2, 40), decoy=True)
        drawing.holds(helper, files[number])


def _file_kept(drawing: _Drawing) -> None:
    """Another process has the file, by a thread that is not its main one, and either may do what it likes."""
    rng = drawing.rng
    file = drawing.thing(rng.choice(("flock", "ofd", "fcntl")), shared=True)
    own = drawing.thing("condition")
    drawing.player(drawing.process(), Last.WANT, on=file, decoy=True)
    process = drawing.process()
    main = drawing.idle_main(process)
    keeper = drawing.player(process)
    drawing.holds(keeper, file)
    ways: list[dict[str, object]] = [
        {"last": Last.SLEEP, "amount": DAY_MS},
        {"last": Last.NAPS, "amount": rng.choice((20, 500, 3000))},
        {"last": Last.AWAIT, "on": own},
        {"last": Last.ACCEPT},
        {"last": Last.COMPUTE},
    ]
    drawing.change(keeper, **rng.choice(ways))
    drawing.change(main, **rng.choice([*ways[:4], {"last": Last.PAUSE}]))


def _files(drawing: _Drawing) -> None:
    """A ring through some threads of each process; the others wait for one of these, or for one that does, or nap."""
    rng = drawing.rng
    processes = [drawing.process() for _ in range(rng.randint(1, 3))]
    few = 3 if len(processes) == 1 else 1
    threads = [drawing.player(one) for one in processes for _ in range(rng.randint(few, few + 3))]
    ring = rng.sample(threads, rng.randint(2, len(threads)))
    files = [KINDS[drawing.language][name] for name in ("flock", "ofd")]
    # The kernel refuses a ring of mutexes with priority inheritance.
    taken = [kind for kind in drawing.kinds(record=_EXACT) if kind.held is Held.TAKEN]
    inside = [kind for kind in taken if kind.name != "mutex_pi"] + files

    def wait(waiter: int, holder: int) -> None:
        apart = drawing.players[waiter].process != drawing.players[holder].process
        drawing.wait(waiter, holder, rng.choice(files if apart else inside), shared=apart)

    for place, waiter in enumerate(ring):
        wait(waiter, ring[(place + 1) % len(ring)])
    for other in threads:
        if other in ring:
            continue
        if rng.random() < 0.15:
            last = rng.choice((Last.NAPS, Last.SLEEP))
            drawing.change(other, last=last, amount=rng.choice((50, 3000, DAY_MS)), decoy=True)
        else:
            wait(other, rng.choice([one for one in threads if one in ring or one < other]))


_SHAPES: dict[Shape, Callable[[_Drawing], None]] = {
    Shape.CYCLE: _cycle,
    Shape.CYCLE_APART: _cycle_apart,
    Shape.SOFT_CYCLE: _soft_cycle,
    Shape.TWO_CYCLES: _two_cycles,
    Shape.ITSELF: _itself,
    Shape.SINK: _sink,
    Shape.WORKING: _working,
    Shape.READING: _reading,
    Shape.AFTER_FORK: _after_fork,
    Shape.OWNER_GONE: _owner_gone,
    Shape.TURNS: _turns,
    Shape.FED: _fed,
    Shape.CROSSED: _crossed,
    Shape.FILE_KEPT: _file_kept,
    Shape.FILES: _files,
}


def _decoys(drawing: _Drawing) -> None:
    """Threads that do well, and wait for what has nothing to do with the rest."""
    rng = drawing.rng
    signals = [kind for kind in drawing.kinds(record=(Record.NONE,)) if kind.held is Held.SIGNAL]
    waited = drawing.thing(rng.choice([kind.name for kind in signals if kind.name != "barrier"]))
    turned = drawing.thing(_TURNS[drawing.language][0])
    for _ in range(rng.choice(DECOYS)):
        process = rng.randrange(len(drawing.processes))
        choice = rng.random()
        if choice < 0.5:
            drawing.player(process, Last.AWAIT, on=waited, decoy=True)
        elif choice < 0.65:
            watched = drawing.language is Language.PYTHON and rng.random() < 0.3
            last = Last.WATCHED if watched else Last.NAPS
            drawing.player(process, last, amount=rng.choice((50, 300, 2000)), decoy=True)
        elif choice < 0.75:
            drawing.player(process, Last.SLEEP, amount=DAY_MS, decoy=True)
        elif choice < 0.85:
            drawing.player(process, Last.ACCEPT, decoy=True)
        else:
            drawing.player(process, Last.TURNS, on=turned, amount=rng.randint(3, 20), decoy=True)
