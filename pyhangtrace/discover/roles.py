"""What each process of a job is, and what it says of its rank. Claims are collected here, compared in analysis."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from pyhangtrace.discover import command_lines, recognise
from pyhangtrace.discover.job import Group
from pyhangtrace.model.kinds import Role
from pyhangtrace.model.process_table import ProcessTable
from pyhangtrace.model.processes import RankClaim
from pyhangtrace.model.threads import ThreadSample

# They run on torch, and are named in its place.
_SPECIFIC = ("sglang", "vllm", "tensorrt_llm", "deepspeed", "ray", "jax")


@dataclass(slots=True)
class Identity:
    """Role and claims of one process, or the rank that it is a copy of, which is there no more."""

    role: Role = Role.OTHER
    claims: list[RankClaim] = field(default_factory=list)
    variables: tuple[tuple[str, str], ...] = ()
    limits: tuple[tuple[str, int], ...] = ()
    forked_from_rank: int | None = None


def assign(
    group: Group,
    table: ProcessTable,
    *,
    program_environs: Mapping[int, Mapping[str, str]] | None = None,
    data_workers: Collection[int] = (),
) -> dict[int, Identity]:
    """Role and claims of every member.

    `program_environs`: os.environ from memory, for those that were asked. `data_workers`: processes whose stacks show a
    data loader's worker.
    """
    result = {pid: Identity() for pid in group.members}
    programs = program_environs or {}
    numbers = {
        pid: _rank_variable(group.environs.get(pid, {})) or _rank_variable(programs.get(pid, {}))
        for pid in group.members
    }
    launchers = _launchers(group, table, numbers)
    for pid, identity in result.items():
        arguments = group.arguments.get(pid, ())
        inherited = _inherits_rank(pid, table, numbers, launchers)
        own = {} if inherited else group.environs.get(pid, {})
        memory = {} if inherited else programs.get(pid, {})
        said = {**own, **memory}
        identity.variables = tuple(
            sorted(item for item in said.items() if item[0] not in recognise.LIMIT_VARIABLES)
        )
        identity.limits = command_lines.limits(
            arguments, {**group.environs.get(pid, {}), **programs.get(pid, {})}
        )
        if pid not in launchers:
            identity.claims.extend(_claims_from(own, "environ"))
            if not identity.claims:
                identity.claims.extend(_claims_from(memory, "program environ"))
            identity.claims.extend(_claims_from_arguments(arguments))
        identity.role = _role(pid, group, table, launchers, identity, data_workers)
        if identity.role in (Role.DATA_WORKER, Role.COMPILER):
            identity.claims.clear()
    _by_arguments(group, table, result)
    _workers_of_ranks(group, table, result)
    _outlived_ranks(group, table, result)
    _by_start_order(group, table, result)
    _starters_of_ranks(group, table, result)
    return result


def without_rank(identities: Mapping[int, Identity]) -> set[int]:
    """Processes that may be a rank, and of which nothing says which."""
    return {
        pid
        for pid, identity in identities.items()
        if identity.role is Role.OTHER
        and all(claim.rank is None or claim.source == START_ORDER for claim in identity.claims)
    }


def add(identities: Mapping[int, Identity], claims: Mapping[int, RankClaim]) -> None:
    """Makes ranks of processes by what they say themselves."""
    for pid, claim in claims.items():
        identities[pid].claims.append(claim)
        identities[pid].role = Role.RANK


def agreed_rank(identity: Identity) -> int | None:
    """The rank that all claims agree on, None if there are none. Their order of start is no claim."""
    claimed = {
        claim.rank for claim in identity.claims if claim.rank is not None and claim.source != START_ORDER
    }
    return claimed.pop() if len(claimed) == 1 else None


def world_size(identities: Mapping[int, Identity]) -> int | None:
    """The number of ranks all claims agree on."""
    sizes = {
        claim.world_size
        for identity in identities.values()
        for claim in identity.claims
        if claim.world_size is not None
    }
    return sizes.pop() if len(sizes) == 1 else None


def framework(
    identities: Mapping[int, Identity], launcher: str | None, loaded: Collection[str]
) -> str | None:
    """The most specific name that titles, libraries, variables and launchers give. `loaded` are libraries."""
    claimed = [
        claim.framework
        for identity in identities.values()
        for claim in identity.claims
        if claim.framework is not None
    ]
    for candidate in _SPECIFIC:
        if candidate in (launcher, *claimed) or candidate in loaded:
            return candidate
    if "torch" in loaded:
        return "torch"
    return launcher or (claimed[0] if claimed else None)


def data_workers(threads: Iterable[ThreadSample]) -> set[int]:
    """Processes whose stacks show a data loader's worker."""
    return {
        thread.pid
        for thread in threads
        if any(frame.function == recognise.DATA_WORKER_FRAME for frame in thread.frames)
    }


