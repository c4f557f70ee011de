# SPDX-License-Identifier: Apache-2.0
"""Sending to others, over and over: notifications to destinations, batches to a fleet."""

from __future__ import annotations

import logging

from stallscope.base.backoff import Backoff
from stallscope.base.text import one_line

__all__ = ["Channel", "SendError"]

SAID_SECONDS = 600.0
"""What fails in another way is logged again after so long."""


class SendError(Exception):
    """Something was not taken.

    ``refused``: the destination will never take it as it is; ``unreachable``: it gave no answer, so
    nothing else can be sent to it now either; ``after``: seconds for which it wants to be left
    alone.
    """

    def __init__(
        self, why: str, *, refused: bool = False, unreachable: bool = False, after: float = 0.0
    ) -> None:
        super().__init__(one_line(why, 300))
        self.refused = refused
        self.unreachable = unreachable
        self.after = after


class Channel:
    """How the sending to one destination goes: until when it is left alone, and what the log has of
    it. Its user has a lock. All times are of one clock.
    """

    def __init__(self, what: str, backoff: Backoff, longest_wish: float, log: logging.Logger):
        """``what``: for the log. ``longest_wish``: the longest pause that it can ask for."""
        self.what = what
        self.backoff = backoff
        self.not_before = 0.0
        self.why = ""
        """Why it was left alone last."""
        self.failed = 0
        """Attempts since all was well."""
        self._longest_wish = longest_wish
        self._log = log
        self._said = ""
        self._said_at = 0.0

    def fails(self, error: SendError, now: float) -> None:
        """Count and log an attempt that failed."""
        self.failed += 1
        why = str(error)
        if why != self._said and (not self._said or now - self._said_at >= SAID_SECONDS):
            self._log.error("%s: %s; it is tried again", self.what, why)
            self._said, self._said_at = why, now

    def pause(self, error: SendError, now: float) -> None:
        """Leave it alone: longer with each attempt, and as long as it asks."""
        self.why = str(error)
        wish = self.backoff.asked(min(error.after, self._longest_wish))
        self.not_before = now + max(self.backoff.next(), wish)

    def answers(self) -> None:
        """Take that it can be reached."""
        if self.backoff.failed:
            self.not_before = 0.0
        self.backoff.reset()

    def works(self) -> None:
        """Take that all is well."""
        if self.failed:
            self._log.info("%s works again, after %d attempts", self.what, self.failed)
        self.failed, self._said = 0, ""
