# SPDX-License-Identifier: Apache-2.0
"""The outbox on disk: notifications that some destination has not got yet (SQLite).

It is a copy for the next start of the agent, never the way of a notification: where the disk is
full, read-only or hangs, notifications are sent all the same. One agent uses it at a time.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from stallscope.base.encoding import from_json, to_json
from stallscope.base.text import without_surrogates
from stallscope.notify.alert import Alert
from stallscope.notify.settings import Severity

__all__ = ["MAX_BYTES", "MAX_DONE", "MAX_ENTRIES", "Entry", "Outbox", "Progress", "fitting"]

MAX_ENTRIES = 5000
"""The most alerts that are kept; an agent with a destination that is down makes one a stall."""
MAX_BYTES = 64 << 20
"""Of their JSON, all together."""
MAX_VALUE = 1 << 20
MAX_DONE = 1000
"""How many incidents are remembered as notified."""
_LOCK_SECONDS = 2.0


class Progress(msgspec.Struct):
    """How far one destination has come with one alert."""

    opened: bool = False
    """It got the stall."""
    closed: bool = False
    """It got the end, or wants none."""
    revision: int = 0
    """Of what it got."""
    severity: Severity | None = None
    """With which it got the alert last. It only rises."""
    first: Severity | None = None
    """With which it got the stall. For Alertmanager it is a part of the name."""


class Entry(msgspec.Struct):
    """An alert that is not over, or that some destination has not got yet."""

    alert: Alert
    incidents: tuple[str, ...]
    """Ids of all incidents that belong to it."""
    revision: int = 1
    progress: dict[str, Progress] = {}
    """By the destination's name."""


def fitting(alert: Alert) -> tuple[Alert, int]:
    """Return an alert that the outbox takes, and its bytes: one that is too large without what is
    least needed of its incident.
    """
    size = len(to_json(alert, lossless=True))
    for less in ({"captures": (), "notes": ()}, {"verdict": None}, {"triggers": ()}):
        if size <= MAX_VALUE // 2:  # the rest is for the destinations' progress
            break
        incident = msgspec.structs.replace(alert.incident, **less)
        alert = msgspec.structs.replace(alert, incident=incident)
        size = len(to_json(alert, lossless=True))
    return alert, size


class Outbox:
    """A file of SQLite. All methods are slow and can raise OSError; one thread calls them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None

    def load(self) -> tuple[list[Entry], list[str]]:
        """Return the entries in order, and the ids of incidents that need no notification."""
        with self._errors() as database:
            rows = database.execute(
                "SELECT value FROM alerts ORDER BY number LIMIT ?", (MAX_ENTRIES,)
            ).fetchall()
            done = [str(row[0]) for row in database.execute("SELECT incident FROM done")]
        entries = []
        for (value,) in rows:
            # A file of another version, or a damaged one: what can be read is used.
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(value, bytes) and len(value) <= MAX_VALUE:
                    entries.append(from_json(value, Entry))
        return entries, done

    def save(self, changed: Iterable[Entry], ended: Iterable[Entry]) -> None:
        """Write entries, and remove those that are done, in one transaction."""
        with self._errors() as database, database:
            for entry in changed:
                value = to_json(entry, lossless=True)
                database.execute(
                    "INSERT INTO alerts (key, value) VALUES (?, ?)"
                    " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                    (without_surrogates(entry.alert.key), value),
                )
            for entry in ended:
                key = without_surrogates(entry.alert.key)
                database.execute("DELETE FROM alerts WHERE key = ?", (key,))
                database.executemany(
                    "INSERT OR IGNORE INTO done (incident) VALUES (?)",
                    [(without_surrogates(incident),) for incident in entry.incidents],
                )
            database.execute(
                "DELETE FROM done WHERE number <= (SELECT max(number) FROM done) - ?", (MAX_DONE,)
            )

    def close(self) -> None:
        """Close the file."""
        if self._database is not None:
            self._database.close()
            self._database = None

    @contextlib.contextmanager
    def _errors(self) -> Iterator[sqlite3.Connection]:
        """Yield the database; make an OSError of each of its errors."""
        try:
            if self._database is None:
                self._database = self._open()
            yield self._database
        except sqlite3.DatabaseError as error:
            self.close()
            if _is_damaged(error):
                with contextlib.suppress(OSError):
                    os.replace(self._path, f"{self._path}.damaged")
            raise OSError(f"{self._path}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        # SQLite would create it with the umask's mode; it holds statements.
        self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        os.close(os.open(self._path, flags, 0o600))
        database = sqlite3.connect(self._path, timeout=_LOCK_SECONDS, check_same_thread=False)
        try:
            with database:
                database.execute("PRAGMA synchronous = FULL")
                database.execute(
                    "CREATE TABLE IF NOT EXISTS alerts"
                    " (number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE, value BLOB)"
                )
                database.execute(
                    "CREATE TABLE IF NOT EXISTS done"
                    " (number INTEGER PRIMARY KEY AUTOINCREMENT, incident TEXT UNIQUE)"
                )
        except BaseException:
            database.close()
            raise
        return database


def _is_damaged(error: sqlite3.DatabaseError) -> bool:
    return getattr(error, "sqlite_errorcode", None) in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    )
