# SPDX-License-Identifier: Apache-2.0
"""Names of functions that differ between versions of a server, to try dumps of other versions."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path

__all__ = ["pairs"]

FILES = ("renames.toml", "renames_other.toml")


@lru_cache(maxsize=1)
def pairs() -> dict[str, tuple[str, ...]]:
    """Return name → what other versions call it."""
    found: dict[str, tuple[str, ...]] = {}
    for name in FILES:
        data = tomllib.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
        for item in data["rename"]:
            others = item["others"] if "others" in item else [to["name"] for to in item["to"]]
            found[item.get("name", item.get("from"))] = tuple(others)
    return found
