"""Page faults in files that a file server has to provide: which mapped file that can be.

A fault does not say at which address it is, so a file is named only where the process maps no other one of that kind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pyhangtrace.collect.guarded import GuardedReader, HelperState, Progress
from pyhangtrace.collect.mappings import device_of, mapped_files
from pyhangtrace.collect.mounts import SERVED, Mount, fuse_connection, read_mounts
from pyhangtrace.collect.procfs import printable, read_bytes
from pyhangtrace.model.threads import ThreadSample

MAPPED_PLACES_TASK = "mapped places"
_LARGEST = 32 << 20
# Of the threads that fault: who waits for one of these waits for a page, or for its server.
_PLACES = (
    "request_wait_answer",
    "folio_",
    "__folio",
    "filemap",
    "wait_on_page",
    "nfs",
    "rpc",
    "cifs",
    "ceph",
    "p9_",
)


def mapped_places_task(
    state: HelperState, pids: Sequence[int], argument: Any, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Task: [(path, words on the mount, connection)] of the mapped files of each process that are served."""
    for pid in pids:
        progress(pid)
        mounts = read_mounts(pid, state.proc_root)
        yield pid, served(mounts, read_bytes(f"{state.proc_root}/{pid}/maps", _LARGEST) or b"")


def served(mounts: Sequence[Mount], maps: bytes) -> list[tuple[str, str, int | None]]:
    """The distinct files of a text of maps that lie on one of these mounts whose files somebody serves."""
    by_device = {mount.device: mount for mount in mounts if mount.fs_type.startswith(SERVED)}
    found: dict[tuple[int, bytes], tuple[str, str, int | None]] = {}
    if not by_device:
        return []
    for match in mapped_files(maps):
        device = device_of(match)
        mount = by_device.get(device)
        if mount is None:
            continue
        path = printable(match["path"].decode(errors="surrogateescape"))
        found[(device, match["inode"])] = (path, mount.words, fuse_connection(mount.fs_type, mount.device))
    return list(found.values())


def collect(
    reader: GuardedReader,
    samples: Sequence[ThreadSample],
    readable: Collection[int],
    *,
    deadline_s: float,
) -> list[ThreadSample]:
    """The samples, those in a page fault with the file. `readable`: processes whose memory map may be read."""
    wanted = {sample.pid for sample in samples if _faults(sample) and sample.pid in readable}
    if not wanted:
        return list(samples)
    answers = reader.run(MAPPED_PLACES_TASK, sorted(wanted), None, deadline_s=deadline_s).values
    return [_with_place(sample, answers.get(sample.pid) or ()) for sample in samples]


def _faults(sample: ThreadSample) -> bool:
    # Whoever waits for the answer of a server may be interrupted at first.
    asleep = sample.state == "D" or (sample.wchan or "").startswith(_PLACES[0])
    return sample.syscall == -1 and asleep and (sample.wchan or "").startswith(_PLACES)


def _with_place(sample: ThreadSample, found: Sequence[tuple[str, str, int | None]]) -> ThreadSample:
    if not _faults(sample) or len(found) != 1:
        return sample
    path, words, connection = found[0]
    return replace(sample, path=path, path_mount=words, fuse_connection=connection)
