# SPDX-License-Identifier: Apache-2.0
"""The events of waits over their threshold that a probe printed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stallscope.model.waitlines import Event, WaitLine, loads
from tests.bench.stats import BenchError
from tests.bench.tools import Taken, read_back
from tests.support.known_waits import Call

__all__ = ["Lines", "captures", "events", "final_line", "is_of"]


Lines = Sequence[tuple[int, str]]
"""What a program printed: lines, each with the time (CLOCK_MONOTONIC, ns) when we had it."""


class Line(msgspec.Struct):
    """What distinguishes the lines of a probe."""

    type: str = ""
    event: Event | None = None


def events(lines: Lines) -> list[Event]:
    """Return the events of the lines, each in a line of its own or in one of totals."""
    found: list[Event] = []
    for nr, (_, text) in enumerate(lines, 1):
        head = msgspec.json.decode(text, type=Line)
        if head.event is not None:
            found.append(head.event)
        elif head.type == "waits":
            line = loads(text.encode(), "stallscope-probe", nr)
            assert isinstance(line, WaitLine)
            found += line.events
    return found


def is_of(event: Event, call: Call) -> bool:
    """Return whether an event is of a wait that the target reported: of its thread, at its time."""
    if event.start_ns is None or event.tid != call.tid:
        return False
    return call.start_ns <= event.start_ns <= call.end_ns


def final_line(lines: Lines) -> WaitLine:
    """Return the line with the totals of the whole run (docs/waits-schema.md)."""
    for nr, (_, text) in enumerate(lines, 1):
        if '"final":true' in text:
            line = loads(text.encode(), "stallscope-probe", nr)
            if isinstance(line, WaitLine) and line.final:
                return line
    raise BenchError(
        f"the probe printed no final line, but {[text[:80] for _, text in lines[-3:]]}"
    )


def captures(lines: Lines) -> list[Taken]:
    """Return the captures among the lines of ``serve --watch``; they end when their last line was
    read.
    """
    found: list[Taken] = []
    own: list[tuple[int, str]] = []
    for read_ns, text in lines:
        kind = msgspec.json.decode(text, type=Line).type
        if kind == "capture" or own:
            own.append((read_ns, text))
        if kind == "end":
            data = "".join(line for _, line in own).encode()
            found.append(read_back(own[0][0], read_ns, data, "stallscope-probe serve"))
            own = []
    return found
