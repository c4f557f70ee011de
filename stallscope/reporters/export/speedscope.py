# SPDX-License-Identifier: Apache-2.0
"""The file format of speedscope: https://www.speedscope.app/file-format-schema.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from stallscope.base.text import clean
from stallscope.model.capture import Frame
from stallscope.reporters.export.source import (
    Entry,
    Options,
    Row,
    rows,
    source_line,
    thread_title,
    tool,
)

__all__ = ["render"]

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"

Stack = tuple[int, ...]
"""Indexes of frames, from the outermost."""


def render(entries: Iterable[Entry], options: Options) -> Iterator[bytes]:
    """Return a profile for each capture and, where there are several, one of all together.

    A profile's weights are threads.
    """
    frames = _Frames()
    total: Counter[Stack] = Counter()
    captures = 0
    yield b'{"profiles":['
    for captures, entry in enumerate(entries, 1):
        counts: Counter[Stack] = Counter()
        known: dict[tuple[int, int], Stack] = {}
        for row in rows(entry, options):
            stack = known.get(row.key) if row.key else None
            if stack is None:
                stack = frames.stack(row)
                if row.key:
                    known[row.key] = stack
            counts[frames.head(row, options) + stack] += row.thread.count
        total.update(counts)
        yield (b"," if captures > 1 else b"") + _profile(clean(entry.name), counts)
    if captures > 1:
        yield b"," + _profile(f"all {captures} captures", total)
    yield b'],"activeProfileIndex":%d,"shared":{"frames":' % (captures if captures > 1 else 0)
    yield msgspec.json.encode(frames.items)
    rest = {"$schema": _SCHEMA, "name": clean(options.title), "exporter": tool()}
    yield b"}," + msgspec.json.encode(rest)[1:]


def _profile(name: str, counts: Mapping[Stack, int]) -> bytes:
    return msgspec.json.encode(
        {
            "type": "sampled",
            "name": name,
            "unit": "none",
            "startValue": 0,
            "endValue": sum(counts.values()),
            "samples": list(counts),
            "weights": list(counts.values()),
        }
    )


class _Frames:
    """Distinct frames of all captures."""

    def __init__(self) -> None:
        self.items: list[dict[str, str | int]] = []
        self._ids: dict[tuple[str, str, int], int] = {}

    def head(self, row: Row, options: Options) -> Stack:
        """Return the frames that represent the thread itself."""
        names = [thread_title(row.thread)] if options.threads else []
        if options.states:
            names.append(f"[{row.state}]")
        return tuple(self._id(name, None) for name in names)

    def stack(self, row: Row) -> Stack:
        frames = row.frames or (None,) * len(row.names)
        pairs = zip(reversed(row.names), reversed(frames), strict=True)
        return tuple(self._id(name, frame) for name, frame in pairs)

    def _id(self, name: str, frame: Frame | None) -> int:
        file, line = source_line(frame) if frame is not None else ("", 0)
        if not file and frame is not None and frame.module is not None:
            file = clean(frame.module.path)
        key = (name, file, line)
        number = self._ids.get(key)
        if number is None:
            number = self._ids[key] = len(self.items)
            self.items.append(
                {
                    "name": name,
                    **({"file": file} if file else {}),
                    **({"line": line} if line else {}),
                }
            )
        return number
