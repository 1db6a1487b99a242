"""What a person can do now: exact commands, no general advice."""

from __future__ import annotations

import shlex
from math import ceil

from pyhangtrace.analyze.advice import debugged, for_cycle, for_end
from pyhangtrace.analyze.blocked import CONNECT
from pyhangtrace.analyze.causes import compiler_at_end
from pyhangtrace.analyze.finding import Case, Finding
from pyhangtrace.analyze.gpu_report import gpu_steps
from pyhangtrace.analyze.nccl_absent import elsewhere
from pyhangtrace.analyze.nccl_comms import join
from pyhangtrace.analyze.progress import SETTLED_S
from pyhangtrace.analyze.scene import Key
from pyhangtrace.analyze.states import FREEZER
from pyhangtrace.analyze.words import bystander, kept_open_by, stopped_members, thread, waiting, who
from pyhangtrace.model.kinds import Kind, Part, SourceState, State, WaitKind

_MOST_STEPS = 3

# A window that shows more than the one we choose ourselves, and how often a timed wait should run out within one.
_LONGER_S = 5.0
_TIMES_OUT = 5

# Where another process of the chain is what a person has to look at.
_ELSEWHERE = (Kind.WORKER_STUCK, Kind.CHILD_STUCK, Kind.IPC_PEER_SILENT, Kind.IDLE)


def next_steps(case: Case, finding: Finding) -> tuple[str, ...]:
    """At least one step for a hang, a busy job and an unknown one."""
    if finding.state in (State.RUNNING, State.IDLE):
        return ()
    steps = [*_for_cause(case, finding), *gpu_steps(case, finding)]
    if finding.state is State.SLOW and finding.cause is Kind.IO_STALLED:
        root = case.scene.evidence.job.root_pid
        steps.append(f"hangtrace memory {root} says how fast the files are read, and how much is left")
    if finding.state is State.UNKNOWN:
        told = {key[0] for key in finding.chain}
        pids = [str(key[0]) for key in stopped_members(case) if key[0] not in told]
        steps += [f"kill -CONT {' '.join(pids)}"] if pids else []
        steps += _on_other_hosts(case)
        steps += [
            line.fix
            for line in case.scene.evidence.coverage
            if line.fix and line.state is not SourceState.USED
        ]
        later = _after_the_nap(case, finding) or _after_a_minute(case, finding)
        steps += later
        window_s = _tells(case, finding) if not later else None
        if window_s is not None:
            steps.append(f"hangtrace attach -d {window_s:.0f} {case.scene.evidence.job.root_pid}")
    if finding.state is State.HUNG and not finding.cycle:
        steps += _may_yet_end(case, finding)
    if not steps:
        end = for_end(case, finding.chain[-1]) if finding.chain else None
        steps = [end] if end else _by_hand(case)
    return tuple(dict.fromkeys(steps))


def _may_yet_end(case: Case, finding: Finding) -> list[str]:
    """Why it is no proof: somebody who sleeps, or has a timer, may have it go on."""
    doubted = next((key for key in finding.chain if key in case.waits and case.waits[key].doubt), None)
    if doubted is None:
        return []
    doubt = case.waits[doubted].doubt
    nap = bystander(case, doubted)
    if nap is None:
        return [f"it ends by itself only if {doubt}"]
    return [
        f"it goes on by itself only if {who(case, nap)}, which {waiting(case, nap)}, sees to it ({doubt})"
    ]


def _on_other_hosts(case: Case) -> list[str]:
    """Where ranks of communicators are whose counters would decide."""
    found = {
        (each.host, each.pid)
        for joined in join(case.scene.evidence)
        for each in elsewhere(case.scene.evidence, joined)
        if each.host is not None and each.pid is not None and not each.same_host
    }
    return [f"on host {host}: hangtrace attach {pid}" for host, pid in sorted(found)][:_MOST_STEPS]


def _after_the_nap(case: Case, finding: Finding) -> list[str]:
    """Who naps beside the others may let them go on: that shows when its time is over."""
    naps = {nap for key in finding.chain if (nap := bystander(case, key)) is not None}
    timed = (left for nap in naps if (left := case.waits[nap].lasts_s) is not None)
    left_s = max(timed, default=None)
    if left_s is None:
        return []
    root = case.scene.evidence.job.root_pid
    return [f"look again in {ceil(left_s) + 1} s, when that thread has woken up: hangtrace attach {root}"]


def _after_a_minute(case: Case, finding: Finding) -> list[str]:
    """Something is known to end a wait some day, and the kernel does not say when."""
    waits = [case.waits[key] for key in (*finding.chain, *finding.victims) if key in case.waits]
    doubts = [wait.doubt for wait in sorted(waits, key=lambda wait: not wait.helped)]
    doubt = next((doubt for doubt in doubts if doubt is not None), None)
    if doubt is None:
        return []
    return [f"look again in a minute, since {doubt}: hangtrace attach {case.scene.evidence.job.root_pid}"]


