"""Sockets of ZeroMQ: a thread of the program sleeps on a counter that an I/O thread of the library adds to, and that
one has the real sockets in its epoll set. So who is connected there can end the wait.

Which of the library's sockets a thread waits for, and in which direction each goes, memory alone would tell: any of the
connected may be the one. Where somebody may still connect, or another host is at the other end, nobody can be named.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyhangtrace.analyze import holders, objects
from pyhangtrace.analyze.blocked import Blocked, Standing, changed
from pyhangtrace.analyze.ends import watched_descriptors
from pyhangtrace.analyze.scene import Scene
from pyhangtrace.model.kinds import Confidence, Edge, FdKind, FrameKind, Kind, WaitKind
from pyhangtrace.model.open_files import FdFacts
from pyhangtrace.model.report import WaitObject
from pyhangtrace.model.threads import ThreadSample

_LIBRARY = "libzmq"
_IO_THREADS = "ZMQbg/IO"
NAME = "ZeroMQ"


def zmq(scene: Scene, sample: ThreadSample, draft: Blocked) -> Blocked | None:
    """A thread that waits inside libzmq; None where the world may answer, which is what the other rules say then."""
    watched = watched_descriptors(scene, sample)
    alone = bool(watched) and all(facts.kind is FdKind.EVENTFD for facts in watched)
    if not alone or not _in_library(sample):
        return None
    sockets = tuple(_sockets(scene, sample.pid))
    if not sockets or any(facts.socket is None or facts.socket.state != "ESTABLISHED" for facts in sockets):
        return None
    ends = [objects.ends(facts) for facts in sockets]
    if not all(ends):
        return None
    pids = tuple(sorted({pid for each in ends for pid in each} - {sample.pid}))
    if not pids:
        return None
    keys = tuple((pid, 0) for pid in pids)
    told = ", ".join(map(str, pids))
    return changed(
        draft,
        kind=WaitKind.SOCKET,
        standing=Standing.FIRM,
        cause=Kind.IPC_PEER_SILENT,
        basis=Confidence.LIKELY,
        object=WaitObject(name=NAME),
        targets=keys,
        candidates=keys if len(keys) > 1 else (),
        besides=keys,
        holder=holders.process_holder(scene, pids[0]) if len(pids) == 1 else None,
        edge=Edge.ANY,
        evidence=(*draft.evidence, f"its I/O thread has connections with pid {told}"),
    )


def _in_library(sample: ThreadSample) -> bool:
    """Whether what calls the kernel is the library, and not a program around it that polls for its counters."""
    for frame in sample.frames:
        if frame.kind is FrameKind.PYTHON:
            return False
        if (frame.module or "").rpartition("/")[2].startswith(_LIBRARY):
            return True
    return False


def _sockets(scene: Scene, pid: int) -> Iterator[FdFacts]:
    for key in scene.threads_of(pid):
        sample = scene.thread(key)
        if sample is not None and sample.comm.startswith(_IO_THREADS):
            yield from (each for each in watched_descriptors(scene, sample) if each.kind is FdKind.SOCKET)
