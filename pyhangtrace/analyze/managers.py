"""Managers of multiprocessing: which thread of such a server answers which client."""

from __future__ import annotations

from pyhangtrace.analyze.calls import short
from pyhangtrace.analyze.scene import Key, Scene
from pyhangtrace.model.open_files import FdFacts


def answering(scene: Scene, facts: FdFacts) -> Key | None:
    """The thread at the other end of a socket: a manager starts one for each client, which serves it alone."""
    if len({holder.pid for holder in facts.peers}) != 1:
        return None
    fds = {holder.fd for holder in facts.peers}
    found = [
        key
        for holder in facts.peers[:1]
        for key, fd in _serving(scene, holder.pid)
        if fd is not None and fd in fds
    ]
    return found[0] if len(found) == 1 else None


def serving_clients(scene: Scene, key: Key) -> tuple[Key, ...]:
    """The threads of a manager that serve clients, where the given one is among them, without that one."""
    serving = [other for other, _ in _serving(scene, key[0])]
    return tuple(other for other in serving if other != key) if key in serving else ()


def _serving(scene: Scene, pid: int) -> list[tuple[Key, object]]:
    """Each with the descriptor of its client."""
    values = scene.values.of(pid, "conn._handle")
    return [(key, value.value) for key, value in values if short(value.function) == "serve_client"]
