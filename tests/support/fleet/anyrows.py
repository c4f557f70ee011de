# SPDX-License-Identifier: Apache-2.0
"""Rows of all tables with anything in each field, for Hypothesis; and what an engine shows of
them."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable
from typing import Any

import msgspec
from hypothesis import strategies as st

from stallscope.fleet import tables
from stallscope.fleet.tables import Row

__all__ = ["DAY", "any_row", "best", "plain", "row"]

DAY = "2026-11-29"
_VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=40) | st.sampled_from(["'; DROP VIEW incidents; --", "\0", "\\N", "*"]),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
}
_NONE = {str: "", int: 0, float: 0.0, bool: False}


def _anything(hint: Any) -> st.SearchStrategy[Any]:
    if isinstance(hint, types.UnionType):
        of = next(one for one in typing.get_args(hint) if one is not types.NoneType)
        return st.none() | _VALUES[of]
    if typing.get_origin(hint) is tuple:
        return st.lists(_anything(typing.get_args(hint)[0]), max_size=3).map(tuple)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return st.builds(hint, **{n: _anything(h) for n, h in typing.get_type_hints(hint).items()})
    return _VALUES[hint]


def any_row(of: type[Row], day: str = DAY) -> st.SearchStrategy[Row]:
    """Return rows of one day with anything else in them."""
    hints = typing.get_type_hints(of)
    fields = {name: _anything(hint) for name, hint in hints.items() if name != "day"}
    return st.builds(of, day=st.just(day), **fields)


def row(of: type[Row], **given: Any) -> Row:
    """Return a row with nothing in it but what is given."""
    hints = typing.get_type_hints(of)
    fields = {name: _nothing(hint) for name, hint in hints.items()}
    return of(**{**fields, "day": DAY, **given})


def _nothing(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        return None
    return () if typing.get_origin(hint) is tuple else _NONE[hint]


def plain(one: Row) -> dict[str, Any]:
    """Return a row as engines answer it."""
    found: dict[str, Any] = json.loads(tables.encode(one))
    return found


def best(rows: Iterable[Row]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the rows of one table that count, by key."""
    table = None
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in rows:
        table = table or next(t for t in tables.TABLES.values() if t.row is type(one))
        shown = plain(one)
        key = tuple(shown[name] for name in table.key)
        if key not in found or found[key]["rev"] < shown["rev"]:
            found[key] = shown
    return found
