# SPDX-License-Identifier: Apache-2.0
"""Captures as one small JSON value for the page's script; docs/report.md has its fields. Every
text, function, stack, identity and situation is in it once, and captures refer to them by number:
captures of one incident are similar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stallscope.analyzers.analysis import Analysis, Moment
from stallscope.analyzers.subsystems import OTHER, Subsystems
from stallscope.base.text import clean
from stallscope.model.capture import Frame, Lock, Thread
from stallscope.reporters.counts import count_states, counted_state
from stallscope.reporters.html import waitgraph
from stallscope.reporters.lines import short_name
from stallscope.reporters.sessions import account

__all__ = [
    "MAX_FRAMES",
    "MAX_MOMENTS_BYTES",
    "MAX_MOMENT_STACKS",
    "MAX_QUERY",
    "MAX_TEXT",
    "SCHEMA",
    "Entry",
    "Packer",
    "lock_name",
    "place",
    "shown",
    "where",
]

SCHEMA = "stallscope.report/1"
MAX_TEXT = 1_000
"""The most characters of a name; no real one is longer."""
MAX_QUERY = 4_000
MAX_FRAMES = 256
"""The most frames of a stack that are shown: half of them from the leaf, half from the root."""

MAX_MOMENT_STACKS = 200
"""The most stacks of one moment, those with the most threads; the rest is a number of threads."""
MAX_MOMENTS_BYTES = 4_000_000
"""About how much of the page the moments of all bursts may be, with the stacks that only they
have."""


class Entry(msgspec.Struct, frozen=True):
    """The name of a capture on the page, and why it was taken."""

    label: str
    reason: str = ""
    """``trigger``, ``burst``, ``manual``, of a comparison ``before`` or ``after``."""


def shown(text: str | None, limit: int = MAX_TEXT) -> str:
    """Return a target's text, escaped and cut for one line."""
    if text is None:
        return ""
    line = clean(" ".join(text[: 4 * limit].split()))
    if len(line) <= limit and len(text) <= 4 * limit:
        return line
    return f"{line[:limit]}… ({len(text)} characters)"


_DIGITS = 6
"""Of a number and its comma, on average."""


