# SPDX-License-Identifier: Apache-2.0
"""``stallscope top``: the application, its screens and keys."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer

from stallscope.analyzers.endings import kills
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.reporters import incidents
from stallscope.reporters.sessions import who
from stallscope.screens import panes
from stallscope.screens.dialogs import Ask, Confirm, Help
from stallscope.screens.events import (
    Ended,
    Event,
    IncidentsListed,
    Noted,
    Saved,
    Source,
    SourceState,
)
from stallscope.screens.rows import Rows
from stallscope.screens.state import State
from stallscope.store import layout, read_incident, reading_dest

__all__ = ["Top", "capture_path"]

SHOWN_AT_ONCE = (Saved, Noted, Ended, SourceState, IncidentsListed)
"""Events that are taken while the screen is paused."""
END_SECONDS = 5.0
"""Seconds after a signal until the kernel ends the process: Textual waits for its terminal, without
end where that is gone."""
TERMINAL_SECONDS = 1.0
"""Between checks that the terminal is still there, since Textual reads one that is gone in a loop,
and that the screen has its size."""
VERDICT_ROWS, VERDICT_ROWS_HIGH = 5, 9
"""The most rows of the verdict."""
CHART_ROWS, CHART_ROWS_HIGH = 3, 5
DOING_ROWS, DOING_ROWS_HIGH = 2, 5
"""The most rows of the chart and of what threads do, and on a high screen."""
HIGH = 32


def capture_path(folder: Path, title: str) -> Path:
    """Return a file name for a capture, with its server and time."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", title.partition(" ")[0])[:40].strip("-.") or "capture"
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return folder / f"stallscope-{name}-{stamp}.jsonl.zst"


class SourceEvent(Message):
    """An event of a source."""

    def __init__(self, event: Event) -> None:
        super().__init__()
        self.event = event


class View(Screen[None]):
    """A screen that follows the state."""

    def follow(self) -> None:
        """Show the current state."""

    @property
    def top(self) -> Top:
        """Return the application."""
        app = self.app
        assert isinstance(app, Top)
        return app

    def on_resize(self) -> None:
        """Lay the rows out again, once the widgets know their sizes."""
        self.call_after_refresh(self.follow)

    def on_screen_resume(self) -> None:
        """Draw the current state."""
        self.call_after_refresh(self.follow)

    def on_rows_picked(self, message: Rows.Picked) -> None:
        """Show a stack, or an incident."""
        if message.row.incident is not None:
            self.top.show_incident(message.row.incident)
        elif message.row.thread is not None:
            self.top.show_stack(message.row.thread)

    def on_rows_sorted(self, message: Rows.Sorted) -> None:
        """Sort by a column; again: the other way round."""
        self.top.sort_by(message.column)

    def _with_list(self, title: str, *, threads: bool = False) -> ComposeResult:
        """Make the parts of a screen that has one list, from the top down."""
        yield Rows(id="head", focus=False)
        yield Rows(id="degraded_sources", focus=False)
        yield Rows(title, id="list", threads=threads)
        yield Footer(show_command_palette=False)

    def under_cursor(self) -> int | None:
        """Return the thread under the cursor."""
        widget = self.focused
        row = widget.at_cursor if isinstance(widget, Rows) else None
        return None if row is None else row.thread

    def _above(self) -> None:
        """Show the lines above the lists of all screens: the target, and the result of the last
        key."""
        app, width = self.top, self.size.width
        head = panes.head(app.state, width, paused=app.paused, pattern=app.pattern)
        self._rows("head").show([head])
        self._fit("degraded_sources", panes.degraded_sources(app.state, width)[:5])

    def _rows(self, name: str) -> Rows:
        return self.query_one(f"#{name}", Rows)

    def _fit(self, name: str, rows: list[panes.Row], border: int = 0) -> None:
        widget = self._rows(name)
        if len(widget.rows) != len(rows):
            widget.styles.height = len(rows) + border
            widget.display = bool(rows)
        widget.show(rows)


