# SPDX-License-Identifier: Apache-2.0
"""Of several places of a field, those that are right for the connections of others, too.

Our own connections have one user and one host, so that they do not distinguish all places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stallscope.collectors.calibration.search import MOST_PLACES, Reader, key_of, starts_of
from stallscope.collectors.sql.staged import Known

__all__ = ["chosen"]

FIELDS = ("user", "host", "database")
ENOUGH = 3
"""Different texts after which one place that is right for all of them is enough."""
_TEXT = 256


class _Place(msgspec.Struct, frozen=True):
    offset: int
    counted: bool


def chosen(memory: Reader, rows: Sequence[Known], layout: Mapping[str, int]) -> dict[str, int]:
    """Return the layout without places that are right for fewer connections than others are.

    ``rows``: all connections that SQL shows.
    """
    threads = [thread for thread in memory.threads if thread.fs_base]
    starts = [start for start in starts_of(memory, threads, layout["thd.tls"]) if start]
    ids, numbers = _ids(memory, starts, {known.connection for known in rows}, layout)
    found = _replaced(layout, "id", [_Place(offset, counted=False) for offset in ids])
    # While a routine runs, SQL names its definer.
    idle = [known for known in rows if known.command == "Sleep" and known.connection in numbers]
    for field in FIELDS:
        places = _places(found, field)
        values = [(numbers[known.connection], _text(known, field)) for known in idle]
        sure = [(start, value) for start, value in values if value is not None]
        if len(places) > 1 and any(value for _, value in sure):
            found = _replaced(found, field, _best(memory, sure, places))
    return found


def _ids(
    memory: Reader, starts: Sequence[int], listed: set[int], layout: Mapping[str, int]
) -> tuple[list[int], dict[int, int]]:
    """Keep of the places of a connection's id those that most threads have right: some belong to
    an earlier connection of the same thread. Also return the objects by their ids."""
    right: dict[int, dict[int, int]] = {}
    for place in _places(layout, "id"):
        pieces = memory.read([(start + place.offset, 4) for start in starts])
        found = {
            int.from_bytes(piece, "little"): at for piece, at in zip(pieces, starts, strict=True)
        }
        right[place.offset] = {number: at for number, at in found.items() if number in listed}
    most = max(map(len, right.values()))
    best = [offset for offset, objects in right.items() if len(objects) == most]
    return best, right[best[0]]


def _best(
    memory: Reader, values: Sequence[tuple[int, bytes]], places: Sequence[_Place]
) -> list[_Place]:
    right = [_right(memory, values, place) for place in places]
    most = max(right)
    best = [place for place, count in zip(places, right, strict=True) if count == most]
    enough = most == len(values) and len({value for _, value in values}) >= ENOUGH
    return best[:1] if enough else best


def _right(memory: Reader, values: Sequence[tuple[int, bytes]], place: _Place) -> int:
    """Return for how many objects the place has the text."""
    words = memory.read([(start + place.offset, 16) for start, _ in values])
    pointers = [int.from_bytes(piece[:8], "little") for piece in words]
    texts = memory.read([(pointer, _TEXT) for pointer in pointers])
    found = 0
    for (_, value), word, pointer, text in zip(values, words, pointers, texts, strict=True):
        if not pointer:
            seen = b""
        elif place.counted:
            seen = text[: int.from_bytes(word[8:12], "little")]
        else:
            seen = text.partition(b"\0")[0]
        found += seen == value
    return found


def _text(known: Known, field: str) -> bytes | None:
    """Return what the place must have, None where that is not sure."""
    if field == "user":
        return (known.user or "").encode()
    if field == "database":
        return (known.database or "").encode()
    host, _, port = (known.host or "").partition(":")
    # An address of IPv6 has colons itself.
    return None if ":" in port else host.encode()


def _places(layout: Mapping[str, int], field: str) -> list[_Place]:
    keys = [key_of(field, number) for number in range(1, MOST_PLACES + 1)]
    return [_Place(layout[key], f"{key}#length" in layout) for key in keys if key in layout]


def _replaced(layout: Mapping[str, int], field: str, places: Sequence[_Place]) -> dict[str, int]:
    prefix = f"thd.{field}"
    found = {
        key: value
        for key, value in layout.items()
        if key.partition("#")[0] != prefix and not key.startswith(f"{prefix}.")
    }
    for number, place in enumerate(places, 1):
        found[key_of(field, number)] = place.offset
        if place.counted:
            found[f"{key_of(field, number)}#length"] = place.offset + 8
    return found
