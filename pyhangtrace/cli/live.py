"""`hangtrace attach --live`: on a terminal a screen, else lines."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from pyhangtrace.model.errors import NotSupported, OutputFailed

if TYPE_CHECKING:
    from pyhangtrace.live.follow import Follower


def follow(pids: tuple[int, ...], *, plain: bool, as_json: bool, bpf: bool) -> int:
    """Follows the job of these processes until it ends or the user does; returns the exit code.

    Raises NotSupported where a screen is wanted and textual is missing; NoSuchProcess, NotPermitted, UsageError.
    """
    if sys.stdout is None:
        raise OutputFailed("there is no standard output to write to")
    screen = (
        not plain and not as_json and sys.stdout.isatty() and sys.stdin is not None and sys.stdin.isatty()
    )
    if screen and importlib.util.find_spec("textual") is None:
        raise NotSupported(
            "--live needs textual, which is not installed",
            "fix: pip install 'pyhangtrace[live]'; without it: --live --plain",
        )
    from pyhangtrace.live.follow import Follower

    follower = Follower(asked=pids, bpf=bpf)
    follower.start()
    try:
        if screen:
            from pyhangtrace.live.app import show

            show(follower)
        else:
            _stream(follower, as_json=as_json)
    finally:
        follower.close()
    return 0


def _stream(follower: Follower, *, as_json: bool) -> None:
    from pyhangtrace.interrupts import interruptible
    from pyhangtrace.live.stream import stream

    def emit(data: bytes) -> None:
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputFailed(f"cannot write to standard output: {error.strerror}") from error

    with interruptible() as stop:
        stream(follower, emit, as_json=as_json, stop=stop)
