"""From a plan to a case: the programs to start, where their members must be, and the facts of the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.generated import links
from tests.generated.links import Becomes
from tests.generated.plan import Health, Launch, Meeting, Plan
from tests.generated.program import Program as Written
from tests.generated.program import member, straggler
from tests.hangs.facts import Case, Facts, Program, Waits

_MISSING = "collective.missing_rank"

_AT_MEETING = {
    Meeting.BARRIER: Waits.LOCK,
    Meeting.GLOO: Waits.LOCK,
    Meeting.FILE_LOCK: Waits.FILE_LOCK,
    Meeting.RECEIVE: Waits.READ,
}


def build(plan: Plan, folder: Path, *, python: str = "{python}") -> Case:
    """Writes the program of a plan into a folder. The returned case may be run as long as it is there."""
    written = Written(plan)
    path = folder / f"{written.words.name()}.py"
    path.write_text(written.text())
    env = {"JOB_FOLDER": "{scratch}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"}
    programs: list[Program] = []
    roles = [written.role(index) for index in range(len(written.actors))] if plan.late is not None else []
    places = dict(zip(roles, _waits(plan), strict=True)) if roles else {}
    foreign = plan.foreign_from()
    if plan.bystander:
        programs.append(_program(python, path, env, "bystander", "None", members={"bystander": Waits.SLEEP}))
    if foreign is not None:
        assert written.foreign is not None
        name = written.foreign.removeprefix("os.path.join(FOLDER, ").removesuffix(")").strip("'\"")
        given = "{scratch}/" + name
        members = {role: places[role] for role in roles[foreign:]}
        programs.append(_program(python, path, env, written.actors[foreign], given, members=members))
    members = {member(plan, number): _meeting_place(plan) for number in range(plan.ranks)}
    members |= {role: places[role] for role in roles[:foreign]}
    if plan.launch is Launch.SIBLINGS:
        ranks = tuple(range(plan.ranks))
        programs.append(
            Program(
                argv=(python, str(path)),
                members=members,
                env={"JOB_FOLDER": "{scratch}"},
                ranks=ranks,
            )
        )
    else:
        programs.append(_program(python, path, env, members={**members, "launcher": Waits.ANY}))
    own = [role for role in members if plan.meeting is Meeting.GLOO or role not in roles[1:]]
    return Case(
        kind=f"seed-{plan.seed}",
        summary=describe(plan),
        programs=tuple(programs),
        attach=(own[plan.attach % len(own)],),
        facts=allowed(plan)[0],
        torch=plan.needs_torch,
        slow=True,
    )


def describe(plan: Plan) -> str:
    """The plan in one line."""
    job = f"{plan.ranks} ranks by {plan.launch.value} at {plan.meeting.name.lower()}"
    if plan.meeting is Meeting.GLOO:
        job += f" {plan.op}"
    if not plan.numbered:
        job += ", not numbered"
    if plan.late is None:
        assert plan.health is not None
        what = f"well: {plan.health.value}"
    else:
        chain = [f"{step.kind} ({step.place.name.lower()})" for step in plan.steps]
        end = plan.end if plan.back_to is None else f"{plan.end} of actor {plan.back_to}"
        what = f"late {plan.late}: " + " > ".join([*chain, end])
    beside = [*plan.noise, *(["bystander"] if plan.bystander else [])]
    return f"{job}; {what}" + (f"; beside {', '.join(beside)}" if beside else "")


def _program(python: str, path: Path, env: dict[str, str], *argv: str, members: dict[str, Waits]) -> Program:
    return Program(argv=(python, str(path), *argv), members=members, env=env)


def _meeting_place(plan: Plan) -> Waits:
    return Waits.ANY if plan.late is None else _AT_MEETING[plan.meeting]


def _waits(plan: Plan) -> list[Waits]:
    """Where the kernel must show each actor. A stop holds all threads of its process."""
    found = [links.link(step.kind).waits for step in plan.steps]
    if plan.back_to is not None:
        return [*found, links.link(plan.end).waits]
    return [*found, links.end(plan.end).waits]


def allowed(plan: Plan) -> tuple[Facts, ...]:
    """Facts of which a report must hold those of one set. Where a member of a cycle leaves no trace, the report
    may show the cycle, or only who is late and what is known of why.
    """
    if plan.late is None:
        return (_well(plan),)
    facts = _unwell(plan)
    if plan.back_to is None or is_recorded(plan):
        return (facts,)
    late = tuple(
        role for role, process in zip(chain_roles(plan), plan.processes(), strict=True) if process == 0
    )
    return facts, replace(facts, parties=(), cycle=False, culprit=late)


def _unwell(plan: Plan) -> Facts:
    roles = chain_roles(plan)
    causes = frozenset[str | None]().union(*(links.link(step.kind).causes for step in plan.steps))
    recorded = is_recorded(plan)
    becomes = Becomes.HUNG
    if plan.back_to is not None:
        causes |= links.link(plan.end).causes | {"lock.cycle", "ipc.cycle"}
    else:
        end = links.end(plan.end)
        causes |= end.causes
        becomes = end.becomes
    processes = plan.processes()
    late = [role for role, process in zip(roles, processes, strict=True) if process == 0]
    others = [member(plan, number) for number in range(plan.ranks) if number != plan.late]
    grouped = plan.meeting in (Meeting.BARRIER, Meeting.GLOO)
    parties = roles[plan.back_to :] if plan.back_to is not None else ()
    if not grouped:
        causes |= {"file_lock.held"} if plan.meeting is Meeting.FILE_LOCK else {"ipc.peer_silent"}
    return Facts(
        state=frozenset({becomes.value}) | (frozenset() if recorded else frozenset({"unknown"})),
        symptom=frozenset({_MISSING, *(("lock.cycle", "ipc.cycle") if parties else ())}) if grouped else None,
        cause=causes,
        culprit=tuple(late) if not parties else (),
        may_name=roles,
        parties=parties,
        # Who waits in a meeting is known to wait for who is not there; else a trace must lead from one to the other.
        victims=tuple(others) if grouped or recorded else (),
        cycle=bool(parties),
        missing=frozenset({plan.late}) if grouped and plan.numbered else None,
    )


def _well(plan: Plan) -> Facts:
    states = {
        Health.STEPS: {"running"},
        Health.STRAGGLER: {"running", "slow"},
        Health.FED: {"running", "idle"},
        Health.WAITING: {"idle"},
    }
    assert plan.health is not None
    named = (member(plan, straggler(plan)),) if plan.health is Health.STRAGGLER else ()
    return Facts(state=frozenset(states[plan.health]), may_name=named)


def chain_roles(plan: Plan) -> tuple[str, ...]:
    """Whom a chain may pass in a job that is not well, in order: the late rank first, then its actors."""
    written = Written(plan)
    return tuple(written.role(index) for index in range(len(plan.steps) + 1))


def is_recorded(plan: Plan) -> bool:
    """Whether each link of the chain leaves a trace of who is waited for."""
    found = [links.link(step.kind).recorded for step in plan.steps]
    last = links.link(plan.end).recorded if plan.back_to is not None else links.end(plan.end).recorded
    return all(found) and last
