# SPDX-License-Identifier: Apache-2.0
"""What the agent knows of its server, and since when it knows nothing: as samples for triggers.

A source that is used is known while it answers. Of a server that owes an answer it is known that it
stalls; one that refuses the account says nothing. Without I/O and clocks.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stallscope.base.text import one_line
from stallscope.model.samples import UNANSWERED, Sample

__all__ = ["HEARTBEAT", "Known", "Sight"]

WAITS = "waits"
_AFTER_FIRST = frozenset({"status", "processlist", "backends"})
"""Collectors that are missed once they have worked: an account may lack the right for one."""
BLINK_NS = 6_000_000_000
LONG_BLINK_NS = 45_000_000_000
BLINK_POLLS = 3
"""No answer for less than this, and so many polls, is nothing: at rest the heartbeat is asked every
five seconds, the processlist every thirty."""
HEARTBEAT = "heartbeat"
"""The collector that shows whether the server answers over SQL."""
_CODE = "login.code"


class Known(msgspec.Struct, frozen=True):
    """When a source was known last, for the next agent."""

    wall_ns: int
    why: str = ""
    """Why it has not been since; empty: it has been."""


class _Source(msgspec.Struct):
    known_ns: int
    """When it was known last, or used first, by the monotonic clock."""
    wall_ns: int
    why: str = ""
    is_known: bool = False
    """It was known since this process of the server is watched."""


class Sight:
    """Of one server. All times are of the monotonic clock, but ``wall_ns``."""

    def __init__(self, poll_seconds: float = 1.0) -> None:
        self._blink_ns = BLINK_NS + round(BLINK_POLLS * poll_seconds * 1e9)
        self._sources: dict[str, _Source] = {}
        self._before: dict[str, Known] = {}
        self._lives = False
        """The process of now has answered, if only by a refusal, or nothing asks it."""
        self.owes = False
        """The latest heartbeat waits for its answer."""
        self.answered_ns: int | None = None
        """Wall clock of the latest answer over SQL."""

    def known(self) -> dict[str, Known]:
        """Return when each source of the server was known last. That of the probe is its own."""
        return {
            name: Known(source.wall_ns, source.why)
            for name, source in self._sources.items()
            if name != WAITS
        }

    def restore(self, known: Mapping[str, Known]) -> None:
        """Take since when the agent before this one saw nothing of sources: before ``use``."""
        self._before = {name: one for name, one in known.items() if one.why}

    def use(self, *, sql: bool, now_ns: int, wall_ns: int) -> None:
        """Take which sources a process of the server has; one that is asked again keeps its age."""
        self._lives = not sql
        if sql:
            new = _Source(now_ns, wall_ns, "SQL has not answered yet")
            self._sources.setdefault(HEARTBEAT, new)
            for name, before in self._before.items():
                if 0 <= before.wall_ns <= wall_ns and name in (HEARTBEAT, *_AFTER_FIRST):
                    since_ns = now_ns - (wall_ns - before.wall_ns)
                    self._sources[name] = _Source(since_ns, before.wall_ns, before.why)
            self._before = {}
        elif (known := self._sources.get(HEARTBEAT)) is not None:  # it was used, and cannot be now
            known.why = "SQL is not used any more"

    def sample(self, sample: Sample) -> None:
        """Take a sample of any collector."""
        values, error, source = sample.values, sample.error, sample.source
        if source == HEARTBEAT:
            self.owes = error is not None and values.get(UNANSWERED, 0.0) > 0.0
            if error is None or _CODE in values or values.get(UNANSWERED) == 0.0:
                self._lives = True
            if error is None:
                self.answered_ns = sample.time_ns
        elif source not in _AFTER_FIRST:
            return
        elif error is None and source not in self._sources:
            self._sources[source] = _Source(sample.clock_ns, sample.time_ns)
        if source == HEARTBEAT and UNANSWERED in values:  # that it hangs is known of all
            for name in self._sources.keys() - {WAITS}:
                self._know(name, sample.clock_ns, sample.time_ns)
        elif error is None:
            self._know(source, sample.clock_ns, sample.time_ns)
        elif (known := self._sources.get(source)) is not None:
            known.why = error.partition("; tried again in ")[0]

    def waits(self, now_ns: int, wall_ns: int) -> None:
        """Take that the probe wrote a line: from now on it is used."""
        self._sources.setdefault(WAITS, _Source(now_ns, wall_ns))
        self._know(WAITS, now_ns, wall_ns)

    def no_waits(self, why: str) -> None:
        """Take why the probe writes none."""
        if (known := self._sources.get(WAITS)) is not None:
            known.why = why

    def blind(self, now_ns: int) -> tuple[float, int, str] | None:
        """Return for how many seconds a source has been unknown, since when by the wall clock, and
        why; None: all are known."""
        found = [
            source
            for name, source in self._sources.items()
            if now_ns - source.known_ns > self._blink_ns + LONG_BLINK_NS * (name in _AFTER_FIRST)
        ]
        if not found:
            return None
        oldest = min(found, key=lambda one: one.known_ns)
        why = one_line(oldest.why or "the probe writes no lines", 200)
        return (now_ns - oldest.known_ns) / 1e9, oldest.wall_ns, why

    def own(self, now_ns: int, wall_ns: int, *, running: bool) -> Sample:
        """Return what triggers read: ``server.down`` and ``agent.blind_s``, where they are known.

        A server that runs and has not answered yet is neither down nor back. While it is down,
        nothing is missed.
        """
        values: dict[str, float] = {}
        sources = self._sources.values()
        if not running:
            values["server.down"] = 1.0
            for source in sources:
                source.known_ns, source.wall_ns, source.is_known = now_ns, wall_ns, False
        elif self._lives:
            values["server.down"] = 0.0
        blind = self.blind(now_ns)
        if blind is not None:
            values["agent.blind_s"] = blind[0]
        elif running and all(source.is_known for source in sources):
            values["agent.blind_s"] = 0.0
        return Sample("agent", wall_ns, now_ns, values)

    def _know(self, name: str, now_ns: int, wall_ns: int) -> None:
        known = self._sources.get(name)
        if known is not None:
            known.known_ns, known.wall_ns, known.why, known.is_known = now_ns, wall_ns, "", True
