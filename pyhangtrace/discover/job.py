"""The group of a process: up to the nearest mark of a job, then everything below.

Marks: a known launcher, a title of a serving framework, a multiprocessing parent, a store address or run id in the
environment. Without any, the process and its descendants, and of a rank also those that it is connected with. Never up
through a shell, a multiplexer, an editor, a test runner or init. The way up ends before a process of another user, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyhangtrace.discover import command_lines, ray_jobs, recognise
from pyhangtrace.discover.connected import Candidate, Ends, joined
from pyhangtrace.model.kinds import Role
from pyhangtrace.model.process_table import ProcessTable
from pyhangtrace.model.ranks import job_identity

MAX_MEMBERS = 4096
# Looking for siblings by their environment touches the memory of each: not of a whole crowded host.
MAX_ENVIRONS = 2048


class Lookup(Protocol):
    """What discovery asks of processes beyond the table. Answers may be missing."""

    def arguments(self, pids: Sequence[int]) -> Mapping[int, tuple[str, ...]]: ...

    def environs(self, pids: Sequence[int], names: Sequence[str]) -> Mapping[int, Mapping[str, str]]: ...

    def connections(self, pids: Sequence[int]) -> Mapping[int, Collection[Ends]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The processes of a job. `environs` holds identity variables only; `arguments` are of the members."""

    root: int
    members: tuple[int, ...]
    found_by: str
    framework: str | None
    arguments: dict[int, tuple[str, ...]]
    environs: dict[int, dict[str, str]]


def find(pids: Sequence[int], table: ProcessTable, lookup: Lookup, *, ourselves: Iterable[int] = ()) -> Group:
    """The group of processes that must be in the table; several give the union of their groups.

    `ourselves` never belong to it: an observer started by the job is not part of it.
    """
    excluded = set(ourselves) - set(pids)
    finder = _Finder(table, lookup, excluded)
    groups = [finder.group(pid) for pid in pids]
    members = tuple(dict.fromkeys(pid for group in groups for pid in group.members))[:MAX_MEMBERS]
    finder.learn_arguments(members)
    finder.learn_environs(members)
    return Group(
        root=groups[0].root,
        members=tuple(sorted(members, key=lambda pid: (table[pid].start_ticks, pid))),
        found_by="; ".join(dict.fromkeys(group.found_by for group in groups)),
        framework=next((group.framework for group in groups if group.framework), None),
        arguments={pid: finder.arguments[pid] for pid in members if pid in finder.arguments},
        environs={pid: finder.environs[pid] for pid in members if pid in finder.environs},
    )


def wrappers(pid: int, table: ProcessTable, lookup: Lookup) -> tuple[int, ...]:
    """Shells and the like right above a process that run nothing but it: they belong to it, not to who runs them."""
    found: list[int] = []
    below = pid
    for parent in table.ancestors(pid):
        if table.children(parent) != (below,):
            break
        arguments = lookup.arguments([parent]).get(parent, ())
        if not recognise.boundary(table[parent].comm, arguments):
            break
        found.append(parent)
        below = parent
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Found:
    root: int
    members: tuple[int, ...]
    found_by: str
    framework: str | None


@dataclass(frozen=True, slots=True)
class _Rank:
    """As the environment says it."""

    rank: str
    world_size: str | None