class _Table:
    """Values by number, each once."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.bytes = 0
        """About how long they are on the page."""
        self._numbers: dict[Any, int] = {}

    def add(self, row: Any) -> int:
        number = self._numbers.get(row)
        if number is None:
            number = self._numbers[row] = len(self.rows)
            self.rows.append(row)
            self.bytes += len(row) * (1 if isinstance(row, str) else _DIGITS)
        return number


class Packer:
    """Takes one analysis after the other and keeps the data that the page shows."""

    def __init__(self, subsystems: Subsystems) -> None:
        self._subsystems = subsystems
        self._texts, self._names, self._stacks = _Table(), _Table(), _Table()
        self._frames, self._raws = _Table(), _Table()
        self._who, self._what = _Table(), _Table()
        self._captures: list[dict[str, Any]] = []
        self._seen: dict[str, int] = {}
        self._moments_left = MAX_MOMENTS_BYTES
        self.moments_left_out = 0
        """Moments for which there was no room."""
        self._subsystem_numbers = {
            name: i for i, name in enumerate((OTHER, *(item.name for item in subsystems.items)))
        }

    def add(self, analysis: Analysis, entry: Entry, verdict: str, files: Mapping[int, str]) -> None:
        """Pack one capture; ``files``: what its threads waited for, by their TIDs."""
        capture = analysis.capture
        group_of = [0] * len(capture.threads)
        for group in analysis.groups:
            stack = self.stack(group.frames)
            for index in group.threads:
                group_of[index] = stack
        raws: dict[int, int] = {}
        who, what = [], []
        for index, thread in enumerate(capture.threads):
            who.append(self._identity(thread))
            what.append(self._situation(analysis, index, group_of[index], raws))
        states = count_states(analysis)
        first = analysis.findings[0] if analysis.findings else None
        packed: dict[str, Any] = {
            "label": shown(entry.label),
            "reason": shown(entry.reason),
            "time": None if capture.time_ns is None else capture.time_ns / 1e6,
            "verdict": shown(verdict, MAX_QUERY),
            "signature": first.signature if first else None,
            "confidence": round(first.confidence, 3) if first else None,
            "stall": first is not None,
            "states": [states[name] for name in ("waiting", "running", "idle")],
            "blocker": first.blocker.tid if first and first.blocker else None,
            "who": who,
            "what": what,
            "graph": waitgraph.build(analysis, files),
            "moments": self._moments(analysis),
        }
        counts = [thread.count for thread in capture.threads]
        if any(count != 1 for count in counts):
            packed["counts"] = counts
        waited = [thread.waited_ns for thread in capture.threads]
        if any(item is not None for item in waited):
            packed["waited"] = [None if item is None else round(item / 1e6, 1) for item in waited]
        self._captures.append(packed)

    def value(self) -> dict[str, Any]:
        """Return the whole value."""
        known = self._subsystems.by_name
        return {
            "schema": SCHEMA,
            "texts": self._texts.rows,
            "names": self._names.rows,
            "subsystems": [
                [name, known[name].title, known[name].colour]
                if name in known
                else [name, "not known", "grey"]
                for name in self._subsystem_numbers
            ],
            "stacks": self._stacks.rows,
            "frames": self._frames.rows,
            "raws": self._raws.rows,
            "who": self._who.rows,
            "what": self._what.rows,
            "captures": self._captures,
        }

    def stack(self, frames: Sequence[str]) -> int:
        """Return the number of a stack of names for people, innermost first."""
        return self._stacks.add(tuple(self._name(name) for name in _middle(frames)))

    def _moments(self, analysis: Analysis) -> list[dict[str, Any]]:
        """Return what all threads did at each moment, while there is room for it."""
        packed: list[dict[str, Any]] = []
        tables = (self._texts, self._names, self._stacks)
        for moment in analysis.moments:
            if self._moments_left <= 0:
                self.moments_left_out += 1
                continue
            before = sum(table.bytes for table in tables)
            row = self._moment(moment)
            numbers = len(row["stacks"]) + len(row["ran"])
            new = sum(table.bytes for table in tables) - before
            self._moments_left -= new + numbers * _DIGITS
            packed.append(row)
        return packed

    def _moment(self, moment: Moment) -> dict[str, Any]:
        groups = moment.groups[:MAX_MOMENT_STACKS]
        stacks: list[int] = []
        for group in groups:
            state = self._text(counted_state(group.state))
            stacks += (self.stack(group.frames), state, group.count)
        ran: list[int] = []
        for count, frames in moment.ran[:MAX_MOMENT_STACKS]:
            ran += (self.stack(frames), count)
        return {
            "time": None if moment.time_ns is None else moment.time_ns / 1e6,
            "stacks": stacks,
            "ran": ran,
            "left_out": sum(group.count for group in moment.groups[MAX_MOMENT_STACKS:]),
        }

    def _text(self, text: str | None, limit: int = MAX_TEXT) -> int:
        """Return the number of a text; 0 is none."""
        if not self._seen:
            self._seen[""] = self._texts.add("")
        if text is None:
            return 0
        number = self._seen.get(text)
        if number is None:
            number = self._texts.add(shown(text, limit))
            if len(text) <= limit:
                self._seen[text] = number
        return number

    def _name(self, name: str) -> int:
        subsystem = self._subsystem_numbers[self._subsystems.of(name)]
        return self._names.add((self._text(name), subsystem))

    def _raw(self, frames: tuple[Frame, ...], known: dict[int, int]) -> int:
        """Return the number of a stack of the capture. Equal stacks share their tuple."""
        number = known.get(id(frames))
        if number is None:
            row = tuple(
                self._frames.add((self._text(str(frame)), self._text(where(frame))))
                for frame in _middle(frames)
            )
            number = known[id(frames)] = self._raws.add(row)
        return number

    def _identity(self, thread: Thread) -> int:
        """Return the identity of a thread: what is the same in all captures."""
        return self._who.add(
            (
                thread.tid,
                self._text(thread.name),
                thread.connection,
                self._text(account(thread)),
                self._text(thread.database),
            )
        )

    def _situation(self, analysis: Analysis, index: int, stack: int, raws: dict[int, int]) -> int:
        """Return the situation of a thread: other threads and captures can share it."""
        thread = analysis.capture.threads[index]
        call = thread.syscall
        doing = " · ".join(x for x in (thread.command, thread.activity) if x)
        return self._what.add(
            (
                self._text(counted_state(analysis.states[index])),
                stack,
                self._raw(thread.frames, raws),
                self._raw(thread.kernel_frames, raws),
                self._text(None if thread.label is None else str(thread.label)),
                self._text(None if thread.unwind == "complete" else thread.unwind),
                self._text(self._lock(analysis, thread)),
                self._text(None if call is None else call.name or str(call.nr)),
                self._text(doing),
                self._text(thread.query, MAX_QUERY),
                self._text(place(analysis, index)),
                self._text(None if thread.state == "?" else thread.state),
            )
        )

    @staticmethod
    def _lock(analysis: Analysis, thread: Thread) -> str | None:
        locks = analysis.capture.locks
        if thread.lock is None or not 0 <= thread.lock < len(locks):
            return None
        return lock_name(locks[thread.lock])


def place(analysis: Analysis, index: int) -> str:
    """Return where a thread is: the frames that show what it waits for or does."""
    return " < ".join(map(short_name, analysis.places[index][:3])) or "no frame could be read"


def lock_name(lock: Lock) -> str:
    """Return the name of a lock: its variable, else its kind and address."""
    return lock.symbol or f"{lock.kind} {lock.address:#x}"


def where(frame: Frame) -> str | None:
    """Return the argument for `addr2line`, and the source line where the dump has it."""
    parts = []
    if frame.module is not None and frame.symbol is not None:
        name = frame.module.path.rsplit("/", 1)[-1]
        parts.append(name if frame.offset is None else f"{name}+{frame.offset:#x}")
    if frame.source and frame.symbol is not None:
        parts.append(frame.source)
    if frame.kernel:
        parts.append("kernel")
    return " ".join(parts) or None


def _middle(frames: Sequence[Any]) -> Sequence[Any]:
    """Remove the middle of a stack that is too long to read."""
    if len(frames) <= MAX_FRAMES:
        return frames
    half = MAX_FRAMES // 2
    return [*frames[:half], *frames[-half:]]
