"""Semaphores and message queues of System V that threads wait for: how they stand, and who touched them last.

Only asked, never changed: /proc/sysvipc/msg, and of semctl(2) what reads. Layouts: ipc/msg.c and ipc/sem.c
(`sysvipc_*_proc_show`), linux/sem.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.namespaces import Namespace, inside
from pyhangtrace.collect.procfs import PROC, read_link, read_text
from pyhangtrace.model import syscalls
from pyhangtrace.model.open_files import IpcFacts
from pyhangtrace.model.threads import ThreadSample

IPC_TASK = "ipc"
_GETPID, _GETVAL, _GETNCNT, _GETZCNT = 11, 12, 14, 15
_MOST_PER_PROCESS = 64
_LARGEST_TABLE = 8 << 20

# (kind, id, number in a set of semaphores or -1)
Wanted = tuple[str, int, int]


def ipc_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: (IpcFacts of what each pid asks for, problem)."""
    ours = read_link(f"{state.proc_root}/self/ns/ipc")
    for pid in pids:
        progress(pid)
        path = f"{state.proc_root}/{pid}/ns/ipc"
        theirs = read_link(path)
        try:
            with inside(path if theirs not in (None, ours) else None, Namespace.IPC):
                yield pid, (_facts(pid, argument[pid]), None)
        except OSError as error:
            yield pid, ((), f"IPC namespace of {pid}: {error.strerror}")


def _facts(pid: int, wanted: Sequence[Wanted]) -> tuple[IpcFacts, ...]:
    # The table is that of the namespace in which it is opened, whatever /proc is mounted.
    queues = {facts.id: facts for facts in parse_queues(_table("msg"), pid)}
    keys = dict(parse_keys(_table("sem")))
    found = []
    for kind, identifier, number in wanted:
        if kind == "msg":
            if identifier in queues:
                found.append(queues[identifier])
        elif identifier in keys:
            found.append(_semaphore(pid, identifier, keys[identifier], number))
    return tuple(found)


def _table(name: str) -> str:
    return read_text(f"{PROC}/sysvipc/{name}", _LARGEST_TABLE) or ""


def _semaphore(pid: int, identifier: int, key: int, number: int) -> IpcFacts:
    def ask(command: int) -> int | None:
        answer = int(ctypes.CDLL(None).semctl(identifier, number, command, 0))
        return answer if answer >= 0 else None

    return IpcFacts(
        pid=pid,
        kind="sem",
        id=identifier,
        key=key,
        number=number,
        value=ask(_GETVAL),
        # For it to rise, and for it to become zero.
        waiting=(ask(_GETNCNT) or 0) + (ask(_GETZCNT) or 0),
        last_pid=ask(_GETPID),
    )


def parse_queues(text: str, pid: int) -> Iterator[IpcFacts]:
    """Lines of /proc/sysvipc/msg: key msqid perms cbytes qnum lspid lrpid ..."""
    for line in text.splitlines()[1:]:
        words = line.split()
        try:
            key, identifier, queued, messages, sender, receiver = (
                int(words[index]) for index in (0, 1, 3, 4, 5, 6)
            )
        except (ValueError, IndexError):
            continue
        yield IpcFacts(
            pid=pid,
            kind="msg",
            id=identifier,
            key=key & 0xFFFFFFFF,
            queued=queued,
            messages=messages,
            last_sender=sender,
            last_receiver=receiver,
        )


def parse_keys(text: str) -> Iterator[tuple[int, int]]:
    """(id, key) for each line of /proc/sysvipc/sem: key semid perms ..."""
    for line in text.splitlines()[1:]:
        words = line.split()
        try:
            yield int(words[1]), int(words[0]) & 0xFFFFFFFF
        except (ValueError, IndexError):
            continue


def wanted_by(samples: Iterable[ThreadSample], machine: str) -> dict[int, list[Wanted]]:
    """What threads wait for, by process."""
    found: dict[int, dict[Wanted, None]] = {}
    for sample in samples:
        call = syscalls.name(sample.syscall, machine)
        if call in ("msgrcv", "msgsnd") and sample.args:
            found.setdefault(sample.pid, {})[("msg", sample.args[0], -1)] = None
        elif call in ("semop", "semtimedop") and sample.args:
            for number, change in sample.semaphores:
                if change <= 0:
                    found.setdefault(sample.pid, {})[("sem", sample.args[0], number)] = None
    return {pid: list(each)[:_MOST_PER_PROCESS] for pid, each in found.items()}


def collect(
    reader: GuardedReader, samples: Iterable[ThreadSample], *, machine: str, deadline_s: float
) -> tuple[tuple[IpcFacts, ...], str | None]:
    """How they stand, and why some are missing."""
    wanted = wanted_by(samples, machine)
    if not wanted:
        return (), None
    answers = reader.run(IPC_TASK, list(wanted), wanted, deadline_s=deadline_s)
    problem = next(iter(answers.problems.values()), None)
    found: list[IpcFacts] = []
    for facts, trouble in answers.values.values():
        found.extend(facts)
        problem = problem or trouble
    ordered = sorted(found, key=lambda facts: (facts.pid, facts.kind, facts.id, facts.number or 0))
    return tuple(ordered), problem
