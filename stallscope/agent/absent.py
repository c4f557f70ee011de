# SPDX-License-Identifier: Apache-2.0
"""A server that was watched before, and does not run when its agent is started: that is notified of
too, though there is nothing to watch.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from stallscope.agent.ownevents import event
from stallscope.base.errors import StallscopeError
from stallscope.model.incident import SERVER_ENDED, Fired, TargetEntry
from stallscope.notify.alerts import Alerts
from stallscope.store.locking import Held
from stallscope.store.serverstate import AGENT_LOCK, ServerState

__all__ = ["Absent"]

_log = logging.getLogger(__name__)

GRACE_SECONDS = 15.0
"""For so long it may still be starting, as on a host that has just been started itself."""
_LOAD_SECONDS = 1.0


class Absent:
    """Of one server; used by one thread."""

    def __init__(
        self,
        known: Callable[[], tuple[ServerState, TargetEntry] | None],
        alerts: Callable[[ServerState], Alerts],
    ) -> None:
        """``known``: the server that was watched last, None where none was."""
        self._known = known
        self._make = alerts
        self._since: float | None = None
        self._tried = False
        self._alerts: Alerts | None = None
        self._held: Held | None = None

    def note(self, grace: float = GRACE_SECONDS) -> None:
        """Take that it does not run; notify of that once, after so many seconds."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if self._tried or now - self._since < grace:
            return
        self._tried = True
        with contextlib.suppress(StallscopeError):  # another agent watches it, or no disk is there
            self._notify()

    def close(self, seconds: float) -> None:
        """End it, after so many seconds at the latest: the server runs, or nobody waits for it."""
        if self._alerts is not None:
            self._alerts.delivery.close(seconds)
        if self._held is not None:
            self._held.release()
        self._alerts, self._held, self._since, self._tried = None, None, None, False

    def _notify(self) -> None:
        found = self._known()
        if found is None:
            return
        state, target = found
        self._held = state.lock(AGENT_LOCK)
        self._alerts = self._make(state)
        self._alerts.delivery.start()
        self._alerts.delivery.loaded.wait(_LOAD_SECONDS)
        now = time.time_ns()
        fired = Fired(SERVER_ENDED, f"it does not run; watched last was pid {target.pid}", now)
        if self._alerts.event(event(fired, target), "critical"):
            _log.warning("%s: %s", SERVER_ENDED, fired.why)
