"""Who waits for which lock, indexed once, so that a hundred waiters of one lock need not each look at all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyhangtrace.model.threads import ThreadSample

# As `LockFacts.shared_key`.
SharedKey = tuple[int, int, int]

# A lock: (pid, address), or (device, inode) where it is shared, since those who wait for it sleep on several words.
_Lock = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockQueues:
    """`on_word` are the threads that sleep on each address of a process, `sharers` the processes with a thread on a
    shared one.
    """

    on_word: Mapping[_Lock, Sequence[tuple[int, int]]]
    sharers: Mapping[SharedKey, frozenset[int]]
    private: Mapping[_Lock, float]
    shared: Mapping[_Lock, float]

    def all_asleep_for_s(self, sample: ThreadSample) -> float | None:
        """For how long all who wait for the lock of this thread have slept, None if that is not known of each."""
        lock = sample.lock
        if lock is None:
            return None
        if lock.shared_key is not None:
            return self.shared.get(lock.shared_key[:2])
        return self.private.get((sample.pid, lock.address))


def lock_queues(newest: Mapping[tuple[int, int], ThreadSample]) -> LockQueues:
    """Of the newest sample of each thread, by (pid, tid)."""
    on_word: dict[_Lock, list[tuple[int, int]]] = {}
    sharers: dict[SharedKey, set[int]] = {}
    private: dict[_Lock, list[float | None]] = {}
    shared: dict[_Lock, list[float | None]] = {}
    for key, sample in newest.items():
        lock = sample.lock
        if lock is None:
            continue
        on_word.setdefault((sample.pid, lock.uaddr), []).append(key)
        private.setdefault((sample.pid, lock.address), []).append(sample.asleep_for_s)
        if lock.shared_key is not None:
            sharers.setdefault(lock.shared_key, set()).add(sample.pid)
            shared.setdefault(lock.shared_key[:2], []).append(sample.asleep_for_s)
    return LockQueues(
        on_word=on_word,
        sharers={key: frozenset(pids) for key, pids in sharers.items()},
        private=_shortest(private),
        shared=_shortest(shared),
    )


def _shortest(queues: Mapping[_Lock, list[float | None]]) -> dict[_Lock, float]:
    found = {}
    for lock, ages in queues.items():
        known = [age for age in ages if age is not None]
        if len(known) == len(ages):
            found[lock] = min(known)
    return found
