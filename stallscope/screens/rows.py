# SPDX-License-Identifier: Apache-2.0
"""A widget of any number of rows; it draws only the visible ones that have changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from stallscope.screens.panes import Row

__all__ = ["Rows"]


class Rows(ScrollView):
    """Rows of text, with a cursor where rows can be picked; text is never parsed as markup."""

    DEFAULT_CSS = """
    Rows { scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; overflow-x: hidden; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home,g", "move(-1000000)", "First", show=False),
        Binding("end,G", "move(1000000)", "Last", show=False),
        Binding("enter", "pick", "Stack"),
    ]

    cursor: reactive[int] = reactive(0, repaint=False)

    class Picked(Message):
        """The user picked a row of a thread or of an incident."""

        def __init__(self, row: Row) -> None:
            super().__init__()
            self.row = row

    class Sorted(Message):
        """The user picked a column by its heading."""

        def __init__(self, column: str) -> None:
            super().__init__()
            self.column = column

    def __init__(
        self, title: str = "", *, id: str, focus: bool = True, threads: bool = False
    ) -> None:
        """``threads``: rows can be of threads, which can be picked."""
        super().__init__(id=id)
        self._threads = threads
        self.border_title = title
        self.can_focus = focus
        self._rows: list[Row] = []

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable stacks only where rows are of threads."""
        return self._threads if action == "pick" else True

    @property
    def rows(self) -> Sequence[Row]:
        """Return the shown rows."""
        return self._rows

    def show(self, rows: Sequence[Row]) -> None:
        """Show these rows; unchanged ones are not drawn again."""
        before = self._rows
        self._rows = list(rows)
        if len(before) != len(self._rows):
            self.virtual_size = Size(self.size.width, len(self._rows))
            self.cursor = max(self._first, min(self.cursor, len(self._rows) - 1))
            self.refresh()
            return
        for number, (old, new) in enumerate(zip(before, self._rows, strict=True)):
            if old != new:
                self._redraw(number)

    @property
    def _first(self) -> int:
        """Return the first row of the cursor: a heading has none."""
        return int(len(self._rows) > 1 and bool(self._rows[0].columns))

    def _redraw(self, number: int) -> None:
        line = number - round(self.scroll_offset.y)
        if 0 <= line < self.size.height:
            self.refresh(Region(0, line, self.size.width, 1))

    def on_resize(self) -> None:
        """Use the available width."""
        self.virtual_size = Size(self.size.width, len(self._rows))

    def on_focus(self) -> None:
        """Show the cursor."""
        self._redraw(self.cursor)

    def on_blur(self) -> None:
        """Hide the cursor."""
        self._redraw(self.cursor)

    def watch_cursor(self, old: int, new: int) -> None:
        """Draw both places, and scroll to the new one."""
        self._redraw(old)
        self._redraw(new)
        if self.can_focus:
            self.scroll_to_region(
                Region(0, new, 1, 1), animate=False, force=True, spacing=None, x_axis=False
            )

    def action_move(self, step: int) -> None:
        """Move the cursor."""
        self.cursor = max(self._first, min(self.cursor + step, len(self._rows) - 1))

    def action_page(self, step: int) -> None:
        """Move the cursor by the visible rows."""
        self.action_move(step * max(1, self.size.height - 1))

    def action_pick(self) -> None:
        """Post the row that the cursor is on."""
        row = self.at_cursor
        if row is not None and (row.thread is not None or row.incident is not None):
            self.post_message(self.Picked(row))

    @property
    def at_cursor(self) -> Row | None:
        """Return the row that the cursor is on."""
        return self._rows[self.cursor] if 0 <= self.cursor < len(self._rows) else None

    def on_click(self, event: Click) -> None:
        """Move the cursor to the pointer, or sort by the column of a heading."""
        place = event.get_content_offset(self)
        if place is None:
            return  # on its border
        number = place.y + round(self.scroll_offset.y)
        row = self._rows[number] if 0 <= number < len(self._rows) else None
        if row is not None and row.columns:
            under = [name for begin, name in row.columns if begin <= place.x]
            self.post_message(self.Sorted(under[-1]))
            return
        self.action_move(number - self.cursor)

    def render_line(self, y: int) -> Strip:
        """Return one visible line."""
        number = y + round(self.scroll_offset.y)
        width = self.size.width
        base = self.rich_style
        if not 0 <= number < len(self._rows):
            return Strip.blank(width, base)
        segments = [
            Segment(text, base + Style.parse(style) if style else base)
            for text, style in self._rows[number].parts
        ]
        strip = Strip(segments, sum(cell_len(segment.text) for segment in segments))
        strip = strip.adjust_cell_length(width, base)
        if self.has_focus and number == self.cursor:
            strip = strip.apply_style(Style(reverse=True))
        return strip
