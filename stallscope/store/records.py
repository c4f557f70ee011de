# SPDX-License-Identifier: Apache-2.0
"""Incidents and samples as JSON: written so that every reader takes it, read with limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line, without_surrogates
from stallscope.base.times import Count
from stallscope.model.incident import SCHEMA, Incident
from stallscope.model.samples import Sample
from stallscope.store import layout

__all__ = [
    "DAMAGE",
    "MAX_CAPTURES",
    "MAX_INCIDENT",
    "decode_incident",
    "decode_samples",
    "encode",
    "encode_lines",
]

MAX_INCIDENT = 8 << 20
"""Bytes of incident.json; one of a thousand captures has 400 kB."""
MAX_CAPTURES = 10_000
_MAX_LINE = 4 << 20

DAMAGE = (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError)
"""What msgspec raises on text that is not JSON, not UTF-8, not of the type, or too deep."""

# In an incident the address of a wait is a number.
_incident = msgspec.json.Decoder(Incident, dec_hook=lambda _, value: msgspec.convert(value, Count))
_sample = msgspec.json.Decoder(Sample)


def encode(value: Any) -> bytes:
    """Return JSON; lone surrogates, which have no UTF-8, are escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeError:
        return msgspec.json.encode(without_surrogates(msgspec.to_builtins(value)))


def encode_lines(values: Iterable[Any]) -> bytes:
    """Return one line of JSON a value."""
    return b"".join(encode(value) + b"\n" for value in values)


def decode_incident(data: bytes, name: str | None) -> Incident:
    """Read the text of an incident.json, in a store of the incident ``name``.

    Raises: StallscopeError beginning with incident.json.
    """
    try:
        incident = _incident.decode(data)
        msgspec.json.encode(incident)  # names that nobody could pass on
    except DAMAGE as error:
        raise _damaged(str(error)) from None
    if incident.schema != SCHEMA:
        schema = one_line(incident.schema, 40)
        raise _damaged(f"schema {schema!r}, and this stallscope reads {SCHEMA}")
    if not layout.is_id(incident.id):
        raise _damaged(f"{one_line(incident.id, 80)!r} is not the id of an incident")
    if name is not None and incident.id != name:
        raise _damaged(f"it is of {one_line(incident.id, 80)!r}, and in the folder of another")
    if len(incident.captures) > MAX_CAPTURES:
        raise _damaged(f"more than {MAX_CAPTURES} captures")
    return incident


def _damaged(what: str) -> StallscopeError:
    return StallscopeError(f"{layout.INCIDENT}: cannot be read: {one_line(what, 300)}")


def decode_samples(data: bytes, most: int) -> tuple[list[Sample], int]:
    """Return ``most`` samples at most of lines, and how many lines are none."""
    samples: list[Sample] = []
    wrong = 0
    for line in data.split(b"\n"):
        if not line:
            continue
        if len(line) > _MAX_LINE or len(samples) >= most:
            wrong += 1
            continue
        try:
            samples.append(_sample.decode(line))
        except DAMAGE:
            wrong += 1
    return samples, wrong
