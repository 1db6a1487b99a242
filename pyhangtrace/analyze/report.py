"""The entry points: evidence in, report out, and what more evidence a verdict would need."""

from __future__ import annotations

from pyhangtrace.analyze.build import build
from pyhangtrace.analyze.bystanders import settle_bystanders
from pyhangtrace.analyze.collectives import match
from pyhangtrace.analyze.event_loops import settle_tasks
from pyhangtrace.analyze.finding import Case, Finding
from pyhangtrace.analyze.fronts import settle_fronts
from pyhangtrace.analyze.graph import judge
from pyhangtrace.analyze.lost_work import settle_lost_work
from pyhangtrace.analyze.outsiders import Wanted, wanted
from pyhangtrace.analyze.patience import patience
from pyhangtrace.analyze.phase import reads_files
from pyhangtrace.analyze.requests import settle_requests
from pyhangtrace.analyze.scene import Key, build_scene
from pyhangtrace.analyze.sole_wakers import settle_sole_wakers
from pyhangtrace.analyze.verdict import find
from pyhangtrace.analyze.waits import classify
from pyhangtrace.analyze.ways_out import open_memory
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.kinds import State
from pyhangtrace.model.report import Report


def analyze(evidence: Evidence) -> Report:
    """What the evidence means. Pure: the same evidence gives the same report."""
    return build(*_conclude(evidence))


def more_time_wanted(evidence: Evidence) -> float:
    """Seconds by which the window should grow before the next look; 0.0 when the verdict can be given now.

    0.1 with a single look (unless that settles it), then up to 3 s in total where a straggler or a request
    loop could be taken for a hang.
    """
    case, finding = _conclude(evidence)
    return patience(case.scene, dict(case.waits), case.judged, finding)


def outsiders_wanted(evidence: Evidence) -> Wanted:
    """Whom waits lead to that is not in the evidence: holders of file locks, other ends of pipes and sockets, children,
    owners of shared mutexes, tracers. To be added with role outsider before the next look, or as members.
    """
    return wanted(evidence)


def alarms_wanted(evidence: Evidence) -> tuple[int, ...]:
    """Processes whose own alarm would end a hang: it should be known of them before that is said to be one."""
    case, finding = _conclude(evidence)
    if finding.state is not State.HUNG:
        return ()
    return tuple(sorted({key[0] for key in _told(finding) if key in case.waits}))


def shared_locks_wanted(evidence: Evidence) -> dict[int, frozenset[tuple[int, int]]]:
    """Of processes that hang on locks in shared memory that others than their owners can unlock: device and inode of
    that memory. Who else has it should be known before that is said to be a hang for good.
    """
    # Few programs have any, and to conclude is work.
    if not any(open_memory(sample) for look in evidence.looks for sample in look.threads):
        return {}
    case, finding = _conclude(evidence)
    if finding.state is not State.HUNG:
        return {}
    found: dict[int, set[tuple[int, int]]] = {}
    for key in _told(finding):
        memory = open_memory(case.scene.thread(key))
        if memory is not None:
            found.setdefault(key[0], set()).add(memory)
    return {pid: frozenset(memories) for pid, memories in found.items()}


def progress_wanted(evidence: Evidence) -> bool:
    """Whether it matters how far big files are read: by their stacks the ranks load or save them."""
    return reads_files(build_scene(evidence))


def _told(finding: Finding) -> set[Key]:
    """Threads of which a verdict speaks."""
    return {key for keys in (finding.chain, finding.cycle, *finding.other_cycles) for key in keys}


def _conclude(evidence: Evidence) -> tuple[Case, Finding]:
    scene = build_scene(evidence)
    waits = {key: wait for key in scene.thread_keys() if (wait := classify(scene, key)) is not None}
    waits = settle_fronts(scene, settle_tasks(scene, settle_sole_wakers(scene, waits)))
    waits = settle_requests(scene, settle_lost_work(scene, waits))
    matched = match(scene, settle_bystanders(scene, waits))
    case = Case(scene=scene, matched=matched, judged=judge(scene, matched.waits))
    return case, find(scene, matched, case.judged)
