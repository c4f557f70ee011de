# SPDX-License-Identifier: Apache-2.0
"""The frames of a stack that show what its thread did, without those that only wait or wake."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stallscope.analyzers import waits
from stallscope.analyzers.catalog import Catalog
from stallscope.analyzers.names import normalize
from stallscope.analyzers.stacks import MAX_FRAMES

__all__ = ["Excerpts"]

_NAMELESS = re.compile(r"(?:.*\+)?0x[0-9a-f]+", re.DOTALL)
"""``module+0xoffset`` or a bare address: no symbol covers it."""


class Excerpts:
    """Cut stacks of texts; frames are ordered from the innermost outwards."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def of_waiter(self, frames: Sequence[str]) -> tuple[str, ...]:
        """Return the frames after those that only carry out the wait."""
        return self._outside(frames, self._catalog.helpers)

    def of_waker(self, frames: Sequence[str]) -> tuple[str, ...]:
        """Return the frames after those that only release the lock."""
        return self._outside(frames, self._catalog.helpers | self._catalog.wakes)

    def _outside(self, frames: Sequence[str], helpers: int) -> tuple[str, ...]:
        texts, names = [], []
        for frame in frames[:MAX_FRAMES]:
            name = None if _NAMELESS.fullmatch(frame) else normalize(frame)
            names.append(name)
            texts.append(name or frame)
        helping = [bool(self._catalog.vocabulary.mask(name) & helpers) for name in names]
        depth = waits.skip_unnamed(names, helping)
        while depth < len(helping) and helping[depth]:
            depth += 1
        # A stack of helpers only is shown unchanged.
        return tuple(texts[depth:] or texts)
