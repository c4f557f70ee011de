# SPDX-License-Identifier: Apache-2.0
"""What lies over a screen for a moment: the help, the filter, and the question before a KILL."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input

from stallscope.analyzers.analysis import Ending
from stallscope.reporters.lines import wrap
from stallscope.screens import panes
from stallscope.screens.rows import Rows

__all__ = ["Ask", "Confirm", "Help"]

HELP = (
    ("space", "pause or resume; no stacks are taken while paused"),
    ("s, r", "sort the threads by the next column; reverse the order"),
    ("k", "end the statement or the connection under the cursor; asks first"),
    ("/", "show only threads, locks and files that match a regular expression"),
    ("t", "all threads; Enter shows the stack of one"),
    ("b", "the stack of the blocker"),
    ("Enter", "the stack of the thread, or the incident, under the cursor"),
    ("c", "save a capture to a file (mode 0600)"),
    ("Tab", "next pane; arrows, PgUp, PgDn scroll"),
    ("Esc", "back"),
    ("q", "quit"),
)
MEANING = (
    "A column of the chart is a second. Idle threads wait for work; a thread that waits for"
    " a lock, a file or another thread is waiting.",
    "What threads do: those that run, and those that wait for a lock or a file, as they were"
    " in one moment of each second.",
    "Threads: how many waited for a lock or file, averaged over each second.",
    "Stacks are taken as often as 0.6 percent of one CPU allows. No thread is stopped.",
)


class Help(ModalScreen[None]):
    """Keys, and the meaning of the figures."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter", "app.back")]

    def compose(self) -> ComposeResult:
        """Make the text."""
        yield Rows("Keys", id="help")

    def on_mount(self) -> None:
        """Fill it."""
        rows = [panes.plain(f"{key:<7} {what}") for key, what in HELP]
        rows.append(panes.plain(""))
        for text in MEANING:
            rows += [panes.plain(line.text, "dim") for line in wrap(text, 70)]
        widget = self.query_one("#help", Rows)
        widget.show(rows)
        widget.focus()


class Confirm(ModalScreen[str | None]):
    """Ask which of the statements that end a connection is to be sent, if any."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n,q", "dismiss(None)"),
        Binding("1", "send(0)"),
        Binding("2", "send(1)"),
    ]

    def __init__(self, who: str, endings: tuple[Ending, ...]) -> None:
        super().__init__()
        self._who = who
        self._endings = endings

    def compose(self) -> ComposeResult:
        """Make the text."""
        yield Rows("Send to the server?", id="confirm")

    def on_mount(self) -> None:
        """Fill it."""
        rows = [panes.plain(line.text, "bold") for line in wrap(self._who, 70)]
        for number, ending in enumerate(self._endings, 1):
            rows.append(panes.plain(f"  {number}  {ending.statement}", "bold red"))
            rows += [panes.plain(line.text) for line in wrap(ending.effect, 70, indent=" " * 5)]
        rows.append(panes.plain("  Esc  send nothing", "dim"))
        widget = self.query_one("#confirm", Rows)
        widget.show(rows)
        widget.styles.height = len(rows) + 2
        widget.focus()

    def action_send(self, number: int) -> None:
        """Return the statement to the caller."""
        if number < len(self._endings):
            self.dismiss(self._endings[number].statement)


class Ask(ModalScreen[str | None]):
    """Ask for a filter."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)")]

    def __init__(self, before: str) -> None:
        super().__init__()
        self._before = before

    def compose(self) -> ComposeResult:
        """Make the line."""
        yield Input(value=self._before, placeholder="regular expression", id="ask")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the text to the caller."""
        self.dismiss(event.value)
