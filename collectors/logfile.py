# SPDX-License-Identifier: Apache-2.0
"""Follow a file that another process appends to: through rotation and truncation, bounded."""

from __future__ import annotations

import os
import stat

from stallscope.base.errors import StallscopeError

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
        self._fd = -1
        self._offset = 0
        self._rest = b""
        self._open()
        self._offset = os.fstat(self._fd).st_size

    def _open(self) -> None:
        try:
            # Opening a pipe would hang, and a terminal could become our controlling terminal.
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            raise StallscopeError(f"cannot read {self.path}: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise StallscopeError(f"{self.path} is not a regular file")
        self.close()
        self._fd, self._offset = fd, 0

    def lines(self) -> list[str]:
        """Return the whole lines since the last read. Raises: StallscopeError."""
        if self._fd < 0:
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
            size = os.fstat(self._fd).st_size
            if size < self._offset:  # truncated: it begins again
                self._offset, self._rest = 0, b""
            if size - self._offset > MAX_BEHIND:
                self.skipped += size - self._offset - MAX_READ
                self._offset, self._rest = size - MAX_READ, b""
            data = os.pread(self._fd, MAX_READ, self._offset)
        except OSError as error:
            raise StallscopeError(f"cannot read {self.path}: {error.strerror}") from error
        self._offset += len(data)
        return data

    def _was_replaced(self) -> bool:
        try:
            there = os.stat(self.path)
        except OSError:
            return False  # between the rename and the server's own opening
        mine = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
