# SPDX-License-Identifier: Apache-2.0
"""How many captures may be taken, and whether there is room for another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from stallscope.agent.clock import NS
from stallscope.agent.writer import Writer
from stallscope.base.errors import StallscopeError
from stallscope.collectors.triggers.settings import AgentSettings
from stallscope.store import DiskGuard, Store

__all__ = ["CaptureLimits"]

HOUR_NS = 3600 * NS
ROOM_NS = 10 * NS
"""From one check of the disk's free space to the next."""


class CaptureLimits:
    """Captures an hour, and the free space of the store's disk."""

    def __init__(self, settings: Callable[[], AgentSettings], store: Store, writer: Writer) -> None:
        self._settings = settings
        self._store = store
        self._writer = writer
        self._taken: deque[int] = deque()
        self._room: str | None = None
        self._due = 0

    def took(self, now: int) -> None:
        """Count a capture."""
        self._taken.append(now)

    def gave_back(self) -> None:
        """Count the latest one no more: it failed."""
        if self._taken:
            self._taken.pop()

    def refusal(self, now: int) -> str | None:
        """Say why no capture may be taken now."""
        while self._taken and now - self._taken[0] > HOUR_NS:
            self._taken.popleft()
        most = self._settings().captures_an_hour
        if len(self._taken) >= most:
            return f"{most} captures were taken in the last hour (captures-an-hour)"
        return self._room

    def check_disk(self, now: int) -> None:
        """Have the writer check the disk, now and then: that, too, can hang."""
        if now < self._due:
            return
        self._due = now + ROOM_NS
        settings = self._settings()
        guard = DiskGuard(settings.disk_bytes_free, settings.disk_pct_free)

        def room() -> str | None:
            try:
                return self._store.no_room(guard)
            except StallscopeError as error:
                return str(error)

        def seen(why: str | None) -> None:
            self._room = why

        self._writer.submit(room, seen, needed=False)
