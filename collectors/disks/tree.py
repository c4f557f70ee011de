# SPDX-License-Identifier: Apache-2.0
"""The kernel's files, below / or, in tests, below a folder that holds a recorded tree."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from stallscope.collectors.paths import asking

__all__ = ["Tree"]

_MAX_TEXT = 4096
_MAX_NAMES = 4096


class Tree(msgspec.Struct, frozen=True):
    """Reads what is small; what is larger is cut."""

    root: Path = Path("/")

    def path(self, path: str) -> str:
        """Return where a path of the host is."""
        return os.path.join(self.root, path.lstrip("/"))

    def text(self, path: str, limit: int = _MAX_TEXT) -> str | None:
        """Return a file's text, stripped; None where it cannot be read."""
        try:
            with open(self.path(path), "rb") as file:
                return file.read(limit).decode("utf-8", "backslashreplace").strip()
        except (OSError, ValueError):
            return None

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names in a folder; none where it cannot be read."""
        try:
            with os.scandir(self.path(path)) as entries:
                found = [entry.name for entry, _ in zip(entries, range(_MAX_NAMES), strict=False)]
        except (OSError, ValueError):
            return ()
        return tuple(sorted(found))

    def real(self, path: str) -> str | None:
        """Return the path of the host behind all links; None where it does not exist.

        Raises: SilentDiskError.
        """
        try:
            found = asking.real(self.path(path))
            root = asking.real(self.root)
        except asking.SilentDiskError:
            raise
        except OSError:
            return None
        return "/" + os.path.relpath(found, root) if root != "/" else found
