"""Who of the job was killed for want of memory, when, and at whose limit."""

from __future__ import annotations

from pyhangtrace.analyze.scene import Scene
from pyhangtrace.model.host import OomKill
from pyhangtrace.model.kinds import Role
from pyhangtrace.model.quantities import plural
from pyhangtrace.model.report import OomVictim

_SIGKILL = 9


def victims(scene: Scene) -> tuple[OomVictim, ...]:
    """Members by the kernel's log, those of the job's own control group that are gone, and zombies that SIGKILL ended
    where that group counts such a kill.
    """
    evidence = scene.evidence
    members = {process.pid: process for process in evidence.processes if process.role is not Role.OUTSIDER}
    ranks = {pid: rank for rank, pid in scene.who.pid_of_rank.items()}
    found: dict[int, OomVictim] = {}
    for kill in evidence.host.oom_log:
        # A process id comes again: whoever was started after the kill is another one.
        member = members.get(kill.pid)
        if member is not None and _is_later(member.started_s_ago, kill.age_s):
            member = None
        if member is None and not _in_jobs_group(scene, kill):
            continue
        found[kill.pid] = OomVictim(
            pid=kill.pid,
            rank=ranks.get(kill.pid),
            name=kill.comm,
            ago_s=kill.age_s,
            limit_of=_limit_of(kill),
            proof="the kernel's log names it",
        )
    cgroup = evidence.cgroup
    for pid, process in members.items():
        killed = process.exit_code is not None and process.exit_code & 0x7F == _SIGKILL
        if killed and pid not in found and cgroup is not None and cgroup.oom_kills:
            found[pid] = OomVictim(
                pid=pid,
                rank=ranks.get(pid),
                name=process.comm,
                ago_s=None,
                limit_of=cgroup.path,
                proof=f"ended by SIGKILL, and its control group counts {cgroup.oom_kills} OOM "
                + plural(cgroup.oom_kills, "kill", "kills"),
            )
    return tuple(sorted(found.values(), key=lambda victim: (victim.ago_s or 0.0, victim.pid)))


def _is_later(started_s_ago: float | None, killed_s_ago: float | None) -> bool:
    return started_s_ago is not None and killed_s_ago is not None and started_s_ago < killed_s_ago


def _in_jobs_group(scene: Scene, kill: OomKill) -> bool:
    """Killed in the group that limits the job, at that group's limit: what is left of a member that was reaped."""
    cgroup = scene.evidence.cgroup
    if cgroup is None or cgroup.limit is None or cgroup.path == "/" or kill.limit_of is None:
        return False
    return kill.limit_of == cgroup.path


def _limit_of(kill: OomKill) -> str:
    if kill.constraint == "CONSTRAINT_MEMCG" and kill.limit_of is not None:
        return kill.limit_of
    if kill.constraint == "CONSTRAINT_CPUSET":
        return "the memory nodes that it may use"
    return "the machine"


def words(victim: OomVictim) -> str:
    """`rank 3 (pid 77, python3) was killed 42 s ago at the limit of /job`."""
    who = f"rank {victim.rank} (pid {victim.pid}, {victim.name})" if victim.rank is not None else None
    ago = f" {victim.ago_s:.0f} s ago" if victim.ago_s is not None else ""
    at = "when the machine had no memory left"
    if victim.limit_of != "the machine":
        at = f"at the limit of {victim.limit_of}"
    return f"{who or f'pid {victim.pid} ({victim.name})'} was killed{ago} {at}"
