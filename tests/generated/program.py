"""The source text of a plan: one Python file that is the launcher, each rank and every other program of it."""

from __future__ import annotations

import random

from tests.generated import links, noise
from tests.generated.links import Link, Place
from tests.generated.plan import Health, Launch, Meeting, Plan
from tests.generated.words import Source, Words

_IMPORTS = """\
import asyncio
import ctypes
import fcntl
import functools
import hashlib
import multiprocessing
import os
import queue
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import announce

FOLDER = os.environ["JOB_FOLDER"]
LIBC = ctypes.CDLL(None)
KEEP = []
"""

#: How the waiter starts its holder, by where that lives, and how it learns that the holder is in place.
_START: dict[Place, tuple[str, ...]] = {
    Place.THREAD: (
        "{taken} = threading.Event()",
        "{holder} = threading.Thread(target={target}, args=({given}, {taken}.set), {label}daemon=True)",
        "{holder}.start()",
        "{taken}.wait()",
    ),
    Place.FUTURE: (
        "{taken} = threading.Event()",
        "{pool} = ThreadPoolExecutor(2, thread_name_prefix={text})",
        "{holder} = {pool}.submit({target}, {given}, {taken}.set)",
        "{taken}.wait()",
    ),
    Place.FORK: (
        "{reader}, {writer} = os.pipe()",
        "{holder} = os.fork()",
        "if {holder} == 0:",
        "    try:",
        "        announce.die_with_parent()",
        "        os.close({reader})",
        "        {target}({given}, functools.partial(os.write, {writer}, b'r'))",
        "    finally:",
        "        os._exit(1)",
        "os.close({writer})",
        "os.read({reader}, 1)",
    ),
    Place.PROCESS: (
        "{context} = multiprocessing.get_context('fork')",
        "{pipe} = {context}.Pipe({duplex})",
        "{say} = functools.partial({pipe}[1].send, 'ready')",
        "{holder} = {context}.Process(target={target}, args=({given}, {say}), {label}daemon=False)",
        "{holder}.start()",
        "{pipe}[1].close()",
        "del {say}",
        "{pipe}[0].recv()",
    ),
    Place.EXEC: (
        "{command} = [sys.executable, os.path.abspath(__file__), '{target}', str({given})]",
        "{holder} = subprocess.Popen({command}, stdin=subprocess.{stdin}, stdout=subprocess.PIPE)",
        "{said} = {holder}.stdout.readline()",
    ),
    Place.FOREIGN: (),
}

_MEETINGS: dict[Meeting, tuple[str, ...]] = {
    Meeting.BARRIER: ("{shared}.wait()",),
    Meeting.FILE_LOCK: (
        "{fd} = os.open(os.path.join(FOLDER, 'turn'), os.O_RDWR | os.O_CREAT)",
        "fcntl.flock({fd}, fcntl.LOCK_EX)",
    ),
    Meeting.RECEIVE: ("{shared}.recv(1)",),
}

_OPS = {
    "all_reduce": "dist.all_reduce(torch.ones({size}))",
    "broadcast": "dist.broadcast(torch.ones({size}), src={root})",
    "all_gather": "dist.all_gather([torch.zeros({size}) for _ in range({ranks})], torch.ones({size}))",
    "barrier": "dist.barrier()",
}


