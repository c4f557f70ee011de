# SPDX-License-Identifier: Apache-2.0
"""Which incidents were put into the spool with their end: after a kill, the others are made into
rows again from the store. The file grows by one line for each; its first line says since when.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.store import files, layout

__all__ = ["Record"]

_log = logging.getLogger(__name__)

MAX_BYTES = 512 << 10
KEPT = 5_000
"""Lines that remain when it has become too large."""
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_SINCE = "since "


class Record:
    """The file. One thread uses it; nothing raises."""

    def __init__(self, path: Path, now_ms: int) -> None:
        """``now_ms``: when the record begins, where there is none yet."""
        self._path = path
        self._ids: dict[str, None] = {}
        self.since_ms = now_ms
        """Incidents that began earlier are not of this record."""
        self._size = 0
        self._said = ""
        self._read()

    def __contains__(self, incident: str) -> bool:
        return incident in self._ids

    def add(self, incident: str) -> None:
        """Note that the end of an incident is in the spool."""
        if incident in self._ids or not layout.is_id(incident):
            return
        self._ids[incident] = None
        line = f"{incident}\n".encode()
        try:
            descriptor = os.open(self._path, _APPEND)
            try:
                os.write(descriptor, line)
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._say(f"cannot write {self._path}: {files.one_line_of(error)}")
            return
        self._said = ""
        self._size += len(line)
        if self._size > MAX_BYTES:
            self._write(list(self._ids)[-KEPT:])

    def _read(self) -> None:
        lines: list[str] = []
        with contextlib.suppress(OSError, StallscopeError):
            with files.folder(self._path.parent) as inside:
                data = files.read(self._path.name, inside, MAX_BYTES * 2)
            lines = data.decode("ascii", "replace").split("\n")[:-1]  # the last one may be torn
        if lines and lines[0].startswith(_SINCE) and lines[0][len(_SINCE) :].isdigit():
            self.since_ms = int(lines[0][len(_SINCE) :][:16])
        self._write([line for line in lines if layout.is_id(line)])

    def _write(self, ids: list[str]) -> None:
        self._ids = dict.fromkeys(ids)
        data = "".join(f"{line}\n" for line in (f"{_SINCE}{self.since_ms}", *ids)).encode()
        try:
            files.make_folder(self._path.parent)
            atomicfile.write(self._path, [data], force=True)
            self._size = len(data)
        except (OSError, StallscopeError) as error:
            self._say(str(error))

    def _say(self, why: str) -> None:
        if why != self._said:
            _log.error("%s; incidents may be shipped again, which changes nothing", why)
        self._said = why
