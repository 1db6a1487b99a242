"""The report, put together from its parts in a fixed order: the same evidence gives the same report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyhangtrace.analyze.blocked import Blocked, Standing
from pyhangtrace.analyze.causes import died_of_oom
from pyhangtrace.analyze.deadlines import deadline_of
from pyhangtrace.analyze.finding import Case, Finding, Named, is_whole
from pyhangtrace.analyze.gpu_report import gpus_of
from pyhangtrace.analyze.memory import major_faults_per_s, weigh
from pyhangtrace.analyze.next_steps import next_steps
from pyhangtrace.analyze.phase import phase_of, with_progress
from pyhangtrace.analyze.progress import GOES_ON
from pyhangtrace.analyze.scene import Key
from pyhangtrace.analyze.services import LAUNCHER
from pyhangtrace.analyze.source_lines import Places, places_of, with_lines
from pyhangtrace.analyze.words import summary
from pyhangtrace.model.kinds import WELL, FrameKind, Kind, MemoryVerdict, State, WaitKind
from pyhangtrace.model.probes import ProbeEvidence
from pyhangtrace.model.processes import ProcessFacts
from pyhangtrace.model.quantities import size
from pyhangtrace.model.report import (
    Cleared,
    Coverage,
    Culprit,
    MemoryReport,
    Probe,
    Report,
    ReportCost,
    ReportHolder,
    ReportMemory,
    ReportProcess,
    ReportSamples,
    ReportTask,
    ReportThread,
    Verdict,
    Victim,
    Wait,
    Waker,
    Workload,
)
from pyhangtrace.model.threads import TaskSample, ThreadSample

# Any of a thread pool's hundred threads could end a wait on a condition; listing them all helps nobody.
_MOST_CANDIDATES = 16

# Nobody is on a chain of a healthy program, also where one was followed to find that out.


def build(case: Case, finding: Finding) -> Report:
    """The whole report."""
    scene = case.scene
    evidence = scene.evidence
    order = _wait_order(case, finding)
    ids = {key: f"w{number}" for number, key in enumerate(order, start=1)}
    oom = any(who.key is not None and died_of_oom(scene, who.key[0]) for who in finding.named)
    memory = weigh(scene, dead_of_oom=oom)
    missing = scene.who.ranks_missing
    places = places_of(evidence)
    probes = dict(evidence.probes)
    tasks: dict[int, list[TaskSample]] = {}
    for task in evidence.looks[-1].tasks:
        tasks.setdefault(task.pid, []).append(task)
    return Report(
        tool_version=evidence.tool_version,
        host=evidence.host.name,
        taken_at=evidence.taken_at,
        attached_to=evidence.attached_to,
        window_s=round(evidence.window_s, 3),
        verdict=_verdict(case, finding, ids, memory),
        workload=Workload(
            framework=evidence.job.framework or _framework(case),
            world_size=scene.who.world_size,
            ranks_seen=scene.who.ranks_seen,
            ranks_missing=missing,
            phase=with_progress(phase_of(scene), memory.loading),
        ),
        processes=tuple(
            _process(case, scene.processes[pid], ids, places, probe=probes.get(pid), tasks=tasks.get(pid, ()))
            for pid in sorted(scene.processes)
        ),
        waits=tuple(_wait(case, case.waits[key], ids[key]) for key in order),
        collectives=case.matched.collectives,
        memory=memory,
        gpus=gpus_of(evidence),
        coverage=(
            *(
                Coverage(source=line.source, state=line.state, reason=line.reason, fix=line.fix)
                for line in evidence.coverage
            ),
            *scene.who.coverage,
        ),
        cost=ReportCost(
            wall_s=evidence.cost.wall_s,
            cpu_s=evidence.cost.cpu_s,
            stopped_us={str(pid): microseconds for pid, microseconds in evidence.cost.stopped_us},
            probe_attached_s=evidence.cost.probe_attached_s,
        ),
        ras=evidence.ras,
    )


def _wait_order(case: Case, finding: Finding) -> list[Key]:
    """The chain first, then the cycle, the victims and everybody else by rank, pid and tid."""
    others = [key for cycle in finding.other_cycles for key in cycle]
    told = [key for key in (*finding.chain, *finding.cycle, *others, *finding.victims) if key in case.waits]
    told += [who.key for who in finding.named if who.key is not None and who.key in case.waits]
    rest = sorted((key for key in case.waits if _of_interest(case, key)), key=case.order)
    return list(dict.fromkeys([*told, *rest]))


def _of_interest(case: Case, key: Key) -> bool:
    # A launcher that waits for those it started does its work, but what it waits for is worth a line.
    return case.waits[key].service in (None, LAUNCHER)


def _wait(case: Case, wait: Blocked, identifier: str) -> Wait:
    known = wait.candidates if wait.holder is None else ()
    return Wait(
        id=identifier,
        pid=wait.key[0],
        tid=wait.key[1],
        kind=wait.kind,
        object=wait.object,
        holder=wait.holder,
        candidates=tuple(
            ReportHolder(pid=pid, tid=tid or None, alive=not case.scene.exited(pid))
            for pid, tid in known[:_MOST_CANDIDATES]
            if pid > 0
        ),
        edge=wait.edge,
        ends_by_itself=wait.ends_by_itself,
        since_s=round(wait.since_s, 3) if wait.since_s is not None else None,
        evidence=wait.evidence,
    )


# -- processes -----------------------------------------------------------------------------------------------


def _process(
    case: Case,
    process: ProcessFacts,
    ids: Mapping[Key, str],
    places: Places,
    *,
    probe: ProbeEvidence | None,
    tasks: Sequence[TaskSample],
) -> ReportProcess:
    scene = case.scene
    identity = scene.who.by_pid[process.pid]
    threads = tuple(_thread(case, key, ids, places) for key in scene.threads_of(process.pid))
    main = scene.thread((process.pid, process.pid))
    memory = process.memory
    coords: dict[str, int | None] = dict(identity.coords)
    return ReportProcess(
        pid=process.pid,
        ppid=process.ppid,
        host=scene.evidence.host.name,
        rank=identity.rank,
        local_rank=identity.local_rank,
        coords=coords,
        rank_from=tuple(dict.fromkeys((*identity.sources, *identity.placed_by))),
        role=process.role,
        title=process.title,
        state="gone"
        if process.gone
        else main.state
        if main is not None and process.state == "?"
        else process.state,
        exit_code=_exit_code(process.exit_code),
        asleep_for_s=main.asleep_for_s if main is not None else None,
        memory=ReportMemory(
            rss=memory.rss,
            pss=memory.pss,
            uss=memory.uss,
            anon=memory.anon,
            file=memory.file,
            shmem=memory.shmem,
            swap=memory.swap,
            hugetlb=memory.hugetlb,
            page_tables=memory.page_tables,
            major_faults_per_s=major_faults_per_s(scene, process.pid),
        ),
        probe=_probe(probe),
        threads=threads,
        tasks=tuple(map(_task, tasks)),
    )


def _exit_code(wait_status: int | None) -> int | None:
    """What a shell shows for a wait status, negative for the signal that ended it."""
    if wait_status is None:
        return None
    ended_by = wait_status & 0x7F
    return -ended_by if ended_by else wait_status >> 8


def _probe(probe: ProbeEvidence | None) -> Probe | None:
    if probe is None:
        return None
    return Probe(
        window_s=probe.window_s,
        futex_waits=probe.futex_waits,
        futex_wait_s=probe.futex_wait_s,
        longest_wait_s=probe.longest_wait_s,
        wakers=tuple(Waker(tid=waker.tid, woke=waker.woke, count=waker.count) for waker in probe.wakers),
        minor_faults=probe.minor_faults,
        major_faults=probe.major_faults,
        lost=probe.lost,
    )


def _thread(case: Case, key: Key, ids: Mapping[Key, str], places: Places) -> ReportThread:
    samples = case.scene.samples[key]
    sample = samples[-1]
    wait = case.waits.get(key)
    switches = None
    if len(samples) > 1 and samples[0].slices is not None and sample.slices is not None:
        switches = max(0, sample.slices - samples[0].slices)
    frames = with_lines(sample.pid, sample.frames, places)
    apart = with_lines(sample.pid, (*sample.unmerged_python, *sample.unmerged_native), places)
    return ReportThread(
        tid=sample.tid,
        name=sample.name,
        comm=sample.comm,
        state=sample.state,
        wait=ids.get(key),
        asleep_for_s=sample.asleep_for_s,
        moved=wait is not None and wait.progress in GOES_ON,
        cpu_s_in_window=case.scene.thread_cpu_s(key),
        switches_in_window=switches,
        holds_gil=sample.holds_gil,
        service=wait.service if wait is not None else case.scene.services[key],
        stack_from=sample.stack_from,
        stack=frames + apart,
        stack_problem=_stack_problem(sample),
        python_problem=sample.python_problem,
        unmerged_from=len(frames) if frames and apart else None,
        samples=_samples(sample),
    )


def _stack_problem(sample: ThreadSample) -> str | None:
    native = any(frame.kind is FrameKind.NATIVE for frame in (*sample.frames, *sample.unmerged_native))
    return sample.stack_problem if native and not sample.stack_complete else None


def _samples(sample: ThreadSample) -> ReportSamples | None:
    found = sample.samples
    if found is None:
        return None
    return ReportSamples(
        count=found.count, same_leaf=found.same_leaf, same_stack=found.same_stack, leaves=found.leaves
    )


def _task(task: TaskSample) -> ReportTask:
    return ReportTask(
        thread=task.tid,
        name=task.name,
        kind=task.kind,
        current=task.current,
        done=task.done,
        moved=task.moved,
        awaits=task.awaits,
        wakes_in_s=task.wakes_in_s,
        exception=task.exception,
        stack=task.frames,
    )


def _framework(case: Case) -> str | None:
    order = ("sglang", "vllm", "megatron", "deepspeed", "ray", "jax", "torch", "mpi")
    modules = {name for process in case.scene.processes.values() for name in process.modules}
    claimed = {claim.framework for process in case.scene.processes.values() for claim in process.claims}
    return next((name for name in order if name in modules or name in claimed), None)


# -- verdict -------------------------------------------------------------------------------------------------


def _verdict(case: Case, finding: Finding, ids: dict[Key, str], memory: MemoryReport) -> Verdict:
    return Verdict(
        state=finding.state,
        symptom=finding.symptom,
        cause=finding.cause,
        confidence=finding.confidence,
        summary=summary(case, finding),
        culprits=tuple(_culprit(case, who, ids) for who in finding.named),
        victims=tuple(
            Victim(rank=case.scene.who.rank(key[0]), pid=key[0], tid=key[1], wait=ids.get(key))
            for key in finding.victims
        ),
        chain=tuple(_ids(() if finding.state in WELL else finding.chain, ids)),
        cycle=tuple(() if is_whole(case, finding.cycle) else _ids(finding.cycle, ids)),
        other_cycles=tuple(
            tuple(_ids(cycle, ids)) for cycle in finding.other_cycles if not is_whole(case, cycle)
        ),
        diverged_at=finding.diverged_at,
        cleared=tuple(_cleared(case, finding, memory)),
        next_steps=next_steps(case, finding),
        deadline=deadline_of(case, finding),
    )


def _ids(keys: Iterable[Key], ids: dict[Key, str]) -> list[str]:
    return [ids[key] for key in keys if key in ids]


def _culprit(case: Case, who: Named, ids: dict[Key, str]) -> Culprit:
    if who.key is None:
        return Culprit(rank=who.rank, part=who.part)
    if who.whole:
        return Culprit(rank=who.rank, pid=who.key[0], part=who.part)
    sample = case.scene.thread(who.key)
    return Culprit(
        rank=who.rank,
        pid=who.key[0],
        tid=who.key[1] or None,
        thread=(sample.name or sample.comm or None) if sample is not None else None,
        wait=ids.get(who.key),
        part=who.part,
    )


def _cleared(case: Case, finding: Finding, memory: MemoryReport) -> list[Cleared]:
    if finding.state not in (State.HUNG, State.BUSY, State.SLOW, State.UNKNOWN):
        return []
    cleared = []
    harmless = (
        memory.verdict in (MemoryVerdict.NORMAL, MemoryVerdict.RSS_ILLUSION) and memory.group_high is not None
    )
    if harmless and finding.cause is not Kind.PEER_OOM_KILLED:
        kills = case.scene.evidence.cgroup.oom_kills if case.scene.evidence.cgroup is not None else None
        counted = ", no OOM kill counted" if kills == 0 or (kills is None and memory.oom_kills == 0) else ""
        cleared.append(Cleared(suspect="memory.oom", because=f"{memory.summary}{counted}"))
        swap = sum(process.memory.swap or 0 for process in case.scene.processes.values())
        if swap:
            cleared.append(
                Cleared(suspect="memory.pressure", because=f"{size(swap)} swapped out, and nothing stalls")
            )
    gpus = gpus_of(case.scene.evidence)
    well = all(gpu.utilization == 0 and gpu.problem is None for gpu in gpus)
    if gpus and well and not case.scene.evidence.host.xids and not any(gpu.xids for gpu in gpus):
        cleared.append(Cleared(suspect="gpu.kernel_spin", because=f"{len(gpus)} x 0 %, no Xid"))
    running = any(
        wait.kind is WaitKind.RUNNING
        or wait.standing is Standing.RUNNING
        or (wait.call is not None and wait.call.spins)
        for wait in case.waits.values()
        if wait.service is None
    )
    if finding.state is State.HUNG and not running and len(case.scene.evidence.looks) > 1:
        window = case.scene.evidence.window_s
        cleared.append(Cleared(suspect="cpu.busy", because=f"no thread was on the CPU within {window:.1f} s"))
    return cleared
