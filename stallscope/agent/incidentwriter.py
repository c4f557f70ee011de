# SPDX-License-Identifier: Apache-2.0
"""The folder of an incident, written by the writer's thread."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stallscope.agent.writer import Writer
from stallscope.base.errors import StallscopeError
from stallscope.model.incident import CaptureEntry, Incident
from stallscope.model.sessions import Sessions, raw_statements
from stallscope.store import IncidentFolder, Store

if TYPE_CHECKING:
    from stallscope.collectors.sql.sessiontexts import Texts

__all__ = ["IncidentWriter", "NotStoredError", "drop"]

FLUSH_BYTES = 256 << 10


class IncidentWriter:
    """One incident on its way to the store. ``lost`` is called where it gets no folder.

    The loop's thread uses it, except ``_folder``, which belongs to the writer's thread.
    """

    def __init__(
        self,
        incident: Incident,
        store: Store,
        writer: Writer,
        lost: Callable[[str], None],
        *,
        records: bool,
    ) -> None:
        self._incident = incident
        self._store = store
        self._writer = writer
        self._records = records
        self._samples: list[bytes] = []
        self._waits: list[bytes] = []
        self._folder: IncidentFolder | None = None
        writer.submit(self._begin, otherwise=lost)

    @property
    def path(self) -> Path:
        """Return its folder; final once something was written."""
        folder = self._folder
        return self._store.incidents / self._incident.id if folder is None else folder.path

    def store_capture(
        self,
        path: Path,
        entry: CaptureEntry,
        stored: Callable[[CaptureEntry], None],
        failed: Callable[[str], None],
    ) -> None:
        """Add a finished capture."""

        def lost(why: str) -> None:
            drop(path)
            failed(why)

        self._writer.submit(lambda: self._open_folder().add_capture(path, entry), stored, lost)

    def store_statements(self, time_ns: int, sessions: Sessions) -> None:
        """Keep statements with their literals."""
        lines = [
            msgspec.json.encode({"time_ns": time_ns, "connection": number, "sql": text})
            for number, text in raw_statements(sessions).items()
        ]
        self._writer.submit(lambda: self._open_folder().append_raw_sql(lines), needed=False)

    def store_texts(self, texts: Texts) -> None:
        """Keep the texts of the server."""

        def keep() -> None:
            folder = self._open_folder()
            for name, text in texts.found.items():
                folder.add_text(name, text)

        self._writer.submit(keep, needed=False)

    def add_samples(self, lines: Iterable[bytes]) -> None:
        """Add encoded samples."""
        self._add(self._samples, lines)

    def add_waits(self, lines: Iterable[bytes]) -> None:
        """Add lines of the wait programs."""
        self._add(self._waits, lines)

    def flush(self) -> None:
        """Hand the samples and lines to the writer."""
        samples, self._samples = self._samples, []
        waits, self._waits = self._waits, []
        if samples:
            self._writer.submit(
                lambda: self._open_folder().append_sample_lines(samples), needed=False
            )
        if waits:
            self._writer.submit(lambda: self._open_folder().append_waits(waits), needed=False)

    def save(self, value: Incident) -> None:
        """Write incident.json."""

        def update() -> None:
            folder = self._open_folder()
            folder.update(msgspec.structs.replace(value, id=folder.incident.id))

        self._writer.submit(update)

    def close(self, value: Incident) -> None:
        """Write it for the last time."""

        def finish() -> None:
            folder = self._open_folder()
            folder.finish(msgspec.structs.replace(value, id=folder.incident.id))

        self.flush()
        self._writer.submit(finish)

    def _begin(self) -> None:
        self._folder = self._store.begin(self._incident)

    def _open_folder(self) -> IncidentFolder:
        if self._folder is None:
            raise NotStoredError(f"{self._incident.id} is not stored")
        return self._folder

    def _add(self, kept: list[bytes], lines: Iterable[bytes]) -> None:
        if not self._records:
            return
        kept += lines
        if sum(map(len, kept)) > FLUSH_BYTES:
            self.flush()


class NotStoredError(StallscopeError):
    """Do nothing: the incident has no folder; the reason was logged when it could not be made."""


def drop(path: Path | str) -> None:
    """Remove a capture that belongs to no incident."""
    with contextlib.suppress(OSError):
        os.unlink(path)
