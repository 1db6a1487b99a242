"""Requests that a server has taken and not answered yet, as the tasks of its event loop show them.

The process that talks with clients waits for none of its parts in particular: its loop polls, whatever it waits for.
But it keeps a task for each request, which waits for the answer of the parts behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyhangtrace.analyze.blocked import Blocked, changed
from pyhangtrace.analyze.calls import path_has, python_frames, short
from pyhangtrace.analyze.finding import Case, Finding
from pyhangtrace.analyze.progress import SETTLED_S
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.evidence import Look
from pyhangtrace.model.kinds import Kind, State, WaitKind
from pyhangtrace.model.quantities import plural
from pyhangtrace.model.report import ANSWERS

# The coroutine that waits for the answer, and the end of its file: vLLM 0.8 to 0.32, SGLang 0.4 to 0.5.
_ASKS = (
    ("generate", "vllm/v1/engine/async_llm.py"),
    ("encode", "vllm/v1/engine/async_llm.py"),
    ("_wait_one_response", "sglang/srt/managers/tokenizer_manager.py"),
    ("_stream_one_response", "sglang/srt/managers/tokenizer_manager.py"),
)


def unanswered(scene: Scene) -> dict[Key, int]:
    """How many requests wait for an answer in each thread that runs a loop: those that all looks show."""
    looks = scene.evidence.looks
    if not looks:
        return {}
    asked = set.intersection(*map(_asked, looks))
    found: dict[Key, int] = {}
    for pid, tid, _ in asked:
        found[(pid, tid)] = found.get((pid, tid), 0) + 1
    return found


def _asked(look: Look) -> set[tuple[int, int, int]]:
    return {
        (task.pid, task.tid, task.address)
        for task in look.tasks
        if task.tid is not None
        and any(_is_request(frame.function, frame.file) for frame in python_frames(task.frames))
    }


def _is_request(function: str, file: str | None) -> bool:
    return any(short(function) == name and path_has(file, place) for name, place in _ASKS)


def settle_requests(scene: Scene, waits: Mapping[Key, Blocked]) -> dict[Key, Blocked]:
    """The same waits, with what clients wait for as their object."""
    asking = unanswered(scene)
    return {key: _asking(wait, asking[key]) if key in asking else wait for key, wait in waits.items()}


def _asking(wait: Blocked, count: int) -> Blocked:
    if wait.kind is not WaitKind.POLL or wait.object.name is not None:
        return wait
    name = f"{ANSWERS} {count} {plural(count, 'request', 'requests')}"
    return changed(wait, object=changed(wait.object, name=name))


def with_askers(case: Case, finding: Finding) -> Finding:
    """The verdict, with who waits for answers of those that hang among the victims; and not idle while anybody does."""
    asking = [key for key in sorted(unanswered(case.scene), key=case.order) if key in case.waits]
    if not asking:
        return finding
    if finding.state is State.IDLE:
        return Finding(state=State.UNKNOWN, cause=Kind.UNKNOWN, victims=tuple(asking), chain=(asking[0],))
    named = {who.key[0] for who in finding.named if who.key is not None}
    known = {key[0] for key in finding.victims}
    more = tuple(key for key in asking if key[0] not in known | named)
    if finding.state is not State.HUNG or not more:
        return finding
    return replace(finding, victims=(*finding.victims, *more))


def may_be_answered(scene: Scene, finding: Finding) -> bool:
    """Whether it is too early to say that nobody is at the requests that are open."""
    return (
        finding.state is State.UNKNOWN
        and scene.evidence.window_s < SETTLED_S
        and bool(unanswered(scene).keys() & set(finding.victims))
    )
