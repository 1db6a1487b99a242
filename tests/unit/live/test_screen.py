"""What stands on a screen of 80 x 24, and what keys do to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace.live import screen
from pyhangtrace.live.screen import SORTS, Wish
from pyhangtrace.model.kinds import State
from pyhangtrace.render.text.layout import columns
from tests.unit.live import made

WIDTH = 80


def test_nothing_is_wider_than_the_screen() -> None:
    tick = made.tick(made.reading(110.0), made.reading(109.0))
    for width in (40, 80, 200):
        _, lines = screen.headline(tick, Wish(filter="x" * 100), width)
        assert len(lines) == 3
        assert all(columns(each) <= width for each in lines)
        if width > 60:
            assert all(columns(screen.line(row, width)) <= width for row in tick.rows)


def test_the_verdict_is_on_top() -> None:
    state, lines = screen.headline(made.tick(made.reading(110.0)), Wish(), WIDTH)
    assert state is State.HUNG
    assert lines[0] == "HUNG rank 3 keeps 7 ranks waiting (proven, 84 s)"
    assert lines[1].startswith("Rank 3 (pid 4243) never entered all_reduce")
    assert lines[2] == "03:04:05, sglang, 0 of 8 processes move, by rank, looked 10 s ago"


def test_the_chain_leads_out_of_the_job_and_steers_no_terminal() -> None:
    tick = made.tick(made.reading(110.0))
    lines = screen.chain(tick, made.held())
    assert lines[0] == "wait chain"
    assert lines[1].startswith("  1. rank 0 MainThread waits in all_reduce #418 of tp")
    assert lines[1].endswith("since 84 s")
    assert "held by pid 9911" in lines[2]
    assert lines[3].startswith("  3. pid 9911 python is stopped")
    assert "\x1b" not in "\n".join(
        [*lines, *screen.process(made.held(), 4243), *screen.process(made.held(), 9911)]
    )


def test_threads_of_a_process_and_a_process_that_was_not_there() -> None:
    lines = screen.process(made.held(), 4243)
    assert lines[0] == "rank 3, pid 4243, scheduler: sglang::scheduler_TP3"
    assert lines[1].startswith("  4243 MainThread: waits for a file lock")
    assert lines[2].startswith("      ")
    assert lines[-1] == "  and 1 thread that only serves"
    assert screen.process(made.held(), 1) == ["pid 1 was not there when the job was looked at: l looks again"]


@pytest.mark.parametrize("name", SORTS)
def test_every_order_takes_rows_of_which_little_is_known(name: str) -> None:
    rows = made.tick(made.reading(110.0)).rows
    bare = tuple(
        replace(row, rank=None, since_s=None, cpu=None, faults_per_s=None, rss=None, blocked_on=None)
        for row in rows
    )
    assert len(screen.arranged((*rows, *bare), Wish(sort=name))) == 16
    assert screen.arranged((*bare, *rows), Wish(sort=name)) == screen.arranged(
        (*rows, *bare), Wish(sort=name)
    )


def test_order_and_filter() -> None:
    rows = made.tick(made.reading(110.0, moved=[4245], cpu_s=0.4), made.reading(109.0)).rows
    assert screen.arranged(rows, Wish(sort="cpu"))[0].rank == 5
    assert [row.rank for row in screen.arranged(rows, Wish(filter="FILE LOCK"))] == [3]
    assert [row.rank for row in screen.arranged(rows, Wish(filter="rank 6"))] == [6]
    assert screen.arranged(rows, Wish(filter="no such thing")) == []


def test_sizes() -> None:
    assert [screen.size(each) for each in (None, 0, 1023, 5 << 10, 412 << 30, 3400 << 30)] == [
        *("", "0", "1023", "5.0K", "412G", "3.3T")
    ]


# -- the app, without a terminal --------------------------------------------------------------------------------


def driven(follower: made.MadeFollower, act: Callable[[Any, Any], Awaitable[None]]) -> None:
    """Runs the app on 80 x 24 and lets `act` drive it: (app, pilot)."""
    pytest.importorskip("textual")
    from pyhangtrace.live.app import LiveApp

    async def whole() -> None:
        app = LiveApp(follower)  # type: ignore[arg-type]
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            await act(app, pilot)

    asyncio.run(whole())


def shown(app: Any) -> str:
    """The text on the screen."""
    return "\n".join(
        "".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips()
    )


def follower() -> made.MadeFollower:
    return made.MadeFollower(made.tick(made.reading(110.0), made.reading(109.0)))


def test_the_first_screen() -> None:
    async def act(app: Any, _: Any) -> None:
        lines = shown(app).splitlines()
        assert len(lines) == 24
        assert lines[0].startswith("HUNG rank 3 keeps 7 ranks waiting")
        assert lines[3].startswith("rank pid")
        assert lines[7].startswith("3    4243    waits   84s")
        assert "wait chain" in shown(app)
        assert "quit" in lines[-1]

    driven(follower(), act)


def test_a_selected_rank_shows_its_threads() -> None:
    async def act(app: Any, pilot: Any) -> None:
        await pilot.press("down", "down", "down")
        await pilot.press("tab", "end")
        await pilot.pause()
        assert "rank 3, pid 4243" in shown(app)
        await pilot.press("tab", "end")
        await pilot.press("tab", "end")
        await pilot.pause()
        assert "rank 7, pid 4247" in shown(app)

    driven(follower(), act)


def test_sorting_keeps_the_selected_rank() -> None:
    async def act(app: Any, pilot: Any) -> None:
        await pilot.press("down", "down", "down")
        for _ in SORTS:
            await pilot.press("s")
            await pilot.pause()
            assert app.query_one("#rows").selected == 4243
        assert app.wish.sort == "rank"

    driven(follower(), act)


def test_a_filter_is_typed_kept_and_taken_away() -> None:
    async def act(app: Any, pilot: Any) -> None:
        await pilot.press("slash", *"lock", "enter")
        await pilot.pause()
        text = shown(app)
        assert "3    4243" in text
        assert "2    4242" not in text
        assert "only 'lock'" in text
        await pilot.press("escape")
        await pilot.pause()
        assert "2    4242" in shown(app)

    driven(follower(), act)


def test_a_frozen_screen_stands_still() -> None:
    made_follower = follower()

    async def act(app: Any, pilot: Any) -> None:
        await pilot.press("f")
        made_follower.coming.append(made.tick(made.reading(120.0, moved=[4243]), made.reading(119.0)))
        app._tick()
        await pilot.pause()
        assert "FROZEN" in shown(app)
        assert shown(app).startswith("HUNG")
        await pilot.press("f")
        app._tick()
        await pilot.pause()
        assert shown(app).startswith("RUNNING moves on;")

    driven(made_follower, act)


def test_the_page_of_attach_and_a_look_at_once() -> None:
    made_follower = follower()

    async def act(app: Any, pilot: Any) -> None:
        await pilot.press("d", "l")
        await pilot.pause()
        assert "sglang, ranks 0-7 of 8" in shown(app)
        assert made_follower.looks == 1

    driven(made_follower, act)


def test_what_was_looked_at_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def act(app: Any, pilot: Any) -> None:
        await pilot.press("e")
        await pilot.pause()
        assert {path.suffix for path in tmp_path.iterdir()} == {".hang", ".html", ".txt"}
        (text,) = tmp_path.glob("*.txt")
        assert "rank 3 keeps 7 ranks waiting" in text.read_text()

    driven(follower(), act)


def test_markup_in_a_name_is_shown_as_it_is() -> None:
    odd = follower()
    row = replace(odd.shown.rows[0], title="[bold red]x[/]\x1b[2J", blocked_on=None, collective=None)
    odd.shown = replace(odd.shown, rows=(row,), framework="[/]")

    async def act(app: Any, _: Any) -> None:
        text = shown(app)
        assert r"[bold red]x[/]\x1b[2J" in text
        assert "[/], 0 of" in text

    driven(odd, act)


def test_a_job_that_ends_is_told() -> None:
    gone = follower()
    gone.shown = replace(gone.shown, rows=())

    async def act(app: Any, _: Any) -> None:
        assert shown(app).startswith("ENDED  the job has ended")

    driven(gone, act)
