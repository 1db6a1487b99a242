"""One graph of waits over all threads of all processes, and what becomes of each wait.

A wait with edge `all` lasts as long as one of its targets does; with `any`, as long as all of them do. So a
cycle proves a deadlock only where no member has a way out: through `any` edges every target must be caught too.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from pyhangtrace.analyze.blocked import BY_ITSELF, Blocked
from pyhangtrace.analyze.components import components
from pyhangtrace.analyze.crowds import crowd, in_short, is_crowd
from pyhangtrace.analyze.fates import Judged, Outcome
from pyhangtrace.analyze.knot_fates import judge_knot
from pyhangtrace.analyze.knots import Circles
from pyhangtrace.analyze.outside import reach
from pyhangtrace.analyze.progress import GOES_ON
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.analyze.single_fates import judge_one
from pyhangtrace.analyze.world import World


def judge(scene: Scene, waits: Mapping[Key, Blocked]) -> Judged:
    """Works out all fates, ends of chains first."""
    leads = {key: in_short(wait.targets) for key, wait in waits.items() if _is_waiting(wait)}
    # Targets of who waits are come to from there.
    others = chain.from_iterable(wait.targets for key, wait in waits.items() if key not in leads)
    nodes = sorted({*waits, *others})

    def edges(node: Key) -> tuple[Key, ...]:
        return crowd(scene, node) if is_crowd(node) else leads.get(node, ())

    world = World(scene, waits, reach(scene, waits))
    outcomes: dict[Key, Outcome] = {}
    knots: list[Circles] = []
    clocked: set[Key] = set()
    for component in map(_threads, components(nodes, edges)):
        if len(component) > 1 or (component and component[0] in edges(component[0])):
            clocked |= judge_knot(world, component, outcomes, knots)
        elif component:
            outcomes[component[0]] = judge_one(world, component[0], outcomes)
    return Judged(
        outcomes=outcomes,
        cycles=tuple(sorted(cycle for knot in knots for cycle in knot.cycles)),
        clocked=frozenset(clocked),
        whole={key: threads for knot in knots for key, threads in knot.whole.items()},
        listening=world.reach.listening,
        lively=world.lively,
    )


def _threads(component: tuple[Key, ...]) -> tuple[Key, ...]:
    """Without nodes that only stand between them."""
    if any(map(is_crowd, component)):
        return tuple(node for node in component if not is_crowd(node))
    return component


def _is_waiting(wait: Blocked) -> bool:
    return wait.standing not in BY_ITSELF and wait.progress not in GOES_ON
