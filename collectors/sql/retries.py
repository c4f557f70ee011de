# SPDX-License-Identifier: Apache-2.0
"""When a login is tried again: rarely where it was refused, and by one connection at a time.

All connections of one login share it, so that two of them do not try a refused account twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from stallscope.collectors.sql.failures import AbortedLoginError, ConnectError, RefusedError

__all__ = ["LoginRetries"]

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
FULL_PAUSE = 1.0
"""A server without a free connection counts no failed login, and the end of that must be seen."""
REFUSED_PAUSE = 60.0
"""Failed logins can lock accounts: they are retried rarely."""
LONGEST_REFUSED_PAUSE = 600.0
LONGEST_ABORTED_PAUSE = 6 * 3600.0
"""After 100 logins that a client gave up (max_connect_errors) the server refuses all clients of
its host: with these pauses that takes more than three weeks."""


class LoginRetries:
    """The pauses between logins. To be used from any thread."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._failure: ConnectError | None = None
        self._pause = 0.0
        self._retry_at = 0.0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Log in within: after the others, and not where one of them has just failed.

        Raises: ConnectError; that of the login within is remembered.
        """
        with self._turn:
            self.check()
            try:
                yield
            except ConnectError as error:
                self._later(error)
                raise

    def check(self) -> None:
        """Raise the error of the last login where its pause lasts."""
        left = self._retry_at - time.monotonic()
        if self._failure is not None and left > 0:
            again = type(self._failure)(
                f"{self._failure}; tried again in {left:.0f} s",
                number=self._failure.number,
                full=self._failure.full,
            )
            again.is_old = True
            raise again

    def lost(self, error: ConnectError, lasted: float) -> None:
        """Note that a connection ended after so many seconds: log in again at once, unless they end
        soon again and again."""
        if lasted > LONGEST_PAUSE:
            self._failure, self._pause = None, 0.0
        else:
            self._later(error)

    def _later(self, error: ConnectError) -> None:
        """Set the time of the next try; the pause grows with each failure."""
        first, longest = FIRST_PAUSE, LONGEST_PAUSE
        if isinstance(error, RefusedError):
            first, longest = REFUSED_PAUSE, LONGEST_REFUSED_PAUSE
        if isinstance(error, AbortedLoginError):
            longest = LONGEST_ABORTED_PAUSE
        if error.full:
            longest = FULL_PAUSE
        self._pause = min(max(first, self._pause * 2), longest)
        self._failure = error
        self._retry_at = time.monotonic() + self._pause
