# SPDX-License-Identifier: Apache-2.0
"""The outputs of ``stallscope waits``: raw lines, screens, a file of metrics."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from stallscope.analyzers import catalog
from stallscope.analyzers.excerpts import Excerpts
from stallscope.model.waitlines import ProgramState, WaitLine
from stallscope.reporters import cost, lines
from stallscope.reporters import waits as reporter

if TYPE_CHECKING:
    from stallscope.reporters.live import LiveScreen

__all__ = ["Raw", "Screens", "View"]


class View(Protocol):
    """An output: takes each line, parsed and as bytes."""

    def show(self, line: WaitLine, data: bytes) -> None: ...


class Raw:
    """The lines, unchanged."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, line: WaitLine, data: bytes) -> None:
        self._stream.write(data.decode("utf-8") + "\n")
        self._stream.flush()


class Screens:
    """Reports for people: in place on a terminal, one after the other elsewhere.

    Use it as a context manager. ``title`` names the server, which may change.
    """

    def __init__(
        self, stream: TextIO, title: Callable[[], str], top: int, *, uprobes: bool
    ) -> None:
        self._stream = stream
        self._title = title
        self._top = top
        self._uprobes = uprobes
        self._blocks = lines.can_draw_blocks(stream)
        self._excerpts = Excerpts(catalog.load())
        self._programs: tuple[ProgramState, ...] = ()
        self._source: str | None = None
        self._call_added_ns: float | None = None
        self._seconds = 0.0
        self._begun = False
        in_place = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._live = _live_screen(stream) if in_place else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._live.show([lines.Line(f"{self._title()}: first figures soon …", "dim")])
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, line: WaitLine, data: bytes) -> None:
        if not line.final:
            self._seconds += line.seconds
        self._programs = line.programs or self._programs
        self._source = line.source or self._source
        if line.call_added_ns is not None:
            self._call_added_ns = line.call_added_ns
        screen = reporter.render(line, self._options(line), self._excerpts)
        self._begun = True
        if self._live is not None and not line.final:
            self._live.show(reporter.fit(screen, self._live.height))
            return
        if self._live is not None:
            self._live.stop()
        lines.print_lines(screen, self._stream)
        if not line.final:
            lines.print_lines([lines.Line("")], self._stream)
        self._stream.flush()

    def _options(self, line: WaitLine) -> reporter.Options:
        return reporter.Options(
            server=self._title(),
            width=lines.width_of(self._stream),
            top=self._top,
            blocks=self._blocks,
            clock=lines.clock(line.ts),
            watched=self._seconds,
            programs=self._programs,
            uprobes=self._uprobes,
            source=self._source,
            cost=self._cost(line),
        )

    def _cost(self, line: WaitLine) -> str:
        """Return what it costs; elsewhere than on a terminal the first screen says it."""
        if line.final or (self._begun and self._live is None):
            return ""
        text = cost.sentence(self._source, self._call_added_ns, line.rest)
        return text[:1].upper() + text[1:]


def _live_screen(stream: TextIO) -> LiveScreen:
    from stallscope.reporters.live import (
        LiveScreen,  # rich is large, and output to pipes does not need it
    )

    return LiveScreen(stream)
