"""Which descriptors of several processes are of one open file: by dup, by fork, or sent from one to the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyhangtrace.collect import kcmp
from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.model.open_files import Holder

SAME_FILE_TASK = "same_file"
_MOST = 64


def same_file_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: of (pid, fd) pairs the number of the open file that each is of; `None` if nobody may know."""
    same = kcmp.comparer()
    for pid in pids:
        progress(pid)
        first_of: list[tuple[int, int]] = []
        numbers: list[int] | None = []
        for one, fd in argument[pid]:
            answers = [same(one, other, kcmp.FILE, fd, second) for other, second in first_of]
            if None in answers or numbers is None:
                numbers = None
                break
            if True not in answers:
                first_of.append((one, fd))
                answers.append(True)
            numbers.append(answers.index(True))
        yield pid, numbers


def apart(
    reader: GuardedReader, holders: Sequence[Holder], *, deadline_s: float
) -> list[tuple[Holder, ...]] | None:
    """Those who have something open by one open file together; `None` if that cannot be told."""
    asked = [(holder.pid, holder.fd) for holder in holders if holder.fd is not None]
    if not asked or len(asked) != len(holders) or len(asked) > _MOST:
        return None
    first = asked[0][0]
    numbers = reader.run(SAME_FILE_TASK, [first], {first: asked}, deadline_s=deadline_s).values.get(first)
    if numbers is None:
        return None
    found: dict[int, list[Holder]] = {}
    for number, holder in zip(numbers, holders, strict=True):
        found.setdefault(number, []).append(holder)
    return [tuple(each) for each in found.values()]
