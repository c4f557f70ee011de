# SPDX-License-Identifier: Apache-2.0
"""Files that grow during an incident; a damaged end is cut when they are read. When
``Appended.append`` has returned, its data is on disk. Compressed files are zstd frames one after
the other, each with its checksum, so that an incomplete end is found.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.store.files import one_line_of

if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

__all__ = ["Appended", "frames", "pack", "whole_lines"]

_WINDOW_LOG_MAX = 27
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class Appended:
    """One growing file, of one writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._size = 0
        self._named = False

    def append(self, data: bytes) -> None:
        """Write all of the data and sync it; a failed write leaves nothing behind.

        Raises: StallscopeError.
        """
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self.path, _CREATE, 0o600)
            self._write(data)
            if not self._named:
                atomicfile.sync_folder(self.path.parent)
                self._named = True
        except OSError as error:
            raise StallscopeError(f"cannot write {self.path}: {one_line_of(error)}") from error

    def _write(self, data: bytes) -> None:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
            os.fdatasync(self._descriptor)
        except OSError:
            # A frame after a damaged one would never be read.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        """Close it; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def pack(plain: bytes) -> bytes:
    """Return one zstd frame with a checksum."""
    return zstd.compress(plain, options={zstd.CompressionParameter.checksum_flag: 1})


def frames(data: bytes, limit: int) -> tuple[bytes, str | None]:
    """Return the content of the intact frames, ``limit`` bytes at most, and why it is
    incomplete."""
    parts: list[bytes] = []
    size = at = 0
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}
    view = memoryview(data)
    while at < len(data):
        torn = f"the last {len(data) - at} bytes are damaged and skipped"
        try:
            length = zstd.get_frame_size(view[at:])
            decompressor = zstd.ZstdDecompressor(options=options)
            plain = decompressor.decompress(view[at : at + length], max_length=limit - size + 1)
        except zstd.ZstdError:
            return b"".join(parts), torn
        size += len(plain)
        if size > limit:
            return b"".join(parts), f"unpacks to more than {limit} bytes; the rest is skipped"
        if length <= 0 or not decompressor.eof:
            return b"".join(parts), torn
        parts.append(plain)
        at += length
    return b"".join(parts), None


def whole_lines(data: bytes) -> tuple[bytes, str | None]:
    """Return a plain file of lines without the one that its writer was killed in."""
    end = data.rfind(b"\n") + 1
    torn = len(data) - end
    return data[:end], f"the last {torn} bytes are damaged and skipped" if torn else None
