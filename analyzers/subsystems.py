# SPDX-License-Identifier: Apache-2.0
"""Which subsystem a function belongs to; the data is subsystems.toml.

A stack counts for the subsystem of the first frame after those that carry its wait: one that waits
for a mutex in ``lock_rec_lock`` is in ``lock``, not in ``sync``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from stallscope.analyzers.names import bare

__all__ = ["COLOURS", "OTHER", "Subsystem", "Subsystems", "load"]

DATA = Path(__file__).resolve().parent / "subsystems.toml"
OTHER = "other"
COLOURS = frozenset({"blue", "green", "grey", "orange", "purple", "red", "yellow"})
CARRIERS = frozenset({"pthread", "libc", "file-io", "memory-io", "sync", "os", "mysys", "kernel"})
"""They work for others: the frame that called them says more."""


class Subsystem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part of a program. ``names``: whole names, or beginnings that end with ``*``."""

    name: str
    title: str
    colour: str
    names: tuple[str, ...]


class Subsystems:
    """All subsystems; the longest name that fits a function wins."""

    def __init__(self, items: Sequence[Subsystem]) -> None:
        self.items = tuple(items)
        self.by_name = {item.name: item for item in items}
        self._whole: dict[str, str] = {}
        self._beginnings: dict[str, str] = {}
        for item in items:
            for name in item.names:
                kept = self._beginnings if name.endswith("*") else self._whole
                key = name.removesuffix("*")
                if "*" in key:
                    raise ValueError(f"{item.name}: {name}: '*' stands at the end or nowhere")
                if kept.setdefault(key, item.name) != item.name:
                    raise ValueError(f"{name} is in {kept[key]} and in {item.name}")
        self._lengths = sorted({len(name) for name in self._beginnings}, reverse=True)
        self._known: dict[str, str] = {}

    def of(self, function: str | None) -> str:
        """Return the name of the subsystem of a normalized function name, or ``other``."""
        if function is None:
            return OTHER
        known = self._known.get(function)
        if known is None:
            if len(self._known) > 100_000:
                self._known.clear()
            known = self._known[function] = self._find(bare(function))
        return known

    def _find(self, name: str) -> str:
        whole = self._whole.get(name)
        if whole is not None:
            return whole
        for length in self._lengths:
            found = self._beginnings.get(name[:length]) if len(name) >= length else None
            if found is not None:
                return found
        return OTHER

    def colour(self, function: str | None) -> str:
        """Return the colour key of a function's frame; grey where nothing is known."""
        item = self.by_name.get(self.of(function))
        return item.colour if item is not None else "grey"

    def of_stack(self, names: Sequence[str | None], depth: int) -> str:
        """Return the subsystem that a stack runs or waits in; ``depth`` as of its shape."""
        last = OTHER
        for name in names[depth:]:
            found = self.of(name)
            if found not in CARRIERS and found != OTHER:
                return found
            last = found if last == OTHER else last
        if last == OTHER and names[:depth]:
            return next((s for n in names if (s := self.of(n)) != OTHER), OTHER)
        return last


@lru_cache(maxsize=1)
def load() -> Subsystems:
    """Read the package's data."""
    data = tomllib.loads(DATA.read_text(encoding="utf-8"))
    return Subsystems(msgspec.convert(data["subsystem"], list[Subsystem]))
