# SPDX-License-Identifier: Apache-2.0
"""Times in which the agent did not run, and in which the wall clock was set.

Stopped, frozen, suspended, or without a CPU for seconds: what was asked before looks late then, and
is no sign of a stall. So what was begun before is asked again. What a server measures by the wall
clock, the age of a statement for one, is wrong after suspend and after the clock was set.
"""

from __future__ import annotations

import msgspec

from stallscope.agent.clock import NS
from stallscope.model.samples import Sample

__all__ = ["Gaps"]

GAP_NS = 3 * NS
"""The loop wakes up at least once a second: after so long it was not the loop that waited."""
STEP_NS = 2 * NS
"""A change of the wall clock in one pass of the loop; slewing takes hours for that."""
CATCH_UP_NS = NS
"""So long after a gap, lines of the probe are of before: they waited in its pipe."""
_SECONDS = "_s"
"""How names of values end that are lengths in seconds; those of SQL are by the wall clock."""
_OF_SERVER = frozenset(("processlist", "lock_waits", "transactions"))


class Gaps:
    """What the loop's clocks say between two of its passes. There is no clock in here."""

    def __init__(self) -> None:
        self._now_ns: int | None = None
        self._ahead_ns = 0
        """The wall clock's lead over CLOCK_MONOTONIC, which stops in suspend."""
        self._ended_ns = 0
        self._set_ns: int | None = None

    def look(self, now_ns: int, wall_ns: int) -> int:
        """Take the clocks of a pass; return the length of the gap that has just ended, 0: none."""
        before, ahead = self._now_ns, wall_ns - now_ns
        if before is not None and abs(ahead - self._ahead_ns) > STEP_NS:
            self._set_ns = now_ns
        self._now_ns, self._ahead_ns = now_ns, ahead
        if before is None or now_ns - before < GAP_NS:
            return 0
        self._ended_ns = now_ns
        return now_ns - before

    def is_stale(self, sample: Sample) -> bool:
        """Return whether a sample was begun before the latest gap ended.

        A failed one has the time of its failure, and how long it took. One that still fails later
        is no longer for the gap.
        """
        begun_ns = sample.clock_ns
        if sample.error is not None and self.is_catching_up(sample.clock_ns):
            begun_ns -= round(sample.elapsed_ms * 1e6)
        return begun_ns < self._ended_ns

    def is_catching_up(self, now_ns: int) -> bool:
        """Return whether lines that come now may be of a time before the latest gap ended."""
        return self._ended_ns > 0 and now_ns - self._ended_ns < CATCH_UP_NS

    def checked(self, sample: Sample) -> Sample:
        """Return a sample without lengths that the server took for longer than the time since the
        wall clock was set: nobody knows how long they are."""
        if self._set_ns is None or not sample.values:
            return sample
        most_s = (sample.clock_ns - self._set_ns) / NS + 1
        wrong = {
            name
            for name, value in sample.values.items()
            if name.endswith(_SECONDS) and name.partition(".")[0] in _OF_SERVER and value > most_s
        }
        if not wrong:
            return sample
        kept = {name: value for name, value in sample.values.items() if name not in wrong}
        return msgspec.structs.replace(sample, values=kept)
