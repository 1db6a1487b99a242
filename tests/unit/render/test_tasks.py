"""Tasks inside of threads: grouped in the text, all of them in the other formats, absent from old evidence."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

from pyhangtrace.model.codec import pack, report_from_json, report_to_json, unpack
from pyhangtrace.model.kinds import FoundBy, FrameKind, TaskKind
from pyhangtrace.model.report import Report, ReportTask
from pyhangtrace.model.stacks import Frame
from pyhangtrace.model.threads import TaskSample
from pyhangtrace.render.folded import render_folded
from pyhangtrace.render.html.page import render_html
from pyhangtrace.render.speedscope import render_speedscope
from pyhangtrace.render.stacks import stack_classes
from pyhangtrace.render.text.page import render_text
from pyhangtrace.render.text.tasks import task_rows
from tests.unit.render.sample import frame, result

GET = frame("Queue.get", "/usr/lib/python3.11/asyncio/queues.py", 158)
CONSUME = frame("consume", "/opt/serve/server.py", 88)
NAP = frame("sleep", "/usr/lib/python3.11/asyncio/tasks.py", 639)
WATCH = frame("watch", "/opt/serve/server.py", 120)


def task(name: str, **more: object) -> ReportTask:
    whole = ReportTask(thread=70, name=name, kind=TaskKind.ASYNCIO, awaits="Queue.get", stack=(GET, CONSUME))
    return replace(whole, **more)


TASKS = (
    *(task(f"Task-{number}") for number in range(10)),
    task("watch", awaits="sleep", wakes_in_s=3000.0, stack=(NAP, WATCH)),
    task("main", awaits=None, current=True, stack=(WATCH,)),
    task("new", awaits="ready", stack=(CONSUME,)),
    task("over", done=True, awaits=None, stack=()),
    task("died", done=True, awaits=None, exception="KeyError", stack=()),
    task("given up", done=True, awaits=None, exception="CancelledError", stack=()),
    task("Greenlet", kind=TaskKind.GREENLET, awaits=None, stack=(CONSUME,)),
)


def report_with(tasks: tuple[ReportTask, ...], *, processes: int = 1) -> Report:
    report = result().report
    changed = tuple(
        replace(process, tasks=tasks) if number < processes else process
        for number, process in enumerate(report.processes)
    )
    return replace(report, processes=changed)


def test_tasks_that_stand_alike_are_one_group() -> None:
    (row,) = task_rows(report_with(TASKS))
    assert row.label == "rank 0"
    assert row.lines == (
        "14 asyncio tasks: 10 await Queue.get in consume (server.py:88); "
        "1 awaits sleep for another 50 min in watch (server.py:120); 1 runs in watch (server.py:120); "
        "1 is ready to run in consume (server.py:88); 1 ended by KeyError",
        "1 greenlet: 1 is suspended in consume (server.py:88)",
    )


def test_ranks_whose_tasks_stand_alike_share_a_row() -> None:
    (row,) = task_rows(report_with(TASKS, processes=3))
    assert row.label == "ranks 0-2"
    assert "tasks" not in render_text(report_with(()), color=False).splitlines()
    assert "tasks" in render_text(report_with(TASKS), color=False).splitlines()


def test_the_odd_one_of_many_groups_is_shown() -> None:
    tasks = [
        task(f"{line}-{number}", stack=(frame("f", "/opt/a.py", line),))
        for line in range(1, 8)
        for number in range(10 - line)
    ]
    tasks.append(task("odd", stack=(frame("odd", "/opt/b.py", 1),), moved=True))
    ((line,),) = (row.lines for row in task_rows(report_with(tuple(tasks))))
    assert line.startswith(
        "43 asyncio tasks, changing while it was looked at: 9 await Queue.get in f (a.py:1)"
    )
    assert line.endswith("; 1 awaits Queue.get in odd (b.py:1); 18 more elsewhere")


def test_stacks_of_suspended_tasks_are_classes_of_their_own() -> None:
    classes = [item for item in stack_classes(report_with(TASKS)) if item.tasks]
    assert sorted(len(item.members) for item in classes) == [1, 2, 10]
    (largest,) = (item for item in classes if len(item.members) == 10)
    assert largest.frames == (CONSUME, GET)
    assert {member.waits for member in largest.members} == {"awaits Queue.get"}


def test_every_format_has_the_tasks() -> None:
    report = report_with(TASKS)
    assert "rank 0;asyncio task Task-3;consume (server.py:88);Queue.get (queues.py:158) 1\n" in render_folded(
        report
    )
    names = {one["name"] for one in json.loads(render_speedscope(report))["shared"]["frames"]}
    assert "asyncio task watch" in names
    assert "10 await Queue.get" in render_html(report)
    assert report_from_json(report_to_json(report)) == report


def test_evidence_from_before_there_were_tasks_can_be_read() -> None:
    evidence = result().evidence
    assert evidence is not None
    place = Frame(kind=FrameKind.PYTHON, function="f", file="a.py", line=1, found_by=FoundBy.PYTHON)
    looks = tuple(replace(look, tasks=(TaskSample(pid=70, frames=(place,)),)) for look in evidence.looks)
    with_tasks = replace(evidence, looks=looks)
    assert unpack(pack(with_tasks)) == with_tasks
    plain = json.loads(gzip.decompress(pack(with_tasks)))
    for look in plain["looks"]:
        del look["tasks"]
    old = unpack(gzip.compress(json.dumps(plain).encode()))
    assert old.looks == tuple(replace(look, tasks=()) for look in looks)
