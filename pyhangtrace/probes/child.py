"""The process that holds the probes: loads bcc, attaches, waits, prints what was counted, detaches, ends.

Standard input and output are its only connection. It prints one JSON object a line:

    {"attached": true}        only where it was asked to wait: a byte "g" lets it count
    {"ready": true, ...}      attached, counting from now on
    {"result": {...}}         counted; detaching begins
    {"detached_s": 0.4}       nothing is attached any more
    {"unavailable": {...}}    instead of all these: why nothing can be counted here, and the fix

It stops counting when the window has passed, or a byte or the end of file comes on standard input; it ends without a
result if that happens before it is ready, and at once if its parent dies. An alarm ends it in any case.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from types import ModuleType
from typing import Any

from pyhangtrace.probes import bpf, launch, perf_events, window
from pyhangtrace.probes.attached import Attached
from pyhangtrace.probes.bcc_loader import Unavailable, load_bcc
from pyhangtrace.probes.tracefs import MOUNT_COMMAND, Tracefs

RUN_AS_ROOT = "run as root (or with CAP_BPF, CAP_PERFMON and CAP_DAC_READ_SEARCH where tracefs is mounted)"
_DRAIN_S = 0.2  # how often the time line is taken, for its buffer is small
_LOADING_LIMIT_S = 30  # an import from a cold disk and a compilation on a busy machine


def why_not() -> Unavailable | None:
    """What stands in the way of the window, found by trying each part; None if nothing does."""
    if sys.maxsize < 1 << 32:
        return Unavailable(reason="a 32-bit Python cannot load the probes")
    try:
        bpf.try_load()
    except OSError as error:
        return _refusal("BPF programs", error)
    try:
        perf_events.try_software()
    except OSError as error:
        return _refusal("perf events", error)
    try:
        Tracefs().close()
    except OSError as error:
        permission = error.errno in (errno.EPERM, errno.EACCES)
        fix = RUN_AS_ROOT if permission else MOUNT_COMMAND
        return Unavailable(reason=f"tracefs cannot be read: {error.strerror}", fix=fix, permission=permission)
    return None


def _refusal(what: str, error: OSError) -> Unavailable:
    if error.errno in (errno.EPERM, errno.EACCES):
        return Unavailable(
            reason=f"the kernel refuses {what} to this user: {error.strerror}",
            fix=RUN_AS_ROOT,
            permission=True,
        )
    return Unavailable(reason=f"the kernel offers no {what}: {error.strerror}")


class Watcher:
    """A thread that watches standard input and the parent; works also while the compiler runs."""

    def __init__(self, parent: int) -> None:
        self.stop = threading.Event()
        self.go = threading.Event()
        self._counting = threading.Event()
        self._parent = parent
        self._parent_fd = os.pidfd_open(parent)
        if os.getppid() != parent:  # it ended before we had a hold of it
            os._exit(0)
        threading.Thread(target=self._watch, daemon=True).start()

    def begin(self) -> None:
        """From now on the parent's word means: stop and tell, no longer: go away."""
        self._counting.set()

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(self._parent_fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if 0 in ready and self._parent_fd not in ready and os.read(0, 1) == b"g":
                self.go.set()
                continue
            # Leaving at once is clean: the kernel detaches what the descriptors of a dead process held.
            if self._parent_fd in ready or not self._counting.is_set():
                os._exit(0)
            if 0 in ready:
                self.stop.set()
                poll.unregister(0)


class Speaker:
    """The line to the parent. What libraries print goes to standard error instead."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        os.dup2(2, 1)

    def say(self, message: dict[str, Any]) -> None:
        """One message, one line."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        while data:
            data = data[os.write(self._fd, data) :]


def _raise_descriptor_limit() -> None:
    """Page faults take two descriptors a CPU: the usual 1024 would not do for 512 CPUs."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main(arguments: list[str]) -> None:
    """Runs the window that the first argument asks for (`launch.Request`)."""
    request = launch.parse(arguments[0])
    signal.alarm(
        int(_LOADING_LIMIT_S + request.window_s) + 1
    )  # nothing is to stay attached, whatever gets stuck
    speaker = Speaker()
    watcher = Watcher(request.parent)

    obstacle = why_not()
    bcc = load_bcc() if obstacle is None else obstacle
    if isinstance(bcc, Unavailable):
        speaker.say({"unavailable": {"reason": bcc.reason, "fix": bcc.fix, "permission": bcc.permission}})
        os._exit(0)
    _raise_descriptor_limit()
    running = _attach(bcc, request)
    if request.waits:
        speaker.say({"attached": True})
        watcher.go.wait()
    watcher.begin()
    running.open()
    speaker.say({"ready": True, "at_s": time.monotonic(), "cpu_s": time.process_time()})
    until = time.monotonic() + request.window_s
    while not watcher.stop.wait(max(0.0, min(until - time.monotonic(), _DRAIN_S))):
        if time.monotonic() >= until:
            break
        running.drain()
    counts = running.read()
    speaker.say(
        {
            "result": {
                "window_s": (counts.closed_ns - counts.opened_ns) / 1e9,
                "attached_s": running.attached_s(),
                "cpu_s": time.process_time(),
                "opened_ns": counts.opened_ns,
                "closed_ns": counts.closed_ns,
                "tables": {name: base64.b64encode(data).decode() for name, data in counts.tables.items()},
                "texts": counts.texts,
                "untold": counts.untold,
                "told": window.TIMELINE not in request.wants or bpf.has_ring_buffer(),
                "lost": counts.lost,
            }
        }
    )
    speaker.say({"detached_s": running.close()})
    os._exit(0)  # the compiler's own clean-up would only take time


def _attach(bcc: ModuleType, request: launch.Request) -> Attached:
    # A kernel before 5.8 has no ring buffer: then nothing is told one by one.
    wants = [want for want in request.wants if want != window.TIMELINE or bpf.has_ring_buffer()]
    if request.program == "activity":
        from pyhangtrace.probes.activity import Activity

        return Activity(
            bcc,
            request.pids,
            max_threads=request.max_threads,
            wants=wants,
            long_wait_ns=request.long_wait_ns,
        )
    if request.program == "calls":
        from pyhangtrace.probes.calls import Calls, Place, Site

        return Calls(
            bcc,
            request.pids,
            max_threads=request.max_threads,
            wants=wants,
            long_wait_ns=request.long_wait_ns,
            places=[Place(path=path, offset=offset, pid=pid) for path, offset, pid in request.places],
            sites=[
                Site(pid=pid, address=address, number=number, object=of, told=told)
                for pid, address, number, of, told in request.sites
            ],
        )
    return window.Window(
        bcc,
        request.pids,
        max_threads=request.max_threads,
        calls=request.calls,
        wants=wants,
        long_wait_ns=request.long_wait_ns,
    )
