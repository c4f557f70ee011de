# SPDX-License-Identifier: Apache-2.0
"""The line of an incident with places for what differs from one sighting to the next.

A row takes 100 µs to encode, and a simulated fleet has a million of them: the line is encoded once,
with values in these places that nothing else has, and cut there. All numbers of samples and threads
are such places, or engines would pack the lines better than those of real incidents.
"""

from __future__ import annotations

import random
import re
from typing import NamedTuple

import msgspec

from stallscope.fleet.tables import CapturePart, IncidentRow, SamplePart, encode

__all__ = ["LineTemplate", "Sighting"]

_TEXTS = ("day", "uid", "id", "host", "version", "agent_version")
_TIME = 8_800_000_000_000
_REV, _PID, _SECONDS, _DETECT = 8_810_000_000_000_001, 880_001_001, 88_001_001.25, 88_001_002.25
_END = 8_820_000_000_000
_COUNT, _SAMPLE = 880_100_000_000, 88_001_003.25
_MARK = re.compile(
    rb'"\x40(?P<text>[a-z_]+)\x40"'
    rb"|(?P<rev>8810000000000001)|(?P<time>88000000\d{5})|(?P<end>8820000000000)"
    rb"|(?P<pid>880001001)|(?P<seconds>88001001\.25)|(?P<detect_ms>88001002\.25)"
    rb"|(?P<count>8801000\d{5})|(?P<sample>88001003\.25)"
)


class Sighting(NamedTuple):
    """One incident: what is its own. Texts are of letters that JSON has as they are."""

    day: bytes
    uid: bytes
    id: bytes
    host: bytes
    version: bytes
    agent_version: bytes
    rev: int
    pid: int
    start_ms: int
    seconds: float
    detect_ms: float


class LineTemplate:
    """Makes lines of one row."""

    def __init__(self, row: IncidentRow) -> None:
        line = encode(_marked(row)).replace(b"%", b"%%")
        found: list[bytes] = []
        at = 0
        self._own: list[tuple[int, int]] = []
        self._times: list[tuple[int, int]] = []
        self._ends: list[int] = []
        self._counts: list[tuple[int, int]] = []
        self._samples: list[tuple[int, float]] = []
        samples = iter(_numbers(row))
        for place, mark in enumerate(_MARK.finditer(line)):
            found += (line[at : mark.start()], _FORMATS[mark.lastgroup or ""])
            at = mark.end()
            match mark.lastgroup:
                case "time":
                    self._times.append((place, int(mark["time"]) - _TIME))
                case "end":
                    self._ends.append(place)
                case "count":
                    self._counts.append((place, int(mark["count"]) - _COUNT))
                case "sample":
                    self._samples.append((place, next(samples)))
                case name:
                    field = mark["text"].decode() if name == "text" else name
                    self._own.append((place, Sighting._fields.index(str(field))))
            self._places = place + 1
        found.append(line[at:])
        self._format = b"".join(found)

    def line(self, one: Sighting, rng: random.Random) -> bytes:
        """Return its line."""
        values: list[object] = [0] * self._places
        for place, field in self._own:
            values[place] = one[field]
        for place, ms in self._times:
            values[place] = one.start_ms + ms
        for place in self._ends:
            values[place] = one.start_ms + int(one.seconds * 1000)
        factor = 0.4 + 5.6 * rng.random() ** 2
        for place, count in self._counts:
            values[place] = int(count * factor) or 1
        chance = rng.random
        for place, number in self._samples:
            values[place] = number * (0.7 + 0.7 * chance())
        return self._format % tuple(values)


_FORMATS = {
    "text": b'"%b"',
    "rev": b"%d",
    "time": b"%d",
    "end": b"%d",
    "pid": b"%d",
    "seconds": b"%.3f",
    "detect_ms": b"%.1f",
    "count": b"%d",
    "sample": b"%.3f",
}


def _numbers(row: IncidentRow) -> list[float]:
    """Return the numbers of samples in the order in which a line has them."""
    columns = ([getattr(one, name) for one in row.samples] for name in ("before", "most", "after"))
    return [number for column in columns for number in column if number is not None]


def _marked(row: IncidentRow) -> IncidentRow:
    captures = tuple(_capture(one, row.start_ms) for one in row.captures)
    return msgspec.structs.replace(
        row,
        **{name: f"@{name}@" for name in _TEXTS},
        rev=_REV,
        pid=_PID,
        start_ms=_TIME,
        end_ms=None if row.end_ms is None else _END,
        seconds=None if row.seconds is None else _SECONDS,
        detect_ms=None if row.detect_ms is None else _DETECT,
        threads=_COUNT + row.threads,
        captures=captures,
        stalled=tuple(
            msgspec.structs.replace(one, count=_COUNT + one.count) for one in row.stalled
        ),
        samples=tuple(
            SamplePart(
                name=one.name,
                before=None if one.before is None else _SAMPLE,
                most=_SAMPLE,
                after=None if one.after is None else _SAMPLE,
            )
            for one in row.samples
        ),
    )


def _capture(one: CapturePart, start_ms: int) -> CapturePart:
    return msgspec.structs.replace(
        one,
        time_ms=_TIME + min(99_999, max(0, one.time_ms - start_ms)),
        detect_ms=None if one.detect_ms is None else _DETECT,
    )
