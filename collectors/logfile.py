# SPDX-License-Identifier: Apache-2.0
"""Follow a file that another process appends to: through rotation and truncation, bounded."""

from __future__ import annotations

import os

from stallscope.base.errors import StallscopeError
from stallscope.collectors.paths import asking

__all__ = ["LogFollower"]

MAX_READ = 8 << 20
"""The most bytes of one read; the rest is left for the next."""
MAX_BEHIND = 64 << 20
"""The most bytes that may be left to read; of more, the middle is skipped and counted."""
MAX_LINE = 65_536


class LogFollower:
    """Reads what is appended from now on. ``path`` may lead through /proc/PID/root or
    /proc/PID/fd."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.skipped = 0
        """Bytes that were skipped: too many at once, or of a line that was too long."""
        self._file = asking.FollowedFile(path)
        self._known: tuple[int, int] | None = None
        """Device and inode of the file that ``_offset`` is of."""
        self._offset = 0
        self._rest = b""
        self._offset = self._open().st_size

    def _open(self) -> os.stat_result:
        try:
            found = self._file.open()
        except OSError as error:
            raise StallscopeError(f"cannot read {self.path}: {error.strerror}") from error
        if self._known != (found.st_dev, found.st_ino):
            self._known, self._offset = (found.st_dev, found.st_ino), 0
        return found

    def lines(self) -> list[str]:
        """Return the whole lines since the last read. Raises: StallscopeError."""
        if not self._file.is_open:
            self._open()
        data = self._read()
        if len(data) < MAX_READ and self._was_replaced():
            # Lines that the server wrote to the old file before it opened the new one.
            self._open()
            data += self._read()
        data = self._rest + data
        whole, newline, self._rest = data.rpartition(b"\n")
        if len(self._rest) > MAX_LINE:
            self.skipped += len(self._rest) - MAX_LINE
            self._rest = self._rest[:MAX_LINE]
        if not newline:
            return []
        text = whole.decode("utf-8", "backslashreplace")
        return [line[:MAX_LINE] for line in text.split("\n")]

    def _read(self) -> bytes:
        try:
            begin, data = self._file.more(self._offset, MAX_READ, MAX_BEHIND)
        except OSError as error:
            raise StallscopeError(f"cannot read {self.path}: {error.strerror}") from error
        if begin != self._offset:
            self.skipped += max(0, begin - self._offset)
            self._rest = b""
        self._offset = begin + len(data)
        return data

    def _was_replaced(self) -> bool:
        try:
            there = asking.status(self.path)
        except OSError:
            return False  # between the rename and the server's own opening
        return (there.st_dev, there.st_ino) != self._known

    def close(self) -> None:
        """Close the file."""
        self._file.close()
