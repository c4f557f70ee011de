# SPDX-License-Identifier: Apache-2.0
"""Where servers keep their locks in memory, by version: layouts.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.base.tomlfile import Reader

__all__ = ["Row", "by_version", "layout", "numbers", "rows", "text"]

_FILE = Path(__file__).with_name("layouts.toml")
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})")

Version = Annotated[str, msgspec.Meta(pattern=r"^\d{1,3}\.\d{1,3}\.\d{1,3}$")]
Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"first": "from"}):
    """The layout of the versions from ``first`` until ``until``, both included."""

    server: Literal["mysql", "mariadb"]
    first: Version
    until: Version
    source: Annotated[str, msgspec.Meta(min_length=1)]
    """How it was established."""
    keys: dict[str, Number | tuple[Number, ...]]

    def fits(self, server: str, version: tuple[int, int, int]) -> bool:
        """Return whether the version is one of them."""
        return self.server == server and numbers(self.first) <= version <= numbers(self.until)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    layout: tuple[Row, ...]


@cache
def rows() -> tuple[Row, ...]:
    """Return the table; a later row replaces values of an earlier one that fits too."""
    return Reader("table of layouts", StallscopeError).read(_FILE, _File).layout


def numbers(version: str) -> tuple[int, int, int]:
    """Return the numbers of ``5.5.9-log``; what has none is 0.0.0, which no row fits."""
    match = _VERSION.match(version)
    if match is None:
        return 0, 0, 0
    return int(match[1]), int(match[2]), int(match[3])


def layout(server: str, version: str) -> dict[str, int]:
    """Return what is known of this version; empty where nothing is."""
    found: dict[str, int] = {}
    for row in rows():
        if row.fits(server, numbers(version)):
            found |= _flat(row)
    return found


def text(keys: Mapping[str, int]) -> str:
    """Return a layout as the probe takes it."""
    return " ".join(f"{key}={number}" for key, number in keys.items())


def _flat(row: Row) -> dict[str, int]:
    flat: dict[str, int] = {}
    for key, value in row.keys.items():
        if isinstance(value, tuple):
            flat |= {f"{key}.{index}": number for index, number in enumerate(value)}
        else:
            flat[key] = value
    return flat


def by_version() -> tuple[str, ...]:
    """Return each row as the probe takes it: it chooses those of the version that it finds."""
    return tuple(f"{row.server} {row.first} {row.until} {text(_flat(row))}" for row in rows())
