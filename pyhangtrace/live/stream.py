"""The live view as lines, for where there is no terminal: text for people, or one JSON object a line."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator

import msgspec

from pyhangtrace.live.follow import BEAT_S, TICK_S, Follower
from pyhangtrace.live.looking import Looked
from pyhangtrace.model.live import Tick, WakerNote
from pyhangtrace.render.text.page import render_text
from pyhangtrace.render.text.words import age, plural, waker_words

Emit = Callable[[bytes], None]


def stream(follower: Follower, emit: Emit, *, as_json: bool, stop: threading.Event) -> None:
    """Emits lines until the job has ended or `stop` is set; a line a second, and every new verdict at once."""
    said: str | None = None
    due_s = time.monotonic()
    while not stop.is_set():
        now_s = time.monotonic()
        if now_s >= due_s:
            due_s = max(due_s + TICK_S, now_s)
            tick = follower.tick()
            emit(ndjson_tick(tick) if as_json else line(tick))
            if follower.ended:
                return
        follower.beat()
        looked = _wait(follower, min(BEAT_S, max(0.0, due_s - time.monotonic())))
        if looked is None or looked.report is None:
            continue
        if as_json:
            emit(ndjson_report(looked))
            emit(ndjson_tick(follower.show()))
        elif (page := _page(looked)) != said:
            said = page
            emit(render_text(looked.report, color=False).encode())
            emit(b"".join(waker_line(note) for note in follower.show().wakers))


def _wait(follower: Follower, seconds: float) -> Looked | None:
    fd = follower.looking.fd
    if fd is None:
        time.sleep(seconds)
        return follower.take()
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll(seconds * 1000)
    return follower.take()


def ndjson_tick(tick: Tick) -> bytes:
    """A tick as one line."""
    return b'{"kind":"tick",' + msgspec.json.encode(tick)[1:] + b"\n"


def ndjson_report(looked: Looked) -> bytes:
    """A whole report as one line: `report` is the object that `attach --json` prints."""
    return (
        b'{"kind":"report","schema":"hangtrace.live/1","report":'
        + msgspec.json.encode(looked.report)
        + b"}\n"
    )


def line(tick: Tick) -> bytes:
    """One second in one line: the time, the verdict, what the processes do."""
    return (" ".join(_parts(tick)) + "\n").encode()


def waker_line(note: WakerNote) -> bytes:
    """Who used to wake a thread that waits now."""
    return f"{waker_words(note)}\n".encode()


def _parts(tick: Tick) -> Iterator[str]:
    yield tick.at[11:19]
    if not tick.rows:
        yield "ENDED  the job has ended"
        return
    if tick.verdict is not None:
        since = f" since {age(tick.verdict.since_s)}" if tick.verdict.since_s is not None else ""
        yield f"{tick.verdict.state.value.upper()}  {tick.verdict.title}{since};"
    yield f"{tick.moving} of {plural(len(tick.rows), 'process')} move,"
    yield f"cpu {100 * sum(row.cpu or 0.0 for row in tick.rows):.0f} %,"
    yield f"{sum(row.faults_per_s or 0.0 for row in tick.rows):.0f} faults/s"
    if tick.still_s is not None:
        yield f"(still for {age(tick.still_s)})"
    if tick.looking:
        yield "(looking)"


def _page(looked: Looked) -> str:
    """What makes a verdict worth a page: that it is another one than the last."""
    assert looked.report is not None
    said = looked.report.verdict
    who = ",".join(f"{each.pid}/{each.tid}" for each in said.culprits)
    return f"{said.state.value} {said.cause} {who}"
