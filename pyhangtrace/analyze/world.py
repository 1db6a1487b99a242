"""What the fate of a wait depends on beside the fates of those that it is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyhangtrace.analyze.blocked import Blocked, Standing
from pyhangtrace.analyze.fates import Fate, fate_of_timer
from pyhangtrace.analyze.outside import Reach, keeps_time, served_from_elsewhere
from pyhangtrace.analyze.scene import Key, Scene


# Without slots, which have no room for what is found when it is asked for.
@dataclass(frozen=True)
class World:
    """The scene, its waits, and whom in it the world outside reaches."""

    scene: Scene
    waits: Mapping[Key, Blocked]
    reach: Reach

    @cached_property
    def lively(self) -> frozenset[Key]:
        """Those that something may yet reach."""
        return self.reach.lively()

    @cached_property
    def soon(self) -> frozenset[Key]:
        """Of the lively ones, those that something may reach before a long timer is over."""
        timer, long = Standing.TIMER, Fate.LONG_TIMER
        asleep = {
            key for key, wait in self.waits.items() if wait.standing is timer and fate_of_timer(wait) is long
        }
        return self.reach.lively(but=asleep) if asleep else self.lively

    @cached_property
    def woken(self) -> frozenset[Key]:
        """The lively ones, and those that another process which is lively or keeps time may wake in shared memory."""
        timer, long = Standing.TIMER, Fate.LONG_TIMER
        active = self.soon | {
            key
            for key, wait in self.waits.items()
            if keeps_time(wait) and not (wait.standing is timer and fate_of_timer(wait) is long)
        }
        served = served_from_elsewhere(self.scene, self.waits, active)
        return self.reach.lively(also=served) if served - self.lively else self.lively

    @cached_property
    def behind(self) -> Mapping[Key, Sequence[Blocked]]:
        """Waits by the threads that they are for."""
        behind: dict[Key, list[Blocked]] = {}
        for wait in self.waits.values():
            for target in wait.targets:
                behind.setdefault(target, []).append(wait)
        return behind

    @cached_property
    def workers(self) -> Mapping[int, frozenset[Key]]:
        """Threads with work of their own, by process."""
        workers: dict[int, set[Key]] = {}
        for key, service in self.scene.services.items():
            if service is None:
                workers.setdefault(key[0], set()).add(key)
        return {pid: frozenset(keys) for pid, keys in workers.items()}

    @cached_property
    def bound(self) -> Mapping[Key, tuple[Key, ...]]:
        """What those of them wait for that know it: guesses prove nothing."""
        services = self.scene.services
        return {
            key: targets for key, targets in self.reach.firm.items() if targets and services.get(key) is None
        }

    @cached_property
    def bound_to(self) -> Mapping[Key, Sequence[Key]]:
        """And who of the same process that is, by the threads that they wait for."""
        bound_to: dict[Key, list[Key]] = {}
        for key, targets in self.bound.items():
            for target in targets:
                if target[0] == key[0]:
                    bound_to.setdefault(target, []).append(key)
        return bound_to