def _tells(case: Case, finding: Finding) -> float | None:
    """How long to look for more to be seen: until a wait that is taken up again has run out a few times."""
    samples = [case.scene.thread(key) for key in finding.chain if key in case.judged.clocked]
    lengths = [sample.timeout_s for sample in samples if sample is not None and sample.timeout_s is not None]
    if lengths:
        return max(_LONGER_S, ceil(_TIMES_OUT * max(lengths)))
    return _LONGER_S if case.scene.evidence.window_s < SETTLED_S else None


def _for_cause(case: Case, finding: Finding) -> list[str]:
    culprit = next((who.key for who in finding.named if who.key), None)
    pid = culprit[0] if culprit else None
    culprit_rank = case.scene.who.rank(pid) if pid is not None else None
    end = finding.chain[-1] if finding.chain else None
    wait = case.waits.get(end) if end else None
    steps: list[str] = []
    stopped = wait is not None and wait.kind is WaitKind.STOPPED and end is not None
    if stopped and end is not None:
        tracer = wait.holder.pid if wait is not None and wait.holder is not None else None
        group = wait.object.path if wait is not None and wait.object.name == FREEZER else None
        if group is not None:
            steps.append(f"thaw the control group {group}: {_thaw(group)}")
        elif tracer:
            steps.append(f"end the tracer, pid {tracer}: it keeps pid {end[0]} stopped")
        else:
            steps.append(f"kill -CONT {end[0]}")
    in_debugger = debugged(case, finding.chain)
    if in_debugger is not None:
        steps.append(in_debugger)
    elif finding.cause is Kind.FILE_LOCK_HELD and not finding.cycle:
        steps += _file_lock(case, finding, stopped=stopped)
    elif finding.cause is Kind.FILE_LOCK_STALE:
        path = next(
            (w.object.path for key in finding.chain if (w := case.waits.get(key)) and w.object.path), None
        )
        steps.append(f"rm {shlex.quote(path)}" if path else "remove the lock file that nobody holds")
    elif finding.cause is Kind.RENDEZVOUS_MISSING_RANK:
        ranks = [str(who.rank) for who in finding.named if who.part is Part.ABSENT]
        if ranks:
            steps.append(f"start rank {', '.join(ranks)}, or start the others with a smaller WORLD_SIZE")
    elif finding.cause is Kind.RENDEZVOUS_UNREACHABLE and wait is not None and wait.object.name == CONNECT:
        where = wait.object.path or "the address in MASTER_ADDR and MASTER_PORT"
        steps.append(
            f"see that rank 0 runs and listens at {where} (ss -ltn there), and that this host can reach it"
        )
    elif finding.cause is Kind.COMPILE_RUNNING and end is not None:
        compiler = compiler_at_end(case.scene, finding.chain) or end[0]
        steps.append(f"wait for the compiler (pid {compiler}), or compile once before all ranks start")
    elif finding.cause is Kind.CPU_THROTTLED and pid is not None:
        process = case.scene.processes.get(pid)
        group = process.cpu_cgroup if process is not None else None
        steps.append(f"raise the CPU quota of {group or 'its control group'}, or run fewer threads in it")
    elif finding.cause is Kind.IO_STALLED and finding.state is State.SLOW:
        steps.append("iostat -x 1: see whether the disk is at its limit, and who else reads from it")
    elif finding.cause in (Kind.CPU_BUSY, Kind.CPU_SPIN) and pid is not None:
        at = end[0] if end is not None and end[0] > 0 else pid
        steps.append(f"perf top -p {at}: see where it spends its time")
    elif finding.cause in (
        Kind.COLLECTIVE_OP_MISMATCH,
        Kind.COLLECTIVE_SIZE_MISMATCH,
        Kind.COLLECTIVE_ROOT_MISMATCH,
        Kind.COLLECTIVE_GROUP_CYCLE,
    ):
        steps.append(
            "compare the calls at which they parted: every rank must make the same ones in the same order, "
            "and with the same root"
            if finding.cause is Kind.COLLECTIVE_ROOT_MISMATCH or _is_mpi(case, finding)
            else "compare the calls at which they parted: every rank must make the same ones in the same order"
        )
        if not _is_mpi(case, finding):
            steps.append("TORCH_DISTRIBUTED_DEBUG=DETAIL names the first call that differs on the next run")
    elif finding.cause in (Kind.LOCK_AFTER_FORK,):
        steps.append('use multiprocessing.get_context("spawn"), or fork before the first thread starts')
    elif finding.cause is Kind.WORKER_DEAD and wait is not None and not wait.targets:
        steps.append(
            "find why a worker ended in the middle of its work: its own output, dmesg for an OOM kill"
        )
        steps.append(
            "concurrent.futures.ProcessPoolExecutor raises BrokenProcessPool where Pool waits for good"
        )
    elif finding.cause is Kind.LOCK_TEARDOWN and not finding.cycle and pid is not None:
        who_left = f"rank {culprit_rank}" if culprit_rank is not None else f"pid {pid}"
        steps.append(f"look in the log of {who_left} for the error that it left with")
        steps.append(
            "end its threads before the program does, or make them daemons; kill it to let the others fail"
        )
    elif finding.cycle and (advice := for_cycle(case, finding)):
        steps += advice
    elif finding.cause is Kind.P2P_UNMATCHED and finding.cycle:
        both = "MPI_Sendrecv" if _is_mpi(case, finding) else "batch_isend_irecv"
        steps.append(
            "compare the calls in which they wait: one side must come to the other half of a message before it waits "
            f"for something else ({both} does both halves at once)"
        )
    elif finding.cause is Kind.IPC_PIPE_FULL:
        steps.append("read the pipe while the writer runs (Popen.communicate, a reader thread)")
    elif _waits_for_end(case, finding):
        steps += _no_eof(case, finding)
    elif finding.cause is Kind.TIMER and culprit is not None:
        steps.append(f"look at pid {culprit[0]}: {waiting(case, culprit)}")
    elif finding.cause is Kind.LOCK_HELD and culprit is not None and _nobody_holds(case, culprit):
        steps += [step for step in (for_end(case, culprit),) if step]
    elif finding.cause in (Kind.LOCK_HELD, Kind.LOCK_GIL) and culprit is not None:
        steps.append(f"look at {thread(case, culprit)} of pid {culprit[0]}: it {waiting(case, culprit)}")
    elif finding.cause in _ELSEWHERE and end is not None:
        words = "ends the wait with an error" if finding.cause is not Kind.CHILD_STUCK else "ends the wait"
        if culprit is not None and end[0] != culprit[0] and end[0] > 0:
            steps.append(f"look at pid {end[0]}: it {waiting(case, end)}; kill {end[0]} {words}")
    elif finding.cause in (Kind.PEER_EXITED, Kind.PEER_OOM_KILLED):
        steps.append("restart the job; look for the first error in the log of the rank that is gone")
    return steps