class Overview(View):
    """The overview."""

    AUTO_FOCUS = "#tree"

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[str, tuple[tuple[object, ...], int]] = {}

    def compose(self) -> ComposeResult:
        """Make the parts, from the top down."""
        yield Rows(id="head", focus=False)
        yield Rows(id="verdict", focus=False)
        yield Rows(id="degraded_sources", focus=False)
        yield Rows("Threads by state", id="chart", focus=False)
        yield Rows("What threads do", id="doing", focus=False)
        with Container(id="panes"):
            yield Rows("Who waits on what", id="tree", threads=True)
            with Vertical(id="side"):
                yield Rows("Locks and files", id="waits")
                yield Rows("Incidents", id="incidents", threads=True)
        yield Footer(show_command_palette=False)

    def follow(self) -> None:
        """Show the current state; unchanged parts are not drawn."""
        if not self.query("#incidents"):
            return  # the panes do not exist yet
        app, state, width = self.top, self.top.state, self.size.width
        self._above()
        high = self.size.height >= HIGH
        most = VERDICT_ROWS_HIGH if high else VERDICT_ROWS
        self._fit("verdict", panes.verdict(state, width, most))
        most = CHART_ROWS_HIGH if high else CHART_ROWS
        self._fit("chart", panes.chart(state, width, most), border=1)
        most = DOING_ROWS_HIGH if high else DOING_ROWS
        self._fit("doing", panes.doing(state, width, most), border=1)
        self._pane("tree", (state.analysis,), lambda width: panes.tree(state, width))
        self._pane(
            "waits", (state.line, app.pattern), lambda width: panes.waits(state, width, app.pattern)
        )
        self._pane(
            "incidents",
            (state.incidents,),
            lambda width: panes.incidents(state.incidents, width),
        )
        incidents = self._rows("incidents")
        height = 1 + min(len(incidents.rows), max(1, self.size.height // 14))
        if incidents.size.height + 1 != height:
            incidents.styles.height = height

    def _pane(
        self, name: str, of: tuple[object, ...], make: Callable[[int], list[panes.Row]]
    ) -> None:
        """Fill a pane, unless its width and data are unchanged."""
        widget = self._rows(name)
        width = max(10, (widget.size.width or self.size.width) - 1)  # room for the scroll bar
        before, width_before = self._made.get(name, ((), 0))
        same = len(before) == len(of) and all(a is b for a, b in zip(before, of, strict=True))
        if not same or width != width_before:
            self._made[name] = (of, width)
            widget.show(make(width))


class Threads(View):
    """All threads."""

    AUTO_FOCUS = "#list"

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,t", "app.back", "Back")]

    def compose(self) -> ComposeResult:
        """Make one list."""
        yield from self._with_list("Threads", threads=True)

    def follow(self) -> None:
        """Show the threads of the last capture."""
        app, width = self.top, self.size.width
        self._above()
        if app.state.analysis is not None:
            rows = panes.threads(app.state.analysis, max(20, width - 1), app.pattern, app.sort)
            self._rows("list").show(rows)


class IncidentView(View):
    """One incident of the store, as `stallscope incidents ID` prints it."""

    AUTO_FOCUS = "#list"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "app.back", "Back")]

    def __init__(self, name: str) -> None:
        super().__init__()
        self._incident = name

    def compose(self) -> ComposeResult:
        """Make one list."""
        yield from self._with_list("Incident")

    def follow(self) -> None:
        """Show it; it is read once for each width."""
        self._above()
        self._rows("list").show(
            self.top.incident_rows(self._incident, max(20, self.size.width - 1))
        )


class Stack(View):
    """One thread, from the last capture that has it."""

    AUTO_FOCUS = "#list"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.back", "Back"),
        Binding("slash", "app.filter", show=False),
    ]

    def __init__(self, thread: int) -> None:
        super().__init__()
        self._thread = thread
        self._tid: int | None = None

    def compose(self) -> ComposeResult:
        """Make one list."""
        yield from self._with_list("Stack, innermost frame first")

    def on_mount(self) -> None:
        """Remember the thread: its index differs in the next capture."""
        analysis = self.top.state.analysis
        if analysis is not None:
            self._tid = analysis.capture.threads[self._thread].tid

    def follow(self) -> None:
        """Show the thread of the last capture, or that it has ended."""
        self._above()
        analysis = self.top.state.analysis
        if analysis is None:
            return
        index = self._now(len(analysis.capture.threads))
        widget = self._rows("list")
        if index is None:
            widget.show(
                [panes.plain(f"thread {self._tid} has ended", "bold yellow"), *_old(widget)]
            )
        else:
            widget.show(panes.stack(analysis, index, max(20, self.size.width - 1)))

    def _now(self, count: int) -> int | None:
        """Return the thread's index in the last capture; None for a thread without an id."""
        analysis = self.top.state.analysis
        assert analysis is not None
        if not self._tid:
            return self._thread if self._thread < count else None
        threads = analysis.capture.threads
        return next((i for i, thread in enumerate(threads) if thread.tid == self._tid), None)


