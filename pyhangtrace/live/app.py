"""The live view on a terminal: wiring only, what it shows is made by `screen`."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Input, Static

from pyhangtrace.live.follow import BEAT_S, TICK_S, Follower
from pyhangtrace.live.row_list import RowList
from pyhangtrace.live.screen import SORTS, Wish, arranged, chain, heading, headline, line, process
from pyhangtrace.model.kinds import State
from pyhangtrace.model.live import Tick
from pyhangtrace.render.registry import FORMATS
from pyhangtrace.render.text.page import render_text

_COLORS = {
    State.HUNG: "bold white on red",
    State.BUSY: "bold black on yellow",
    State.SLOW: "bold black on yellow",
    State.RUNNING: "bold green",
    State.IDLE: "bold green",
    State.ENDED: "bold magenta",
    State.UNKNOWN: "bold cyan",
}
_EXPORTED = (".hang", ".html", ".txt")


def show(follower: Follower) -> None:
    """Shows the job of a follower that was started, until the user has enough."""
    app = LiveApp(follower)
    app.run()
    if app.return_code:
        raise RuntimeError("the screen has failed")


class LiveApp(App[None]):
    """The screen. Everything of a target is shown as `Text`: nothing in a name is markup."""

    TITLE = "hangtrace"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #verdict { height: 3; }
    #heading { height: 1; text-style: bold underline; }
    #rows { max-height: 45%; scrollbar-size: 0 0; }
    #details { height: 1fr; border-top: solid $accent; scrollbar-size: 0 0; }
    #filter { display: none; height: 1; border: none; padding: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "quit", key_display="q"),
        Binding("s", "sort", "sort"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("escape", "clear", "all", show=False),
        Binding("f,space", "freeze", "freeze", key_display="f"),
        Binding("l", "look", "look"),
        Binding("d", "details", "page"),
        Binding("e", "export", "export"),
        Binding("tab", "switch", "scroll", key_display="tab"),
    ]

    def __init__(self, follower: Follower) -> None:
        super().__init__()
        self.follower = follower
        self.wish = Wish()
        self.shown: Tick = follower.show()
        self.page = False
        self._drawn: dict[str, str] = {}
        self._process: tuple[int, int | None, list[str]] | None = None

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield Static(id="verdict")
        yield Static(id="heading")
        yield RowList(id="rows")
        with VerticalScroll(id="details"):
            yield Static(id="told")
        yield Input(id="filter", placeholder="only rows with …", compact=True)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Begins to follow."""
        self.query_one(RowList).focus()
        self._draw()
        for number in (signal.SIGTERM, signal.SIGHUP):
            # The terminal is to be as it was.
            asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self.set_interval(BEAT_S, self._beat)
        self.set_interval(TICK_S, self._tick)

    def on_resize(self) -> None:
        """The last column takes what is left."""
        self._draw()

    def on_row_list_selected(self) -> None:
        """Another process."""
        self._draw_details()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filters while it is typed."""
        self.wish = replace(self.wish, filter=event.value)
        self._draw()

    def on_input_submitted(self) -> None:
        """The filter stays, the keys are those of the table again."""
        self.query_one("#filter", Input).display = False
        self.query_one(RowList).focus()

    # -- keys ------------------------------------------------------------------------------------------------

    def action_sort(self) -> None:
        """By the next column."""
        names = list(SORTS)
        following = names[(names.index(self.wish.sort) + 1) % len(names)]
        self.wish = replace(self.wish, sort=following)
        self._draw()

    def action_filter(self) -> None:
        """Asks for what the rows have to contain."""
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def action_clear(self) -> None:
        """All rows again."""
        field = self.query_one("#filter", Input)
        field.value = ""
        field.display = False
        self.query_one(RowList).focus()

    def action_freeze(self) -> None:
        """The screen stands still; the job is followed on."""
        self.wish = replace(self.wish, frozen=not self.wish.frozen)
        self._draw()

    def action_look(self) -> None:
        """A whole look, now."""
        self.follower.look()

    def action_details(self) -> None:
        """Threads of the selected process, or the page that `attach` prints."""
        self.page = not self.page
        self._draw_details()

    def action_switch(self) -> None:
        """Between the rows and the details, which scroll."""
        below = self.query_one("#details", VerticalScroll)
        if below.has_focus:
            self.query_one(RowList).focus()
        else:
            below.focus()

    def action_export(self) -> None:
        """Writes what the last look gave into the working folder."""
        last = self.follower.last
        if last is None or last.report is None:
            self.notify("not looked yet", severity="warning")
            return
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        result, written = last.result, []
        for entry in FORMATS:
            if entry.suffix in _EXPORTED:
                path = Path(f"hangtrace-{stamp}{entry.suffix}")
                try:
                    path.write_bytes(entry.write(result))
                except OSError as error:
                    self.notify(f"cannot write {path}: {error.strerror}", severity="error", markup=False)
                    return
                written.append(path.name)
        self.notify("wrote " + " ".join(written), markup=False)

    # -- what goes on ----------------------------------------------------------------------------------------

    def _beat(self) -> None:
        self.follower.beat()
        if self.follower.take() is not None:
            self._follow(self.follower.show())

    def _tick(self) -> None:
        self._follow(self.follower.tick())

    def _follow(self, tick: Tick) -> None:
        if not self.wish.frozen:
            self.shown = tick
            self._draw()

    # -- drawing ---------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        width = max(20, self.size.width)
        state, lines = headline(self.shown, self.wish, width)
        style = _COLORS.get(state, "bold") if state is not None else "bold"
        if self._differs("verdict", "\n".join(lines)):
            verdict = Text(lines[0], style=style)
            verdict.append("\n" + lines[1], style="not bold default on default")
            verdict.append("\n" + lines[2], style="not bold dim default on default")
            self.query_one("#verdict", Static).update(verdict)
        if self._differs("heading", heading(width)):
            self.query_one("#heading", Static).update(Text(heading(width)))
        rows = arranged(self.shown.rows, self.wish)
        self.query_one(RowList).put([(row.pid, line(row, width)) for row in rows])
        self._draw_details()

    def _draw_details(self) -> None:
        held = self.follower.held
        if self.page and held is not None:
            told = render_text(held.report, color=False)
        else:
            told = "\n".join([*chain(self.shown, held), *self._process_lines()])
        if self._differs("told", told):
            self.query_one("#told", Static).update(Text(told))

    def _process_lines(self) -> list[str]:
        """Kept until there is another look, or another process: they are many."""
        held, pid = self.follower.held, self.query_one(RowList).selected
        if self._process is None or self._process[:2] != (id(held), pid):
            self._process = (id(held), pid, process(held, pid))
        return self._process[2]

    def _differs(self, what: str, text: str) -> bool:
        """Whether this is not what stands there already: what is drawn costs."""
        if self._drawn.get(what) == text:
            return False
        self._drawn[what] = text
        return True
