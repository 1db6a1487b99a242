"""What will soon end the hang and take the evidence with it: time limits of torch and of serving engines, alarms, and
timeout(1).

Only where it is evident that the clock runs: a limit that the kernel or memory shows, or one of an engine whose rule is
known, from the command line or environment it was started with. Ages are of waits that have not moved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyhangtrace.analyze.blocked import GROUP_KINDS
from pyhangtrace.analyze.calls import path_has, python_frames, short
from pyhangtrace.analyze.finding import Case, Finding
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.kinds import State
from pyhangtrace.model.processes import ProcessFacts
from pyhangtrace.model.report import Deadline
from pyhangtrace.model.threads import ThreadSample

# Functions of gloo, of torch's store, and of work begun before, that wait in one call until their time is over.
_GLOO_WAITS = re.compile(r"::(UnboundBuffer::wait(Recv|Send)|TCPStore::do(Wait|Get)|Work::wait)\b")
_GLOO_LOOP = "gloo run loop"
_NAPS = frozenset({"nanosleep", "clock_nanosleep"})

# What comes later than a day takes no evidence from anybody.
_LATEST_S = 86400.0

_SIGALRM = 14
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+\.?\d*|\.\d+)([smhd]?)")
# Options of timeout(1) that have a value in the next word.
_WITH_VALUE = frozenset({"-k", "-s", "--kill-after", "--signal"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    """An engine's own: it counts while a thread of it is in one of these functions of these files.

    `name` is the option or variable that sets it, `started` what the command line of the engine has; () where a
    variable alone may set it.
    """

    what: str
    name: str
    default_s: int
    functions: tuple[str, ...]
    place: str
    started: tuple[str, ...] = ()


# SGLang 0.4 to 0.5 (srt/managers/scheduler.py, utils/watchdog.py): only while a batch is at work; it first writes what
# it sees, then ends the server about 70 s later. vLLM 0.9 to 0.32 (v1/executor/multiproc_executor.py, envs.py).
_LIMITS = (
    _Limit(
        what="SGLang's watchdog (--watchdog-timeout) fires, about 70 s before it ends the server,",
        name="--watchdog-timeout",
        default_s=300,
        functions=("run_batch", "process_batch_result", "forward_batch_generation"),
        place="sglang/",
        started=("sglang.launch_server", "sglang serve"),
    ),
    _Limit(
        what="vLLM's engine gives up (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)",
        name="VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
        default_s=300,
        functions=("execute_model", "sample_tokens"),
        place="vllm/v1/",
    ),
)


def deadline_of(case: Case, finding: Finding) -> Deadline | None:
    """The first thing that will end a hang by itself; None where nothing is known to."""
    if finding.state is not State.HUNG:
        return None
    keys = tuple(dict.fromkeys((*finding.victims, *finding.chain, *finding.cycle, *_named(finding))))
    found = [*_of_operations(case, keys), *_of_engines(case.scene, keys), *_of_processes(case.scene, keys)]
    soon = (one for one in found if one.in_s <= _LATEST_S)
    return min(soon, key=lambda one: (one.in_s, one.what), default=None)


def _named(finding: Finding) -> Iterator[Key]:
    return (who.key for who in finding.named if who.key is not None)


def _of_operations(case: Case, keys: Iterable[Key]) -> Iterator[Deadline]:
    """What threads wait for with a limit, or what their process' backend has begun for them with one."""
    scene = case.scene
    pids = set()
    for key in keys:
        wait, sample = case.waits.get(key), scene.thread(key)
        if wait is None or sample is None or wait.kind not in GROUP_KINDS:
            continue
        pids.add(key[0])
        left = _left_s(scene, sample)
        if left is not None:
            yield Deadline(what=f"{_who(scene, key[0])} gives up {wait.object.name or 'its call'}", in_s=left)
    for pid in sorted(pids):
        loops = (scene.thread(key) for key in scene.threads_of(pid) if scene.services[key] == _GLOO_LOOP)
        lefts = [left for loop in loops if loop is not None and (left := _left_s(scene, loop)) is not None]
        if lefts:
            yield Deadline(what=f"gloo gives up the operation of {_who(scene, pid)}", in_s=min(lefts))
    for group in scene.evidence.groups:
        for pending in group.pending if group.pid in pids else ():
            if pending.backend == "nccl" and pending.left_s is not None and pending.left_s > 0:
                name = f"NCCL's watchdog ends {_who(scene, group.pid)} for want of {pending.op}"
                yield Deadline(what=name, in_s=round(pending.left_s, 1))


