# SPDX-License-Identifier: Apache-2.0
"""Whether a server has become read-only: what it was before is known to who has watched it."""

from __future__ import annotations

__all__ = ["Writable"]


class Writable:
    """Remembers whether a server was seen writable."""

    def __init__(self) -> None:
        self._was = False

    def since(self, refuses: bool) -> dict[str, float]:
        """Return ``settings.became_read_only``: 1 where it was writable and refuses writes now, 0
        where it can be written; nothing where it was read-only from the start."""
        self._was |= not refuses
        return {"settings.became_read_only": float(refuses)} if self._was else {}
