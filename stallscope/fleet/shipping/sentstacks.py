# SPDX-License-Identifier: Apache-2.0
"""Which stacks an engine has: an agent sends each once a day, not with every revision of every
incident. Of small insertions it is their number that costs an engine, not their size.
"""

from __future__ import annotations

import msgspec

from stallscope.fleet.batch import Batch
from stallscope.fleet.tables import STACKS

__all__ = ["SentStacks"]

MOST = 20_000
"""Stacks that are remembered: 16 digits each."""


class _Key(msgspec.Struct, frozen=True):
    hash: str
    day: str


_key = msgspec.json.Decoder(_Key)


class SentStacks:
    """Of one destination. Retention goes by days, so each day sends them again."""

    def __init__(self) -> None:
        self._day = ""
        self._hashes: set[str] = set()

    def without(self, batch: Batch) -> Batch:
        """Return the batch without the stacks that the engine has, and without doubles."""
        lines = batch.lines.get(STACKS.name)
        if not lines:
            return batch
        fresh: dict[str, bytes] = {}
        for line in lines:
            key = self._decoded(line)
            if key is None:
                fresh[f"#{len(fresh)}"] = line  # the engine says what is wrong with it
            elif key.day != self._day or key.hash not in self._hashes:
                fresh[key.hash] = line
        kept = {name: of for name, of in batch.lines.items() if name != STACKS.name}
        if fresh:
            kept[STACKS.name] = tuple(fresh.values())
        return Batch(kept)

    def add(self, batch: Batch) -> None:
        """Note that the engine has all rows of a batch."""
        for line in batch.lines.get(STACKS.name, ()):
            key = self._decoded(line)
            if key is None or key.day < self._day:
                continue
            if key.day > self._day or len(self._hashes) >= MOST:
                self._day, self._hashes = key.day, set()
            self._hashes.add(key.hash)

    @staticmethod
    def _decoded(line: bytes) -> _Key | None:
        try:
            return _key.decode(line)
        except (msgspec.MsgspecError, RecursionError):
            return None
