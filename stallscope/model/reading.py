# SPDX-License-Identifier: Apache-2.0
"""What became of the lines of an imported file."""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = ["LINES_LOST", "Reading"]

LINES_LOST = "lines-lost"
"""Code of the note that lines of a dump could not be read."""

Lines = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Reading(msgspec.Struct, frozen=True):
    """The lines of a file, each counted once: heads, frames, prose and unreadable ones."""

    lines: Lines = 0
    frames: Lines = 0
    """Of stacks and waits: frames, and lines about them."""
    heads: Lines = 0
    """Where a thread begins."""
    prose: Lines = 0
    """Text around the dumps."""
    unreadable: Lines = 0
    """Lines that look like a frame or the head of a thread, and that no format reads."""
    repaired: tuple[str, ...] = ()
    """Damages of the text that were undone."""
    first: str | None = None
    """The first unreadable line, shortened."""

    @property
    def lost_share(self) -> float:
        """Return which part of the lines of dumps is unreadable, from 0 to 1."""
        whole = self.frames + self.heads + self.unreadable
        return self.unreadable / whole if whole else 0.0
