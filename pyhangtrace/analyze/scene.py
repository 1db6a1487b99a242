"""The evidence, indexed: every question of the other modules is one look-up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyhangtrace.analyze.identity import Identities, identify
from pyhangtrace.analyze.lock_queues import LockQueues, lock_queues
from pyhangtrace.analyze.named_values import NamedValues
from pyhangtrace.analyze.openmp import Place
from pyhangtrace.analyze.progress import is_ready
from pyhangtrace.analyze.readings import Reading, read
from pyhangtrace.analyze.rests import at_rest, completed, in_passing
from pyhangtrace.analyze.services import does_work, service_of
from pyhangtrace.model import syscalls
from pyhangtrace.model.evidence import Evidence
from pyhangtrace.model.groups import GroupWait
from pyhangtrace.model.kinds import Role
from pyhangtrace.model.open_files import FdFacts
from pyhangtrace.model.processes import ProcessFacts
from pyhangtrace.model.programs import builds
from pyhangtrace.model.threads import ThreadSample

# (pid, tid) of a thread; a rank without a process is (-1 - rank, 0), a process whose threads nobody saw (pid, 0).
Key = tuple[int, int]

# Less CPU than this is a thread that wakes and sleeps again.
_WORKS_SHARE = 0.1

# Problems of a process that could be read another time.
_NOT_IN_TIME = ("timed_out", "no_time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """`samples` holds each thread's samples in order of the looks; only threads of the newest picture of their
    process are in it. `services` says which threads only serve, `workers` by process which have work of their own or
    serve somebody just now, `teams` which are in one of OpenMP. `ended` are zombies, and processes that were there
    and are gone.
    """

    evidence: Evidence
    who: Identities
    processes: Mapping[int, ProcessFacts]
    children: Mapping[int, tuple[int, ...]]
    samples: Mapping[Key, tuple[ThreadSample, ...]]
    times: Mapping[Key, tuple[float, ...]]
    threads: Mapping[int, tuple[Key, ...]]
    by_tid: Mapping[int, Key]
    readings: Mapping[Key, Reading]  # of the newest samples
    teams: Mapping[Key, Place]
    services: Mapping[Key, str | None]
    at_work: frozenset[Key]
    workers: Mapping[int, tuple[Key, ...]]
    began: frozenset[Key]  # not there yet when their process was first looked at
    passing: Mapping[Key, int]  # on their way from nap to nap, in so many of the newest looks in a row
    queues: LockQueues
    values: NamedValues
    calls: Mapping[int, str]
    fds: Mapping[tuple[int, int], FdFacts]
    group_waits: Mapping[Key, GroupWait]
    ended: frozenset[int]

    def thread(self, key: Key) -> ThreadSample | None:
        """The thread's newest sample."""
        samples = self.samples.get(key)
        return samples[-1] if samples else None

    def reading(self, sample: ThreadSample) -> Reading:
        """What the names in the stack of one of the samples say."""
        key = (sample.pid, sample.tid)
        return self.readings[key] if sample is self.samples[key][-1] else read(sample.frames)

    def thread_keys(self) -> Iterator[Key]:
        """All threads, by pid and tid."""
        return iter(self.samples)

    def threads_of(self, pid: int) -> tuple[Key, ...]:
        """Threads of a process, the main thread first."""
        return self.threads.get(pid, ())

    def syscall(self, sample: ThreadSample) -> str | None:
        """Name of the system call the thread is in."""
        return self.calls.get(sample.syscall) if sample.syscall is not None else None

    def is_member(self, pid: int) -> bool:
        """One of the job: neither an outsider nor a process that was not looked at."""
        process = self.processes.get(pid)
        return process is not None and process.role is not Role.OUTSIDER

    def exited(self, pid: int) -> bool:
        """A zombie, or gone."""
        return pid in self.ended

    def mpi_moves(self, pid: int) -> bool | None:
        """Whether messages of MPI came to a process, or went, between the looks; None where that cannot be told."""
        seen = [facts.messages for look in self.evidence.looks for facts in look.mpi if facts.pid == pid]
        if len(seen) < 2 or None in seen:
            return None
        return len(set(seen)) > 1

    def mpi_between_groups(self, pid: int) -> bool:
        """Whether a process of MPI has a communicator of two groups."""
        return any(
            facts.between_groups for look in self.evidence.looks for facts in look.mpi if facts.pid == pid
        )

    def not_in_time(self) -> tuple[int, ...]:
        """Processes that were not read, or not as a whole, only because time ran out."""
        return tuple(pid for pid, process in self.processes.items() if process.problem in _NOT_IN_TIME)

    def exit_status(self, key: Key) -> int | None:
        """The wait status an ended process left, or that all missing ranks left; None if nobody knows."""
        pids = (key[0],) if key[0] > 0 else self.who.ended
        left = {process.exit_code for pid in pids if (process := self.processes.get(pid)) is not None}
        return left.pop() if len(left) == 1 else None

    def descendants(self, pid: int) -> tuple[int, ...]:
        """All processes below this one, nearest first."""
        found: list[int] = []
        queue = list(self.children.get(pid, ()))
        while queue:
            child = queue.pop(0)
            if child not in found and child != pid:
                found.append(child)
                queue.extend(self.children.get(child, ()))
        return tuple(found)

    def ancestors(self, pid: int) -> tuple[int, ...]:
        """Its parent, that one's parent and so on, as far as they are known."""
        found: list[int] = []
        process = self.processes.get(pid)
        while process is not None and process.ppid > 0 and process.ppid not in (pid, *found):
            found.append(process.ppid)
            process = self.processes.get(process.ppid)
        return tuple(found)

    def is_compiler(self, pid: int) -> bool:
        """A compiler, linker or build tool, by role or name."""
        process = self.processes.get(pid)
        return process is not None and (process.role is Role.COMPILER or builds(process.comm))

    def cpu_share(self, pid: int) -> float:
        """CPU time of a process within the window, as a share of the window; 0.0 if unknown."""
        process = self.processes.get(pid)
        window = self.evidence.window_s
        if window <= 0 or process is None:
            return 0.0
        if process.cpu_s_in_window is not None:
            return process.cpu_s_in_window / window
        return sum(self.thread_cpu_s(key) or 0.0 for key in self.threads_of(pid)) / window

    def works(self, key: Key) -> bool:
        """On the CPU and not only for a moment: a loop that looks at the clock is met there too, now and then.

        On a crowded machine who works gets little time, but is always ready for it.
        """
        return key in self.at_work

    def thread_cpu_s(self, key: Key) -> float | None:
        """CPU seconds of a thread between its first and its last sample, None with one sample or no counter."""
        return _cpu_s(self.samples.get(key, ()))


