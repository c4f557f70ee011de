# SPDX-License-Identifier: Apache-2.0
"""Rows of a fleet for tests, with a value in each column."""

from __future__ import annotations

import types
import typing
from typing import Any, TypeVar

import msgspec

from stallscope.fleet.tables import AgentRow, IncidentRow, Row, StackRow, WaitRow, day_of

__all__ = ["NOON", "example", "values"]

R = TypeVar("R", bound=Row)
S = TypeVar("S", bound=msgspec.Struct)

NOON = 1_795_953_600_000
"""2026-11-29 12:00 UTC, in milliseconds."""


def values(kind: type[S], text: str) -> S:
    """Return a struct whose texts are all ``text``, with two items in each list."""
    hints = typing.get_type_hints(kind)
    return kind(**{name: _value(hints[name], text) for name in kind.__struct_fields__})


def _value(hint: Any, text: str) -> Any:
    if isinstance(hint, types.UnionType):
        hint = next(one for one in typing.get_args(hint) if one is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return (_value(item, text), _value(item, text))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return values(hint, text)
    return {str: text, int: 7, float: 0.25, bool: True}[hint]


def example(kind: type[R], text: str = "x", /, **changes: Any) -> R:
    """Return a row of one day whose texts are ``text``, but for ``changes``."""
    start = changes.get("start_ms", changes.get("minute_ms", NOON))
    own: dict[type[Row], dict[str, Any]] = {
        IncidentRow: {"start_ms": start},
        WaitRow: {"minute_ms": start},
        AgentRow: {"seen_ms": start, "started_ms": start},
        StackRow: {},
    }
    found = values(kind, text)
    return msgspec.structs.replace(
        found, **{"day": day_of(start), "rev": 1, **own[kind], **changes}
    )