def _old(widget: Rows) -> Iterable[panes.Row]:
    """Return the rows without a line that says that the thread has ended."""
    return [row for row in widget.rows if not row.text.endswith(" has ended")]


def _incident_rows(dest: Path, name: str, width: int) -> list[panes.Row]:
    try:
        stored = read_incident(dest / layout.INCIDENTS / name)
        found = incidents.whole(stored, stored.entries(), stored.samples(), width, blocks=True)
        return [panes.plain(line.text, line.style) for line in found]
    except (StallscopeError, OSError) as error:
        return [panes.plain(one_line(str(error), width), "bold yellow")]


def _end_without_terminal(number: int, frame: FrameType | None) -> None:
    """End at once where the terminal is gone, also where nobody has sent a signal."""
    try:
        os.get_terminal_size(sys.__stderr__.fileno())  # type: ignore[union-attr]
    except OSError:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGALRM)


class Top(App[None]):
    """The live view."""

    CSS_PATH = "top.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide")]  # noqa: RUF012 (as Textual has it)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("space", "pause", "Pause"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("t", "threads", "Threads"),
        Binding("b", "blocker", "Blocker"),
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", show=False),
        Binding("k,f9", "kill", "Kill", key_display="k"),
        Binding("c", "capture", "Capture"),
        Binding("f1,h,question_mark", "help", "Help", key_display="?"),
    ]

    def __init__(
        self,
        source: Source,
        state: State,
        folder: Path,
        *,
        dest: Path | None = None,
        read_only: bool = False,
    ) -> None:
        """``dest``: the store of the incidents; ``read_only``: nothing is sent to the server."""
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.animation_level = "none"
        self.source = source
        self.state = state
        self.folder = folder
        self.paused = False
        self.read_only = read_only
        self.sort = panes.Sort()
        self.pattern: re.Pattern[str] | None = None
        self._dest = dest
        self._incidents: dict[tuple[str, int], list[panes.Row]] = {}
        self.failure: Exception | None = None
        self._waiting: deque[Event] = deque(maxlen=2000)

    def get_default_screen(self) -> Screen[None]:
        """Begin with the overview."""
        return Overview()

    def on_mount(self) -> None:
        """Start the sources; end cleanly on signals."""
        loop = asyncio.get_running_loop()

        def end(number: int, frame: FrameType | None) -> None:
            _end_without_terminal(number, frame)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, END_SECONDS)
            loop.call_soon_threadsafe(self.exit)

        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, end)
        if not self.is_headless:
            signal.signal(signal.SIGALRM, _end_without_terminal)
            signal.setitimer(signal.ITIMER_REAL, TERMINAL_SECONDS, TERMINAL_SECONDS)
        self.set_interval(TERMINAL_SECONDS, self._check_size)
        self.source.start(self._put)

    def on_ready(self) -> None:
        """Fill the panes once they exist."""
        self.follow()

    def _check_size(self) -> None:
        """Resize the screen where Textual did not.

        Its one-shot timer for this is skipped, and no later one is made, where the process gets no
        CPU for 8 ms at its start.
        """
        screen = self._shown_screen()
        if screen is not None and screen.outer_size != self.size:
            screen.post_message(events.Resize(self.size, self.size))

    def _shown_screen(self) -> Screen[object] | None:
        """Return the screen that is shown; timers and messages also come when all are closed."""
        return self.screen_stack[-1] if self.screen_stack else None

    def _put(self, event: Event) -> None:
        self.post_message(SourceEvent(event))

    def on_source_event(self, message: SourceEvent) -> None:
        """Take an event; while paused, events that would change the screen are kept for later."""
        event = message.event
        if self.paused and not isinstance(event, SHOWN_AT_ONCE):
            self._waiting.append(event)
            return
        self.state.take(event)
        self.follow()

    def follow(self) -> None:
        """Draw the visible screen."""
        screen = self._shown_screen()
        if isinstance(screen, View):
            screen.follow()

    def action_pause(self) -> None:
        """Pause the screen, or continue."""
        self.paused = not self.paused
        self.source.pause(self.paused)
        while not self.paused and self._waiting:
            self.state.take(self._waiting.popleft())
        self.follow()

    def action_filter(self) -> None:
        """Ask for a filter."""

        def taken(text: str | None) -> None:
            if text is None:
                return
            self.state.note = ""
            try:
                self.pattern = re.compile(text[:500]) if text else None
            except (re.error, RecursionError, OverflowError) as error:
                self.state.note = f"{text!r} is not a regular expression: {error}"
            self.follow()

        self.push_screen(Ask(self.pattern.pattern if self.pattern else ""), taken)

    def action_threads(self) -> None:
        """Show all threads."""
        self.push_screen(Threads())

    def action_blocker(self) -> None:
        """Show the stack of the blocker."""
        analysis = self.state.analysis
        found = analysis.findings[:1] if analysis is not None else ()
        blocker = found[0].blocker if found else None
        if blocker is None or blocker.thread is None:
            self.state.note = "no known blocker"
            self.follow()
            return
        self.show_stack(blocker.thread)

    def show_stack(self, thread: int) -> None:
        """Show the stack of a thread of the last capture."""
        analysis = self.state.analysis
        if analysis is not None and 0 <= thread < len(analysis.capture.threads):
            self.push_screen(Stack(thread))

    def show_incident(self, name: str) -> None:
        """Show an incident of the store."""
        self.push_screen(IncidentView(name))

    def incident_rows(self, name: str, width: int) -> list[panes.Row]:
        """Return the lines of an incident, or why it cannot be read."""
        key = name, width
        if key not in self._incidents:
            self._incidents.clear()
            self._incidents[key] = _incident_rows(self._dest or reading_dest(), name, width)
        return self._incidents[key]

    def sort_by(self, column: str) -> None:
        """Sort the threads by a column; by the same again: the other way round."""
        reverse = column == self.sort.by and not self.sort.reverse
        self.sort = panes.Sort(column, reverse)
        self.follow()

    def action_sort(self) -> None:
        """Sort the threads by the next column."""
        at = panes.SORTS.index(self.sort.by) if self.sort.by in panes.SORTS else -1
        self.sort = panes.Sort(panes.SORTS[(at + 1) % len(panes.SORTS)])
        self.state.note = f"threads sorted by {self.sort.by}"
        self.follow()

    def action_reverse(self) -> None:
        """Reverse the order of the threads."""
        self.sort = panes.Sort(self.sort.by, not self.sort.reverse)
        self.follow()

    def action_kill(self) -> None:
        """Ask which statement ends what is under the cursor, and send it."""
        screen, analysis = self._shown_screen(), self.state.analysis
        index = screen.under_cursor() if isinstance(screen, View) else None
        if analysis is None or index is None or index >= len(analysis.capture.threads):
            self._note("no thread under the cursor: choose one in the list")
            return
        if self.read_only:
            self._note("--read-only: nothing is sent to the server")
            return
        thread = analysis.capture.threads[index]
        found = kills(thread, analysis.server)
        if not found:
            self._note("its connection is not known, so there is no KILL for it")
            return

        def taken(statement: str | None) -> None:
            if statement is not None:
                self._note(f"sending {statement}")
                self.source.kill(statement)

        self.push_screen(Confirm(who(thread) or f"thread {thread.tid}", found), taken)

    def _note(self, text: str) -> None:
        self.state.note = text
        self.follow()

    def action_capture(self) -> None:
        """Save a new capture to a file."""
        path = capture_path(self.folder, self.state.title)
        self.state.note = f"taking {path} …"
        self.source.capture(path)
        self.follow()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Help())

    async def action_back(self) -> None:
        """Go back to the previous screen."""
        if len(self.screen_stack) > 1:
            self.pop_screen()

    def _handle_exception(self, error: Exception) -> None:
        """Restore the terminal; the command prints one line with the error."""
        if self.failure is None:
            self.failure = error
        super()._handle_exception(error)

    def _fatal_error(self) -> None:
        self._close_messages_no_wait()
