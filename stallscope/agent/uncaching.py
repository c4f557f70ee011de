# SPDX-License-Identifier: Apache-2.0
"""Drops old logs of a server from the page cache every so many minutes, where the configuration
asks for it (``[storage]``). The probe does it, as ``stallscope storage cache --uncache --yes``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from stallscope.collectors import storagecache
from stallscope.collectors.collector import sample
from stallscope.collectors.processes import Server
from stallscope.collectors.triggers.settings import StorageSettings
from stallscope.model.samples import Sample
from stallscope.model.storagecache import CacheLine, LogFiles, parse_keep
from stallscope.reporters import units

if TYPE_CHECKING:
    from stallscope.collectors.sql.login import Login

__all__ = ["FILES", "FREED", "Uncaching"]

_log = logging.getLogger(__name__)

FREED = "uncache.freed_bytes"
FILES = "uncache.files"
SQL_SECONDS = 5.0


class Uncaching:
    """A collector whose samples say what was freed. It has its own thread: a disk that does not
    answer keeps it waiting, and nothing else.
    """

    name = thread = "uncache"
    deadline = storagecache.SECONDS + 30.0

    def __init__(
        self,
        server: Server,
        settings: StorageSettings,
        login: Callable[[], Login] | None,
        read: Callable[[storagecache.Request], CacheLine] = storagecache.read,
    ) -> None:
        """``login``: None: without SQL the descriptors alone say what the server uses. ``read``:
        asks the probe."""
        self.interval = self.rest_interval = settings.every_minutes * 60
        self._server = server
        self._settings = settings
        self._login = login
        self._read = read
        self._begun = False

    def collect(self) -> Sample:
        """Drop what may go. Raises: StallscopeError; then nothing was dropped, or not all."""
        return sample(self.name, self._drop)

    def _drop(self, clock_ns: int) -> dict[str, float]:
        # The agent asks each collector at its start: the first time comes one interval later.
        if not self._begun:
            self._begun = True
            return {}
        settings = self._settings
        line = self._read(
            storagecache.Request(
                pids=self._server.pids,
                files=self._log_files(),
                datadir=self._server.datadir,
                uncache=tuple(settings.uncache),
                allow_redo=settings.allow_redo,
                keep=parse_keep(settings.keep) if settings.keep else None,
                drop=True,
            )
        )
        freed = [
            one.uncache.freed_bytes
            for one in line.files
            if one.uncache is not None and one.uncache.freed_bytes
        ]
        if freed:
            _log.info(
                "dropped %s of %d files (%s) from the page cache",
                units.size(sum(freed)),
                len(freed),
                ", ".join(settings.uncache),
            )
        return {FREED: float(sum(freed)), FILES: float(len(freed))}

    def _log_files(self) -> LogFiles:
        """Ask the server. Raises: StallscopeError: who reads its binary logs is not known then."""
        if self._login is None:
            return LogFiles()
        from stallscope.collectors.sql.connection import Connection
        from stallscope.collectors.sql.logfiles import read_log_files

        connection = Connection(self._login())
        try:
            found: LogFiles = connection.ask(read_log_files, SQL_SECONDS)
            return found
        finally:
            connection.close()

    def close(self) -> None:
        """Nothing is kept open."""