def _is_mpi(case: Case, finding: Finding) -> bool:
    calls = [wait.call for key in finding.chain if (wait := case.waits.get(key)) is not None]
    return any(call is not None and call.backend == "mpi" for call in calls)


def _waits_for_end(case: Case, finding: Finding) -> bool:
    """Somebody reads what will not end, also where the verdict is open."""
    first = case.waits.get(finding.chain[0]) if finding.chain else None
    open_end = finding.state is State.UNKNOWN and first is not None and first.cause is Kind.IPC_NO_EOF
    return finding.cause is Kind.IPC_NO_EOF or open_end


def _no_eof(case: Case, finding: Finding) -> list[str]:
    others = kept_open_by(case, finding.chain)
    if not others:
        return ["close the reader's own write end: without it the end of the file never comes"]
    return [
        f"end pid {', '.join(map(str, others))}, or start it with its output elsewhere (>/dev/null 2>&1): "
        "until it has closed the pipe, its end never comes"
    ]


def _thaw(group: str) -> str:
    if "/freezer/" in group:
        return f"echo THAWED > {shlex.quote(group)}/freezer.state"
    return f"echo 0 > {shlex.quote(group)}/cgroup.freeze"


def _nobody_holds(case: Case, key: Key) -> bool:
    wait = case.waits.get(key)
    return wait is not None and wait.holder is None and not wait.targets


def _by_hand(case: Case) -> list[str]:
    """No rule knows more: what the waits say is all there is, and those who wrote the program know the rest."""
    waits = [key for key in sorted(case.waits, key=case.order) if case.waits[key].service is None]
    # Of a wait whose holder is known, the question is what he himself waits for.
    waits = [key for key in waits if case.waits[key].holder is None] or waits
    steps = [step for key in waits if (step := for_end(case, key)) is not None]
    root = case.scene.evidence.job.root_pid
    return steps[:_MOST_STEPS] or [f"hangtrace attach {root} -o hang.html, and read all of its stacks"]


def _file_lock(case: Case, finding: Finding, *, stopped: bool) -> list[str]:
    for key in finding.chain:
        wait = case.waits.get(key)
        if wait is None or wait.kind not in (WaitKind.FILE_LOCK, WaitKind.LOCK_FILE) or wait.holder is None:
            continue
        holder = wait.holder.pid
        what = f"pid {holder} holds {wait.object.path or 'the lock'}: let it finish, or end it"
        return [f"or end pid {holder}: the lock is then released"] if stopped else [what]
    return []