class Program:
    """Writes the program of one plan. ``actors`` are the names of the functions, ``foreign`` is what to pass to
    the one that another program starts.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(plan.seed * 7919 + 1)
        self.words = Words(self.rng)
        self.source = Source(self.rng, self.words)
        self.actors = [self.words.name() for _ in range(len(plan.steps) + 1)]
        self.foreign: str | None = None
        self._given: list[str] = []
        self._kept = self.words.name()

    def text(self) -> str:
        plan, source = self.plan, self.source
        source.lines.append(_IMPORTS)
        if plan.late is not None:
            for index in reversed(range(len(self.actors))):
                self._actor(index)
        self._noise()
        self._bystander()
        self._work()
        self._main()
        return source.text()

    # -- the chain -------------------------------------------------------------------------------------------

    def role(self, index: int) -> str:
        """Under what an actor announces itself."""
        foreign = self.plan.foreign_from()
        if foreign is not None and index >= foreign:
            return f"foreign.{index}"
        late = member(self.plan, self.plan.late or 0)
        return late if index == 0 else f"{late}.{index}"

    def _actor(self, index: int) -> None:
        plan, words = self.plan, self.words
        names: dict[str, str] = {}
        inner = self.actors[index]
        for _ in range(self.rng.choice((0, 0, 1, 2))):
            outer, inner = inner, words.name()
            self.source.add([f"def {outer}(*given):", f"    return {inner}(*given)"])
        before = links.link(plan.steps[index - 1].kind) if index else None
        body, depth = [], 1

        def put(lines: list[str]) -> None:
            body.extend("    " * depth + line for line in lines)

        if before is None:
            put_head = f"def {inner}():"
        else:
            names["it"], names["ready"] = words.name(), words.name()
            put_head = f"def {inner}({names['it']}, {names['ready']}):"
        if plan.back_to == index:
            kept, inside = self._keep()
            put(kept)
            depth += inside
        outside = depth
        if before is not None:
            put(words.fill(before.hold, names))
            depth += before.inside
            put(words.fill(("{ready}(" + before.ready_words + ")", *before.then), names))
        put(self._trouble(index))
        if before is not None:
            depth = outside
            put(words.fill(before.after, names))
        self.source.add([put_head, *body])

    def _keep(self) -> tuple[list[str], bool]:
        """What an actor takes that the last one wants back."""
        names = {"it": self._kept}
        if self.plan.end in links.BACK_OUTSIDE:
            path = f"{self._kept} = os.path.join(FOLDER, {self._kept!r})"
            return [path, *self.words.fill(links.link(self.plan.end).hold, names)], False
        one = links.link(self.plan.end)
        lines = [f"global {self._kept}", *self.words.fill((*one.make, *one.hold), names)]
        return lines, one.inside

    def _trouble(self, index: int) -> list[str]:
        """What an actor is in: a wait for the next one, or the end."""
        plan, words = self.plan, self.words
        announced = [f"announce.member({self.role(index)!r})"]
        if index < len(plan.steps):
            step = plan.steps[index]
            one = links.link(step.kind)
            names: dict[str, str] = {}
            made = words.fill(one.make, names)
            start = self._start(index, one, step.place, made, names)
            return [
                *made,
                *start,
                *words.fill(one.connect, names),
                *announced,
                *words.fill(one.want, names),
            ]
        if plan.back_to is None:
            end = links.end(plan.end)
            names = {}
            return [*words.fill(end.before, names), *announced, *words.fill(end.code, names)]
        one = links.link(plan.end)
        names = {"it": self._kept}
        path = [f"{self._kept} = os.path.join(FOLDER, {self._kept!r})"]
        return [*(path if plan.end in links.BACK_OUTSIDE else []), *announced, *words.fill(one.want, names)]

    def _start(
        self, index: int, one: Link, place: Place, made: list[str], names: dict[str, str]
    ) -> list[str]:
        if place is Place.FOREIGN:
            # It was there before: all it needs is where to meet.
            self.foreign = made[0].partition(" = ")[2]
        names |= {
            "target": self.actors[index + 1],
            "given": names.get("it", "None"),
            "label": f"name={self.words.text()}, " if self.rng.random() < 0.6 else "",
            "duplex": str(self.rng.random() < 0.5),
            "stdin": "PIPE" if one.kind == "fill-program" else "DEVNULL",
        }
        return self.words.fill(_START[place], names)

    # -- around it -------------------------------------------------------------------------------------------

    def _noise(self) -> None:
        lines = []
        for kind in self.plan.noise:
            lines += self.words.fill(noise.KINDS[kind], {})
        self.source.add(["def noise():", *("    " + line for line in (*lines, "return"))])

    def _bystander(self) -> None:
        """Another job, which has nothing to do with ours: it keeps a lock, and is late itself."""
        lines = self.words.fill(
            (
                "{fd} = os.open(os.path.join(FOLDER, {text}), os.O_RDWR | os.O_CREAT)",
                "fcntl.flock({fd}, fcntl.LOCK_EX)",
                "announce.member('bystander')",
                "time.sleep({long})",
            ),
            {},
        )
        self.source.add(["def bystander(*_):", *("    " + line for line in lines)])

    def _work(self) -> None:
        plan = self.plan
        start: list[str] = []
        if plan.numbered and plan.launch is not Launch.SIBLINGS:
            told = f"RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE={str(plan.ranks)!r}"
            start.append(f"os.environ.update({told})")
        start.append("announce.die_with_parent()")
        if plan.meeting is Meeting.GLOO:
            start += [
                "import torch",
                "import torch.distributed as dist",
                "torch.set_num_threads(1)",
                "dist.init_process_group('gloo')",
                "dist.all_reduce(torch.ones(3))",
            ]
        elif plan.meeting is Meeting.BARRIER and plan.health not in (Health.FED, Health.WAITING):
            start += ["shared.wait()"] * self.rng.randint(0, 2)
        noise_line = ["noise()"]
        trouble = self._healthy() if plan.late is None else self._unwell()
        order = [*noise_line, *start] if plan.noise_before else [*start, *noise_line]
        self.source.add(["def work(number, shared=None):", *("    " + line for line in (*order, *trouble))])

    def _meet(self) -> list[str]:
        plan = self.plan
        if plan.meeting is Meeting.GLOO:
            size = str(self.rng.randrange(1, 5000))
            # Of a broadcast only those wait who are not the root.
            values = {"size": size, "ranks": str(plan.ranks), "root": str(plan.late or 0)}
            return self.words.fill((_OPS[plan.op],), values)
        return self.words.fill(_MEETINGS[plan.meeting], {"shared": "shared"})

    def _unwell(self) -> list[str]:
        plan = self.plan
        late: list[str] = [f"{self.actors[0]}()"]
        others = [f"announce.member(f'{member_pattern(plan)}')", *self._meet(), "signal.pause()"]
        if plan.meeting is Meeting.FILE_LOCK:
            late = [*self._meet(), "open(os.path.join(FOLDER, 'taken'), 'w').close()", *late]
            others = [
                "while not os.path.exists(os.path.join(FOLDER, 'taken')):",
                "    time.sleep(0.02)",
                *others,
            ]
        elif plan.meeting is Meeting.RECEIVE:
            late = [
                "server = socket.socket(socket.AF_UNIX)",
                "server.bind(os.path.join(FOLDER, 'starting'))",
                "server.listen(8)",
                "os.rename(os.path.join(FOLDER, 'starting'), os.path.join(FOLDER, 'turn'))",
                f"callers = [server.accept()[0] for _ in range({plan.ranks - 1})]",
                "KEEP.extend(callers)",
                "server.close()",
                *late,
            ]
            others = [
                "while not os.path.exists(os.path.join(FOLDER, 'turn')):",
                "    time.sleep(0.02)",
                "shared = socket.socket(socket.AF_UNIX)",
                "shared.connect(os.path.join(FOLDER, 'turn'))",
                *others,
            ]
        return [
            f"if number == {plan.late}:",
            *("    " + line for line in late),
            "else:",
            *("    " + line for line in others),
        ]

    def _healthy(self) -> list[str]:
        plan = self.plan
        meet = self._meet() if plan.health in (Health.STEPS, Health.STRAGGLER) else []
        announced = f"announce.member(f'{member_pattern(plan)}')"
        if plan.health is Health.STEPS:
            return [
                announced,
                "while True:",
                "    time.sleep(random.uniform(0, 0.04))",
                *("    " + line for line in meet),
            ]
        if plan.health is Health.STRAGGLER:
            return [
                announced,
                "while True:",
                f"    if number == {straggler(plan)}:",
                "        time.sleep(2.0)",
                *("    " + line for line in meet),
            ]
        if plan.health is Health.FED:
            first = [
                "while True:",
                "    for one in shared:",
                "        one.put(number)",
                "    time.sleep(0.3)",
            ]
        else:
            first = ["server = socket.create_server(('127.0.0.1', 0))", "server.accept()"]
        return [
            announced,
            "if number == 0:",
            *("    " + line for line in first),
            "while shared[number - 1].get() is not None:",
            "    pass",
        ]

    def _main(self) -> None:
        plan = self.plan
        if plan.launch is Launch.SIBLINGS:
            body = ["work(int(os.environ['RANK']))"]
        else:
            method = "fork" if plan.launch is Launch.FORK else "spawn"
            body = [f"context = multiprocessing.get_context({method!r})"]
            if plan.meeting is Meeting.GLOO and plan.launch is Launch.FORK:
                body.append("import torch.distributed")
            if plan.health in (Health.FED, Health.WAITING):
                body.append(f"shared = [context.Queue() for _ in range({plan.ranks - 1})]")
            elif plan.meeting is Meeting.BARRIER:
                body.append(f"shared = context.Barrier({plan.ranks})")
            else:
                body.append("shared = None")
            body += [
                f"ranks = [context.Process(target=work, args=(n, shared)) for n in range({plan.ranks})]",
                "for one in ranks:",
                "    one.start()",
                "announce.member('launcher')",
                "for one in ranks:",
                "    one.join()",
            ]
        self.source.add(["def main():", *("    " + line for line in body)])
        self.source.add(
            [
                "def as_told(name, given=None):",
                "    announce.die_with_parent()",
                "    globals()[name](given, functools.partial(print, flush=True) if given else print)",
            ]
        )
        self.source.lines += [
            "",
            "",
            'if __name__ == "__main__":',
            "    as_told(*sys.argv[1:]) if sys.argv[1:] else main()",
        ]


def member(plan: Plan, number: int) -> str:
    """The role of a rank; one that was told no number is called otherwise, so that none is expected of it."""
    return f"rank{number}" if plan.numbered else f"worker{number}"


def member_pattern(plan: Plan) -> str:
    return "rank{number}" if plan.numbered else "worker{number}"


def straggler(plan: Plan) -> int:
    """Which rank of a healthy job needs longer than the others."""
    return plan.seed % plan.ranks
