"""Memory over a window: counters at its begin and end, and beside them what is the same all the while. No page walk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from pyhangtrace.collect import cgroup_memory, cgroups, loading, memory_counters, shm_space
from pyhangtrace.collect.cgroup_memory import CgroupPlace
from pyhangtrace.collect.guarded import GuardedReader
from pyhangtrace.collect.maps import FileMapping, ProcessMaps, unlisted
from pyhangtrace.collect.procfs import PROC
from pyhangtrace.model.host import CgroupFacts, MappedFile
from pyhangtrace.model.memory import ExactMemory, MemoryCounters, MemoryFacts

# Files of these folders of /dev are memory like any other.
_NO_DEVICES = ("/dev/shm/", "/dev/zero", "/dev/hugepages", "/dev/mqueue/")


class MemoryWatch:
    """Begins with the window. `cgroup` is the group that limits the job."""

    def __init__(
        self,
        pids: Sequence[int],
        cgroup: CgroupFacts | None,
        *,
        proc_root: str = PROC,
        cgroup_root: str = cgroups.ROOT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pids = tuple(pids)
        self._proc_root = proc_root
        self._clock = clock
        self._place: CgroupPlace | None = None
        if cgroup is not None:
            self._place = cgroup_memory.place(cgroup.version, cgroup.path, cgroup_root)
        self._began = clock()
        self._first = self._read(0.0)

    def finish(
        self,
        reader: GuardedReader,
        *,
        mapped: Mapping[int, ProcessMaps],
        shown: Iterable[MappedFile],
        deadline_s: float,
        reads: loading.Watch | None = None,
        exact: ExactMemory | None = None,
        running_s: Mapping[int, float] | None = None,
    ) -> MemoryFacts:
        """What came of it, until now. Of the `shown` files it tells who maps how much of them. `reads` is of
        files that are being read, `exact` of a walk that was made beside. Of processes that have run for `running_s` it
        is asked whether their logs tell of a full memory file system.
        """
        shown = tuple(shown)
        wanted = {(file.device, file.inode) for file in shown}
        saves = memory_counters.merged_saves()
        last = self._read(round(self._clock() - self._began, 4))
        return MemoryFacts(
            counters=(self._first, last),
            cgroup=self._place.book() if self._place is not None else None,
            shm=shm_space.collect(
                reader,
                self._pids,
                written={pid: maps.written for pid, maps in mapped.items()},
                running_s=running_s,
                deadline_s=deadline_s,
            ),
            loaded=reads.finish(deadline_s=deadline_s) if reads is not None else (),
            loaded_s=reads.seconds if reads is not None else None,
            mapped=tuple(
                (mapping.device, mapping.inode, pid, mapping.mapped)
                for pid, maps in sorted(mapped.items())
                for mapping in maps.files
                if (mapping.device, mapping.inode) in wanted
            ),
            mapped_twice=tuple((pid, maps.twice) for pid, maps in sorted(mapped.items())),
            unlisted=unlisted(mapped, shown),
            driver=tuple(
                (pid, size) for pid, maps in sorted(mapped.items()) if (size := _of_devices(maps.files))
            ),
            exact=exact,
            hugetlb_in_use=memory_counters.hugetlb_in_use(self._proc_root),
            merged_saves=saves,
            merged=memory_counters.merged(self._pids, self._proc_root) if saves else (),
        )

    def _read(self, at_s: float) -> MemoryCounters:
        return memory_counters.read(self._pids, at_s=at_s, cgroup=self._place, proc_root=self._proc_root)


def _of_devices(mappings: Sequence[FileMapping]) -> int:
    """Bytes mapped of devices, by name: without page tables their flags are not known."""
    return sum(
        mapping.mapped
        for mapping in mappings
        if mapping.path.startswith("/dev/") and not mapping.path.startswith(_NO_DEVICES)
    )