def wants_program_environ(group: Group, table: ProcessTable) -> list[int]:
    """Members whose rank is not known from /proc, but could be in the program's own environment."""
    first = assign(group, table)
    return [
        pid
        for pid, identity in first.items()
        if identity.role in (Role.RANK, Role.OTHER, Role.SCHEDULER, Role.LAUNCHER)
        and recognise.launcher(table[pid].comm, group.arguments.get(pid, ())) is None
        and not any(
            claim.rank is not None and claim.source not in (START_ORDER, RANK_ARGUMENT)
            for claim in identity.claims
        )
        and not recognise.multiprocessing_helper(group.arguments.get(pid, ()))
        and table[pid].state not in "ZX"
    ]


START_ORDER = "start order"
RANK_ARGUMENT = "command line --rank"


def _launchers(group: Group, table: ProcessTable, numbers: Mapping[int, str | None]) -> set[int]:
    """Members that start ranks and are none themselves. `numbers`: the rank each one's environment holds."""
    found = set()
    for pid in group.members:
        children = [child for child in table.children(pid) if child in numbers]
        if recognise.launcher(table[pid].comm, group.arguments.get(pid, ())) is not None and children:
            found.add(pid)
            continue
        ranks = {numbers[child] for child in children} - {None}
        mine = numbers[pid]
        # `timeout`, `nice` or a shell with a rank in its environment hands it on to the program that it runs.
        inherited = any(numbers.get(each) == mine for each in table.ancestors(pid) if each not in found)
        wraps = recognise.runs_another(table[pid].comm, group.arguments.get(pid, ()))
        if mine in ranks and wraps and not inherited:
            found.add(pid)
        # A rank may start the other ones; then its own number is none of theirs. With a single child it may as well
        # be a rank that never put its number into the environment it was started with, and runs a helper.
        if len(ranks) > 1 and (mine is None or mine in ranks):
            found.add(pid)
    return found


def _rank_variable(values: Mapping[str, str]) -> str | None:
    return next(
        (values[each.rank] for each in recognise.RANK_VARIABLES if values.get(each.rank, "").isdecimal()),
        None,
    )


def _inherits_rank(
    pid: int, table: ProcessTable, numbers: Mapping[int, str | None], launchers: set[int]
) -> bool:
    """Whether the rank in its environment is a parent's: a helper of a rank, not a rank."""
    mine = numbers[pid]
    if mine is None:
        return False
    for ancestor in table.ancestors(pid):
        if ancestor not in numbers:
            return False
        if ancestor not in launchers and numbers[ancestor] == mine:
            return True
    return False


def _claims_from(values: Mapping[str, str], source: str) -> list[RankClaim]:
    claims = []
    for known in recognise.RANK_VARIABLES:
        rank = _number(values.get(known.rank))
        if rank is None:
            continue
        claims.append(
            RankClaim(
                source=f"{source} {known.rank}",
                rank=rank,
                local_rank=_number(values.get(known.local_rank)) if known.local_rank else None,
                world_size=_number(values.get(known.world_size)) if known.world_size else None,
                framework=known.framework,
            )
        )
    # Slurm numbers every task, also the one that only starts the ranks: it counts where nothing better is said.
    better = [claim for claim in claims if claim.framework != "slurm"]
    return better or claims


def _claims_from_arguments(arguments: tuple[str, ...]) -> list[RankClaim]:
    claims = []
    known = recognise.title(arguments)
    if known is not None and "coords" in known[1].groupdict():
        found = recognise.coordinates(known[1]["coords"] or "")
        if found:
            # One coordinate is the rank; with several the sizes of the axes are needed, which a title does not tell.
            rank = found[0][1] if len(found) == 1 and found[0][0] in ("tp", "pp") else None
            claims.append(RankClaim(source="title", rank=rank, coords=found, framework=known[0].framework))
    for index, argument in enumerate(arguments):
        if recognise.LOCAL_RANK_ARGUMENT.match(argument):
            value = argument.partition("=")[2] or (arguments[index + 1] if index + 1 < len(arguments) else "")
            local = _number(value)
            if local is not None:
                claims.append(RankClaim(source="command line", local_rank=local))
    return claims


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdecimal() and len(value) < 10 else None


def _role(
    pid: int,
    group: Group,
    table: ProcessTable,
    launchers: set[int],
    identity: Identity,
    data_workers: Collection[int],
) -> Role:
    arguments = group.arguments.get(pid, ())
    # Ray's own services see to jobs and do nothing of their work.
    if pid in launchers or recognise.serves_ray(arguments):
        return Role.LAUNCHER
    if pid in data_workers or table[pid].comm == recognise.DATA_WORKER_COMM:
        return Role.DATA_WORKER
    known = recognise.title(arguments)
    if known is not None:
        return known[0].role
    cut = recognise.cut_title(table[pid].comm) if not arguments else None
    if cut is not None:
        return cut.role
    if recognise.compiler(table[pid].comm, arguments):
        return Role.COMPILER
    if recognise.multiprocessing_helper(arguments):
        return Role.OTHER
    if any(claim.rank is not None for claim in identity.claims):
        return Role.RANK
    return Role.OTHER


