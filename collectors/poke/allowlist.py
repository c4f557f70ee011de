# SPDX-License-Identifier: Apache-2.0
"""The list of what may be changed in a live server, as TOML: the package's own, or a user's."""

from __future__ import annotations

from pathlib import Path

from stallscope.base.errors import UsageError
from stallscope.base.tomlfile import Reader
from stallscope.model.pokes import AllowList, Poke

__all__ = [
    "OWN",
    "AllowListError",
    "load",
]

OWN = Path(__file__).parent / "pokes.toml"


class AllowListError(UsageError):
    """An allow-list cannot be read, or may not be trusted."""


_READER = Reader("allow-list of pokes", AllowListError, {"poke": "name", "direct_io": "name"})


def load(path: Path | None = None) -> AllowList:
    """Return the package's list, or that of a file that no other user can change.

    Raises: AllowListError.
    """
    path = OWN if path is None else path
    found = _READER.read(path, AllowList)
    _check(path, found)
    return found


def _check(path: Path, found: AllowList) -> None:
    """Refuse what no type expresses."""
    for kind, entries in (("poke", found.poke), ("direct_io", found.direct_io)):
        names = set()
        for number, entry in enumerate(entries):
            place = (kind, number)
            if (entry.build_id is None) == (entry.sha256 is None):
                message = f"{kind} {entry.name!r}: give build_id or sha256, one of them"
                raise _READER.mistake(path, place, message)
            key = (entry.name, entry.build_id, entry.sha256)
            if key in names:
                message = f"{kind} {entry.name!r}: twice for the same build"
                raise _READER.mistake(path, place, message)
            names.add(key)
    for number, poke in enumerate(found.poke):
        if wrong := _wrong(poke):
            message = f"poke {poke.name!r}: {wrong}"
            raise _READER.mistake(path, ("poke", number), message)


def _wrong(poke: Poke) -> str | None:
    most = (1 << 8 * poke.size) - 1
    if poke.address % poke.size:
        return f"address {poke.address:#x} is not aligned to {poke.size} bytes"
    for name, values in (("old", poke.old), ("new", poke.new)):
        if values.least > values.most:
            return f"{name}: least is larger than most"
        if values.most > most:
            return f"{name}: {values.most} has more than {poke.size} bytes"
    return None
