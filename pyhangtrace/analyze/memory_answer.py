"""The answer of `hangtrace memory`: the memory object of a report, and the members' own figures."""

from __future__ import annotations

from pyhangtrace.analyze.memory import weigh
from pyhangtrace.analyze.memory_window import ProcessRates, window_of
from pyhangtrace.analyze.scene import build_scene
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import Role
from pyhangtrace.model.memory import ExactProcess
from pyhangtrace.model.processes import ProcessFacts
from pyhangtrace.model.report import Coverage, MemoryAnswer, MemoryProcess, ReportCost, ReportMemory


def answer(evidence: Evidence) -> MemoryAnswer:
    """Pure: the same evidence gives the same answer."""
    scene = build_scene(evidence)
    facts = evidence.memory
    window = window_of(facts, None)
    exact = facts.exact if facts is not None else None
    walked = {process.pid: process for process in exact.processes} if exact is not None else {}
    driver = dict(facts.driver) if facts is not None else {}
    ranks = {pid: rank for rank, pid in scene.who.pid_of_rank.items()}
    rates = window.processes if window is not None else {}
    members = [process for process in evidence.processes if process.role is not Role.OUTSIDER]
    members.sort(key=lambda process: (process.pid not in ranks, ranks.get(process.pid, 0), process.pid))
    return MemoryAnswer(
        tool_version=evidence.tool_version,
        host=evidence.host.name,
        taken_at=evidence.taken_at,
        attached_to=evidence.attached_to,
        window_s=round(evidence.window_s, 3),
        memory=weigh(scene),
        processes=tuple(
            _process(
                process,
                ranks.get(process.pid),
                walked.get(process.pid),
                rates.get(process.pid, ProcessRates()),
                driver=driver.get(process.pid),
            )
            for process in members
        ),
        coverage=tuple(
            Coverage(source=line.source, state=line.state, reason=line.reason, fix=line.fix)
            for line in evidence.coverage
        ),
        cost=ReportCost(
            wall_s=evidence.cost.wall_s,
            cpu_s=evidence.cost.cpu_s,
            stopped_us={},
            probe_attached_s=evidence.cost.probe_attached_s,
        ),
    )


def _process(
    process: ProcessFacts,
    rank: int | None,
    walked: ExactProcess | None,
    rates: ProcessRates,
    *,
    driver: int | None,
) -> MemoryProcess:
    memory = process.memory
    problem, tid = process.problem, process.problem_tid
    if walked is not None and walked.problem is not None:
        problem, tid = walked.problem, walked.problem_tid
    return MemoryProcess(
        pid=process.pid,
        rank=rank,
        role=process.role,
        name=process.title or process.comm,
        memory=ReportMemory(
            rss=memory.rss,
            pss=walked.pss if walked is not None else memory.pss,
            uss=walked.uss if walked is not None else memory.uss,
            anon=memory.anon,
            file=memory.file,
            shmem=memory.shmem,
            swap=memory.swap,
            hugetlb=memory.hugetlb,
            page_tables=memory.page_tables,
            major_faults_per_s=rates.major_faults,
            unique=walked.unique if walked is not None else None,
            driver=walked.driver if walked is not None and walked.driver is not None else driver,
            read_bytes_per_s=rates.read_bytes,
        ),
        problem=problem,
        problem_tid=tid,
    )