def _multiprocessing_child(pid: int, group: Group, table: ProcessTable) -> bool:
    """A worker of its parent: spawned, from the fork server, or forked without exec."""
    arguments = group.arguments.get(pid, ())
    if recognise.multiprocessing_helper(arguments):
        # The fork server's children look like it; the server itself is the child of another program.
        parent = group.arguments.get(table[pid].ppid, ())
        return recognise.FORKSERVER in " ".join(arguments) and parent == arguments
    if recognise.spawned(arguments):
        return True
    return bool(arguments) and arguments == group.arguments.get(table[pid].ppid)


def _by_arguments(group: Group, table: ProcessTable, result: dict[int, Identity]) -> None:
    """`--rank` of processes that nothing else gives a rank: one each, of several, in one world. Else it may be that of
    a matrix.
    """
    said: dict[int, int] = {}
    for pid, identity in result.items():
        rank = command_lines.global_rank(group.arguments.get(pid, ()))
        wraps = recognise.runs_another(table[pid].comm, group.arguments.get(pid, ()))
        free = identity.role is Role.OTHER and all(claim.rank is None for claim in identity.claims)
        if rank is not None and free and not wraps:
            said[pid] = rank
    ranks = {pid: rank for pid, rank in said.items() if said.keys().isdisjoint(table.ancestors(pid))}
    worlds = {command_lines.world_size(group.arguments[pid]) for pid in ranks}
    if len(ranks) < 2 or len(set(ranks.values())) < len(ranks) or len(worlds) > 1:
        return
    (world,) = worlds
    if max(ranks.values()) >= (len(ranks) if world is None else world):
        return
    for pid, rank in ranks.items():
        result[pid].role = Role.RANK
        result[pid].claims.append(RankClaim(source=RANK_ARGUMENT, rank=rank, world_size=world))


def _workers_of_ranks(group: Group, table: ProcessTable, result: dict[int, Identity]) -> None:
    """Multiprocessing children of a rank are its data workers."""
    for pid in group.members:
        identity = result[pid]
        if identity.role is not Role.OTHER or not _multiprocessing_child(pid, group, table):
            continue
        parents = [ancestor for ancestor in table.ancestors(pid) if ancestor in result]
        if any(result[parent].role is Role.RANK for parent in parents):
            identity.role = Role.DATA_WORKER
            identity.claims.clear()


def _outlived_ranks(group: Group, table: ProcessTable, result: dict[int, Identity]) -> None:
    """What a rank has forked still has the rank in its environment when that one has ended, and is no rank itself.

    Where ranks are forked themselves, all are; these were started as programs of their own.
    """
    ranks = [pid for pid in group.members if result[pid].role is Role.RANK]
    if all(table[pid].forked for pid in ranks):
        return
    for pid in ranks:
        parent = table.get(table[pid].ppid)
        # Who forked it ran under its name, and would be its parent still.
        orphan = parent is None or (parent.pid not in result and parent.comm != table[pid].comm)
        if table[pid].forked and orphan:
            identity = result[pid]
            identity.role, identity.forked_from_rank = Role.OTHER, agreed_rank(identity)
            identity.claims.clear()


def _by_start_order(group: Group, table: ProcessTable, result: dict[int, Identity]) -> None:
    """Equal multiprocessing children of one parent of whom nothing says a rank: weak, for labels only."""
    by_parent: dict[int, list[int]] = {}
    for pid in group.members:
        if result[pid].role is Role.OTHER and _multiprocessing_child(pid, group, table):
            by_parent.setdefault(table[pid].ppid, []).append(pid)
    for parent, children in by_parent.items():
        known = any(
            claim.rank is not None and claim.source != START_ORDER
            for pid in table.children(parent)
            if pid in result
            for claim in result[pid].claims
        )
        if known or len(children) < 2:
            continue
        children.sort(key=lambda pid: (table[pid].start_ticks, pid))
        for rank, pid in enumerate(children):
            result[pid].role = Role.RANK
            result[pid].claims.append(RankClaim(source=START_ORDER, rank=rank))


def _starters_of_ranks(group: Group, table: ProcessTable, result: dict[int, Identity]) -> None:
    """Whoever started ranks and is nothing else is their launcher."""
    for pid in group.members:
        children = [result[child].role for child in table.children(pid) if child in result]
        if result[pid].role is Role.OTHER and (Role.RANK in children or Role.SCHEDULER in children):
            result[pid].role = Role.LAUNCHER