def _left_s(scene: Scene, sample: ThreadSample) -> float | None:
    """Of a wait of gloo's or of the store that has a limit, as its own call says; not of a nap between two tries."""
    left = sample.remaining_s
    if left is None or left <= 0 or sample.state != "S" or scene.syscall(sample) in _NAPS:
        return None
    inside = any(_GLOO_WAITS.search(frame.function) for frame in sample.frames)
    return round(left, 1) if inside else None


def _of_engines(scene: Scene, keys: tuple[Key, ...]) -> Iterator[Deadline]:
    for limit in _LIMITS:
        inside = [key for key in keys if _is_in(scene, key, limit.functions, limit.place)]
        ages = [age for key in inside if (age := _age_s(scene, key)) is not None]
        limit_s = _value(scene, limit)
        if not ages or limit_s is None or limit_s <= 0:
            continue
        left = limit_s - max(ages)
        if left > 0:
            yield Deadline(what=limit.what, in_s=round(left, 1))


def _of_processes(scene: Scene, keys: Iterable[Key]) -> Iterator[Deadline]:
    """Alarms that nobody handles, and timeout(1) above."""
    pids = sorted({pid for pid, _ in keys if pid in scene.processes})
    for pid in pids:
        process = scene.processes[pid]
        unhandled = process.signals_caught is not None and _SIGALRM not in process.signals_caught
        if process.alarm_s is not None and unhandled:
            yield Deadline(what=f"the alarm of {_who(scene, pid)} ends it", in_s=round(process.alarm_s, 1))
    above = {each for pid in pids for each in scene.ancestors(pid) if each in scene.processes}
    for pid in sorted(above):
        left = _left_of_timeout_s(scene.processes[pid])
        if left is not None and left > 0:
            yield Deadline(what=f"timeout (pid {pid}) ends the program it has started", in_s=round(left, 1))


def _left_of_timeout_s(process: ProcessFacts) -> float | None:
    """Of a process that runs timeout(1), by its command line and age, while it has a timer."""
    words = process.title.split()
    if process.comm != "timeout" or not process.timers or process.started_s_ago is None:
        return None
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in _WITH_VALUE else 1
    told = _DURATION.fullmatch(words[at]) if at < len(words) else None
    if told is None:
        return None
    return float(told[1]) * _UNITS_S[told[2]] - process.started_s_ago


def _is_in(scene: Scene, key: Key, functions: tuple[str, ...], place: str) -> bool:
    sample = scene.thread(key)
    return sample is not None and any(
        short(frame.function) in functions and path_has(frame.file, place)
        for frame in python_frames(sample.frames)
    )


def _age_s(scene: Scene, key: Key) -> float | None:
    sample = scene.thread(key)
    return sample.asleep_for_s if sample is not None and sample.state == "S" else None


def _value(scene: Scene, limit: _Limit) -> float | None:
    """What the engine was told; its default where it was started in a way that would show another value."""
    processes = scene.processes.values()
    told = {value for process in processes for name, value in process.limits if name == limit.name}
    if told:
        return min(told)
    started = any(word in process.title for process in processes for word in limit.started)
    return limit.default_s if started or not limit.started else None


def _who(scene: Scene, pid: int) -> str:
    rank = scene.who.rank(pid)
    return f"rank {rank}" if rank is not None else f"pid {pid}"
