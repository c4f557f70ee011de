# SPDX-License-Identifier: Apache-2.0
"""Wait for a server that does not run yet: that is no error, and is logged once, then rarely."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from stallscope.agent.candidates import (
    NEWS_SHARE,
    SEARCH_SECONDS,
    SHARE,
    STARTING_SECONDS,
    STARTING_SHARE,
    Candidates,
)
from stallscope.agent.target import FIRST_PAUSE_NS, LONGEST_PAUSE_NS
from stallscope.base.errors import StallscopeError, UsageError
from stallscope.base.threads import Pulse
from stallscope.collectors.processes import Server

__all__ = ["wait_for"]

_log = logging.getLogger(__name__)

AGAIN_SECONDS = 3600.0
"""From one line that it is still waited for to the next."""
OTHER_SECONDS = 30.0
"""The least time from one line to the next where the reason changes all the time."""
_NS = 1e9


def wait_for(
    find: Callable[[], Server],
    candidates: Candidates,
    stop: threading.Event,
    pulse: Pulse,
    waits: Callable[[str], None] = lambda why: None,
    passing: type[StallscopeError] = StallscopeError,
) -> Server | None:
    """Return the server when it runs; None: ``stop`` was set before.

    ``find`` raises StallscopeError while there is none, or more than one. ``waits`` is called with
    the reason, after each search. ``passing``: errors that are waited for; all others, and a
    UsageError, are raised.
    """
    notice = _Notice(candidates.name or "a database server")
    pause, longest = FIRST_PAUSE_NS / _NS, LONGEST_PAUSE_NS / _NS
    search_at = not_before = 0.0
    starting_until = time.monotonic() + STARTING_SECONDS  # both may start with the host
    while not stop.is_set():
        pulse.beat()
        now = time.monotonic()
        if candidates.changed(now):
            search_at, starting_until = min(search_at, not_before), now + STARTING_SECONDS
        if now >= search_at:
            try:
                server = find()
            except UsageError:
                raise
            except passing as error:
                notice.waits(error)
                waits(str(error))
            else:
                notice.found(server)
                return server
            lasted = time.monotonic() - now
            not_before = now + NEWS_SHARE * lasted
            if now < starting_until:
                search_at = now + max(pause, STARTING_SHARE * lasted)
            else:
                search_at = now + max(SEARCH_SECONDS, SHARE * lasted)
        stop.wait(pause)
        pause = min(pause * 1.5, longest)
    return None


class _Notice:
    """The log of one wait."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = self._at = time.monotonic()
        self._text: str | None = None
        self._kind: type[StallscopeError] | None = None

    def waits(self, error: StallscopeError) -> None:
        """Log the reason where it is new, and once an hour."""
        why, now = str(error), time.monotonic()
        changed = why != self._text and now - self._at > OTHER_SECONDS
        if type(error) is not self._kind or changed:
            _log.warning("waiting for %s: %s", self._name, why)
        elif now - self._at > AGAIN_SECONDS:
            minutes = (now - self._begun) / 60
            _log.warning("waiting for %s since %.0f minutes: %s", self._name, minutes, why)
        else:
            return
        self._text, self._kind, self._at = why, type(error), now

    def found(self, server: Server) -> None:
        """Log the end of the wait."""
        if self._text is not None:
            _log.info("found %s (pid %d)", server.name, server.main.pid)
