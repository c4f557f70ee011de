# SPDX-License-Identifier: Apache-2.0
"""What the agent does for its store beside incidents: free space, old incidents, and those that
killed agents left open. The writer's thread does it, since each of these can hang with the disk.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence

from stallscope.agent.clock import NS
from stallscope.agent.writer import Writer
from stallscope.base.errors import StallscopeError
from stallscope.collectors.triggers.settings import AgentSettings
from stallscope.store import DiskGuard, Retention, Store
from stallscope.store.locking import Locked

__all__ = ["Upkeep"]

_log = logging.getLogger(__name__)

DISK_NS = 10 * NS
"""From one check of the disk's free space to the next."""
PRUNE_NS = 3600 * NS


class Upkeep:
    """``checked`` takes why the disk has too little space, None where it has enough; ``recovered``
    the ids of incidents that were left open. Both are called in the loop's thread.
    """

    def __init__(
        self,
        store: Store,
        writer: Writer,
        checked: Callable[[str | None], None],
        recovered: Callable[[Sequence[str]], None],
    ) -> None:
        self.knows_disk = False
        """The free space was checked once, and what killed agents left was read."""
        self._store = store
        self._writer = writer
        self._checked = checked
        self._recovered = recovered
        self._is_full = False
        self._prune_due = 0
        self._disk_due = 0

    def begin(self, settings: AgentSettings, now: int) -> None:
        """Look at the disk, before the writer gets other work, which can take long."""
        self.check_disk(settings, now)
        self._writer.submit(self._store.recover, self._has_recovered)

    def check_disk(self, settings: AgentSettings, now: int) -> None:
        """Check the free space, at intervals."""
        if now < self._disk_due:
            return
        self._disk_due = now + DISK_NS
        guard = DiskGuard(settings.disk_bytes_free, settings.disk_pct_free)

        def room() -> str | None:
            try:
                return self._store.too_little_space(guard)
            except StallscopeError as error:
                return str(error)

        self._writer.submit(room, self._has_checked, needed=False)

    def prune(self, settings: AgentSettings, now: int) -> None:
        """Remove what the limits leave no room for, at intervals."""
        if now < self._prune_due:
            return
        self._prune_due = now + PRUNE_NS
        keep = Retention(
            settings.retention_time or None,
            settings.retention_count or None,
            settings.retention_size or None,
        )

        def remove() -> None:
            with contextlib.suppress(Locked):  # another agent prunes
                self._store.prune(keep)

        self._writer.submit(remove, needed=False)

    def prune_soon(self) -> None:
        """Have the next call of ``prune`` remove what it can."""
        self._prune_due = 0

    def _has_checked(self, why: str | None) -> None:
        if why is not None and not self._is_full:
            self.prune_soon()
        self._is_full = why is not None
        self._checked(why)

    def _has_recovered(self, names: Sequence[str]) -> None:
        self.knows_disk = True
        for name in names:
            _log.warning("incident %s was left open by an agent that ended: interrupted", name)
        self._recovered(names)