class _Finder:
    def __init__(self, table: ProcessTable, lookup: Lookup, excluded: set[int]) -> None:
        self._table = table
        self._lookup = lookup
        self._excluded = excluded
        self.arguments: dict[int, tuple[str, ...]] = {}
        self.environs: dict[int, dict[str, str]] = {}

    def learn_arguments(self, pids: Iterable[int]) -> None:
        missing = [pid for pid in pids if pid not in self.arguments and pid in self._table]
        if missing:
            self.arguments.update(self._lookup.arguments(missing))

    def learn_environs(self, pids: Iterable[int]) -> None:
        missing = [pid for pid in pids if pid not in self.environs and pid in self._table]
        if missing:
            found = self._lookup.environs(missing, recognise.READ_VARIABLES)
            self.environs.update({pid: dict(values) for pid, values in found.items()})

    def group(self, pid: int) -> _Found:
        if (starter := self._starter_of_ended(pid)) is not None:
            return self.group(starter)
        chain = self._chain(pid)
        self.learn_environs(chain)
        launcher = self._top_launcher(chain)
        if launcher is not None:
            return self._below_launcher(launcher, pid)
        driven = self._ray_job(pid)
        if driven:
            found_by = f"{len(driven)} processes of Ray connected with each other"
            return _Found(pid, tuple(sorted(driven)), found_by, "ray")
        root = self._climb(chain)
        by_store = self._by_identity(root, pid)
        if by_store is not None:
            return by_store
        members = self._below(root)
        if root != pid:
            found_by = f"{self._name(root)} {root} and the {len(members) - 1} processes below it"
        elif len(members) > 1:
            found_by = f"process {pid} and the {len(members) - 1} below it"
        else:
            found_by = f"process {pid} alone"
        return _Found(root, members, found_by, self._framework(members))

    def _starter_of_ended(self, pid: int) -> int | None:
        """The program that a zombie was started by: nothing is left of itself to be known by."""
        parent = self._table.get(self._table[pid].ppid)
        if self._table[pid].state not in "ZX" or parent is None or parent.pid <= 1:
            return None
        self.learn_arguments([parent.pid])
        foreign = parent.uid != self._table[pid].uid or parent.pid in self._excluded or parent.state in "ZX"
        return None if foreign or recognise.boundary(parent.comm, self._arguments(parent.pid)) else parent.pid

    def _chain(self, pid: int) -> list[int]:
        """The process and its ancestors up to, not including, the first boundary or process of somebody else."""
        chain = [pid]
        ancestors = list(self._table.ancestors(pid))
        self.learn_arguments([pid, *ancestors])
        builds = recognise.compiler(self._table[pid].comm, self._arguments(pid))
        for ancestor in ancestors:
            row = self._table[ancestor]
            foreign = row.uid is not None and row.uid != self._table[pid].uid
            if ancestor == 1 or row.kernel_thread or ancestor in self._excluded:
                break
            compiles = recognise.compiler(row.comm, self._arguments(ancestor))
            through = builds and (compiles or recognise.one_command(self._arguments(ancestor)))
            if recognise.boundary(row.comm, self._arguments(ancestor)) and not through:
                break
            builds = compiles or through
            if foreign and recognise.launcher(row.comm, self._arguments(ancestor)) is None:
                break
            chain.append(ancestor)
        return chain

    def _arguments(self, pid: int) -> tuple[str, ...]:
        return self.arguments.get(pid, ())

    def _name(self, pid: int) -> str:
        arguments = self._arguments(pid)
        names = recognise.programs(self._table[pid].comm, arguments)
        module = recognise.module_of(arguments)
        return module or names[-1]

    def _top_launcher(self, chain: Sequence[int]) -> int | None:
        for pid in reversed(chain):
            if recognise.launcher(self._table[pid].comm, self._arguments(pid)) is not None:
                return pid
        return None

    def _below_launcher(self, launcher: int, pid: int) -> _Found:
        row = self._table[launcher]
        framework = recognise.launcher(row.comm, self._arguments(launcher))
        members = self._below(launcher)
        names = recognise.programs(row.comm, self._arguments(launcher))
        if recognise.SHARED_LAUNCHERS & set(names) and pid != launcher:
            own = self._branch(launcher, pid)
            self.learn_environs(members)
            key = self._identity(pid)
            driven: set[int] = set()
            if recognise.RAYLET in names:
                driven = self._ray_job(pid)
            members = tuple(
                member
                for member in dict.fromkeys((*members, *sorted(driven)))
                if member == pid
                or member in own
                or member in driven
                or (key is not None and self._identity(member) == key)
            )
        found_by = f"launcher {self._name(launcher)} {launcher} and the {len(members) - 1} processes below it"
        if launcher not in members:
            found_by = f"{len(members)} processes of one job below {self._name(launcher)} {launcher}"
        return _Found(launcher if launcher in members else pid, members, found_by, framework)

    def _ray_job(self, seed: int) -> set[int]:
        """What the connections of Ray's workers tell of the job that a worker, its child, or a driver is of; or {}."""
        raylets = [
            row.pid
            for row in self._table.by_pid.values()
            if row.comm == recognise.RAYLET and row.uid == self._table[seed].uid
        ]
        if not raylets:
            return set()
        every = self._processes_of(self._table[seed].uid)
        self.learn_arguments(every)
        workers = {
            child
            for raylet in raylets
            for child in self._table.children(raylet)
            if (known := recognise.title(self._arguments(child))) is not None and known[0].role is Role.RANK
        }
        seed = next((each for each in (seed, *self._table.ancestors(seed)) if each in workers), seed)
        below = {each for raylet in raylets for each in (raylet, *self._table.descendants(raylet))}
        others = [
            each
            for each in every
            if each not in below
            and not recognise.serves_ray(self._arguments(each))
            and not recognise.boundary(self._table[each].comm, self._arguments(each))
        ]
        ends = self._lookup.connections([*sorted(workers), *others])
        found = ray_jobs.crowd(seed, workers, others, ends)
        self.learn_environs(found)
        keys = {each: self._identity(each) for each in found}
        if len(set(keys.values()) - {None}) > 1:  # jobs that use each other's workers
            found = {each for each in found if each == seed or (keys[seed] and keys[each] == keys[seed])}
        return {below for each in found for below in self._below(each)} if len(found) > 1 else set()

    def _branch(self, launcher: int, pid: int) -> set[int]:
        """The child of the launcher that leads to `pid`, and all below it."""
        top = pid
        for ancestor in self._table.ancestors(pid):
            if ancestor == launcher:
                break
            top = ancestor
        return {top, *self._table.descendants(top)}

    def _climb(self, chain: Sequence[int]) -> int:
        """The topmost process that the one below it cannot be without: its worker's owner, its build's user."""
        root = chain[0]
        for parent in chain[1:]:
            if not self._belongs_to(root, parent):
                break
            root = parent
        return root

    def _belongs_to(self, pid: int, parent: int) -> bool:
        row, above = self._table[pid], self._table[parent]
        arguments = self._arguments(pid)
        known = recognise.title(arguments)
        if known is not None and known[0].worker:
            return True
        if recognise.spawned(arguments) or recognise.multiprocessing_helper(arguments):
            return True
        if recognise.compiler(row.comm, arguments) or recognise.one_command(arguments):
            return True
        # Forked without exec: the same command line, or a title of its own over the same program.
        same = bool(arguments) and arguments == self._arguments(parent)
        return same and above.start_ticks <= row.start_ticks

    def _identity(self, pid: int) -> tuple[str, ...] | None:
        """What tells this process' job from others."""
        return job_identity(self.environs.get(pid, {}))

    def _by_identity(self, root: int, pid: int) -> _Found | None:
        """All processes of the same user with the same store address or run id, if `pid` is one of them."""
        self.learn_environs([pid, root])
        key = self._identity(root) or self._identity(pid)
        if key is None or not any(self._has_rank(each) for each in {root, pid}):
            return self._by_connection(root)
        owner = self._table[root].uid
        candidates = self._processes_of(owner)
        self.learn_environs(candidates)
        self.learn_arguments(candidates)
        seeds = [
            each
            for each in candidates
            if self._identity(each) == key
            and not recognise.boundary(self._table[each].comm, self._arguments(each))
        ]
        members = list(dict.fromkeys(each for seed in seeds for each in self._below(seed)))
        for each in (root, pid):
            members.extend(below for below in self._below(each) if below not in members)
        starter = self._common_parent(members)
        if starter is not None:
            members.insert(0, starter)
            members.extend(self._ended_below(starter, members))
        shown = " ".join(key)
        found_by = f"{len(members)} processes with {shown}"
        return _Found(
            starter if starter is not None else min(members),
            tuple(members),
            found_by,
            self._framework(members),
        )

    def _by_connection(self, root: int) -> _Found | None:
        """Ranks that only variables or command lines call so, whose store the program alone knows."""
        below = self._below(root)
        self.learn_arguments(below)
        self.learn_environs(below)
        seed = next((each for each in below if self._shows_rank(each)), None)
        if seed is None:
            return None
        candidates = self._candidates(seed)
        if len(candidates) < 2:
            return None
        ranks = joined(seed, candidates, self._lookup.connections([each.pid for each in candidates]))
        if ranks is None or set(below).issuperset(ranks.pids):
            return None
        members = list(dict.fromkeys((*below, *(each for rank in ranks.pids for each in self._below(rank)))))
        starter = self._common_parent(members) if ranks.settled else None
        if starter is not None and {each.pid for each in candidates}.intersection(
            self._table.descendants(starter)
        ) <= set(members):
            members.insert(0, starter)
            members.extend(self._ended_below(starter, members))
        words = "connected with each other" if ranks.connected else "with the same command line"
        found_by = f"{len(ranks.pids)} ranks {words}"
        return _Found(members[0], tuple(members), found_by, self._framework(members))

    def _shows_rank(self, pid: int) -> bool:
        arguments = self._arguments(pid)
        if recognise.runs_another(self._table[pid].comm, arguments):
            return False
        known = self._has_rank(pid) or command_lines.rank_words(arguments)
        return bool(known) or bool(command_lines.numbers(arguments))

    def _candidates(self, seed: int) -> list[Candidate]:
        """Processes of the same user that run the same program and show a rank; one that a rank has forked is none."""
        arguments = self._arguments(seed)
        program = command_lines.program(arguments)
        named = self._has_rank(seed) or bool(command_lines.rank_words(arguments))
        row = self._table[seed]
        pids = [
            each
            for each in self._processes_of(row.uid)
            if self._table[each].state not in "ZX" and (named or self._table[each].comm == row.comm)
        ]
        self.learn_arguments(pids)
        pids = [each for each in pids if program and command_lines.program(self._arguments(each)) == program]
        self.learn_environs(pids)
        found = {each: self._candidate(each, seed) for each in pids if self._shows_rank(each)}
        return [
            one
            for each, one in found.items()
            if not any(
                above in found and found[above].rank == one.rank for above in self._table.ancestors(each)
            )
        ]

    def _candidate(self, pid: int, seed: int) -> Candidate:
        arguments = self._arguments(pid)
        rank = self._rank(pid)
        said = tuple((word.name, word.value) for word in command_lines.rank_words(arguments))
        shown: tuple[object, ...] = (rank.rank,) if rank is not None else said
        return Candidate(
            pid=pid,
            rank=shown or command_lines.numbers(arguments),
            world_size=rank.world_size if rank is not None else None,
            shape=command_lines.shape(arguments) if rank is None else arguments,
            near=self._table[pid].sid == self._table[seed].sid,
            named=rank.world_size is not None if rank is not None else bool(said),
        )

    def _processes_of(self, owner: int | None) -> list[int]:
        return [
            row.pid
            for row in self._table.by_pid.values()
            if row.uid == owner and not row.kernel_thread and row.pid not in self._excluded
        ][:MAX_ENVIRONS]

    def _rank(self, pid: int) -> _Rank | None:
        values = self.environs.get(pid, {})
        for names in recognise.RANK_VARIABLES:
            if names.rank in values:
                return _Rank(values[names.rank], values.get(names.world_size) if names.world_size else None)
        return None

    def _has_rank(self, pid: int) -> bool:
        return self._rank(pid) is not None

    def _common_parent(self, members: Sequence[int]) -> int | None:
        """The program that started all ranks, if it is one that does nothing else for a living."""
        inside = set(members)
        parents = {self._table[pid].ppid for pid in members if self._table[pid].ppid not in inside}
        if len(parents) != 1:
            return None
        (parent,) = parents
        row = self._table.get(parent)
        if row is None or parent <= 1 or parent in self._excluded or len(inside) < 2:
            return None
        self.learn_arguments([parent])
        if row.uid != self._table[members[0]].uid or recognise.boundary(row.comm, self._arguments(parent)):
            return None
        return parent

    def _ended_below(self, starter: int, members: Sequence[int]) -> list[int]:
        """Zombies among the children of who started the ranks: they have no environment left to be known by."""
        inside = set(members)
        return [
            child
            for child in self._table.children(starter)
            if self._table[child].state in "ZX" and child not in inside and child not in self._excluded
        ]

    def _below(self, root: int) -> tuple[int, ...]:
        found = (root, *self._table.descendants(root))
        return tuple(
            pid for pid in found if pid not in self._excluded and not self._table[pid].kernel_thread
        )[:MAX_MEMBERS]

    def _framework(self, members: Sequence[int]) -> str | None:
        self.learn_arguments(members)
        for pid in members:
            known = recognise.title(self._arguments(pid))
            if known is not None:
                return known[0].framework
        return None