def _works(samples: Sequence[ThreadSample], times: Sequence[float]) -> bool:
    if not is_ready(samples[-1]):
        return False
    if len(samples) > 1 and all(map(is_ready, samples)):
        return True
    used = _cpu_s(samples)
    return used is None or used > _WORKS_SHARE * (times[-1] - times[0])


def _cpu_s(samples: Sequence[ThreadSample]) -> float | None:
    if len(samples) < 2 or samples[0].run_ns is None or samples[-1].run_ns is None:
        return None
    return max(0, samples[-1].run_ns - samples[0].run_ns) / 1e9


def build_scene(evidence: Evidence) -> Scene:
    """Indexes the evidence. A process' threads are those of the last look that shows any of it."""
    processes = {process.pid: process for process in evidence.processes}
    children: dict[int, list[int]] = {}
    for process in sorted(evidence.processes, key=lambda process: process.pid):
        if process.ppid != process.pid:
            children.setdefault(process.ppid, []).append(process.pid)
    samples: dict[Key, list[ThreadSample]] = {}
    times: dict[Key, list[float]] = {}
    newest: dict[int, set[int]] = {}
    fds: dict[tuple[int, int], FdFacts] = {}
    began: set[Key] = set()
    for look in evidence.looks:
        here: dict[int, set[int]] = {}
        for sample in look.threads:
            key = (sample.pid, sample.tid)
            if sample.tid in here.setdefault(sample.pid, set()):
                continue
            here[sample.pid].add(sample.tid)
            if sample.pid in newest and key not in samples:
                began.add(key)
            samples.setdefault(key, []).append(sample)
            times.setdefault(key, []).append(look.at_s)
        newest.update(here)
        fds.update({(fd.pid, fd.fd): fd for fd in look.fds})
    calls = syscalls.names(evidence.host.machine)
    passing: dict[Key, int] = {}
    for key, seen in samples.items():
        if len(seen) < 2:
            continue
        found = samples[key] = completed(seen, calls)
        if met := in_passing(found, times[key], calls):
            passing[key] = met
        kept = at_rest(found, times[key], calls) if len(found) > 2 else range(len(found))
        if len(kept) < len(found):
            samples[key] = [found[index] for index in kept]
            times[key] = [times[key][index] for index in kept]
    vanished = frozenset(pid for pid, process in processes.items() if process.gone)
    alive = {
        key: tuple(found)
        for key, found in sorted(samples.items(), key=lambda item: item[0])
        if key[1] in newest[key[0]] and key[0] not in vanished
    }
    newest_of = {key: found[-1] for key, found in alive.items()}
    readings = {key: read(sample.frames) for key, sample in newest_of.items()}
    services = {
        key: service_of(sample, readings[key].serving, readings[key].team)
        for key, sample in newest_of.items()
    }
    at_work = frozenset(key for key, found in alive.items() if _works(found, times[key]))
    threads: dict[int, list[Key]] = {}
    workers: dict[int, list[Key]] = {}
    by_tid: dict[int, Key] = {}
    for key in sorted(alive, key=lambda key: (key[0], key[1] != key[0], key[1])):
        threads.setdefault(key[0], []).append(key)
        by_tid.setdefault(key[1], key)
        if does_work(services[key], busy=key in at_work):
            workers.setdefault(key[0], []).append(key)
    return Scene(
        evidence=evidence,
        who=identify(evidence),
        processes=processes,
        children={pid: tuple(found) for pid, found in children.items()},
        samples=alive,
        times={key: tuple(times[key]) for key in alive},
        threads={pid: tuple(found) for pid, found in threads.items()},
        by_tid=by_tid,
        readings=readings,
        teams={key: reading.team for key, reading in readings.items() if reading.team is not None},
        services=services,
        at_work=at_work,
        workers={pid: tuple(found) for pid, found in workers.items()},
        began=frozenset(began),
        passing={key: met for key, met in passing.items() if key in alive},
        queues=lock_queues(newest_of),
        values=NamedValues(threads, newest_of),
        calls=calls,
        fds=fds,
        group_waits={(wait.pid, wait.tid): wait for wait in evidence.group_waits},
        ended=vanished.union(pid for pid, process in processes.items() if process.state in ("Z", "X")),
    )
