# SPDX-License-Identifier: Apache-2.0
"""Deadlocks of a store: one file each, a bounded number of them."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.model.capture import Note
from stallscope.store import files, layout
from stallscope.store.records import DAMAGE, encode

__all__ = ["MOST", "add", "read_all"]

MOST = 1_000
"""How many deadlocks are kept by default."""
_MAX_BYTES = 8 << 20
_MAX_NOTES = 100

_T = TypeVar("_T")


def add(folder: Path, deadlock: msgspec.Struct, most: int = MOST) -> bool:
    """Write a deadlock to ID.json; say whether it is new. Ids that sort by time are best.

    Of more than ``most`` the first in the order of their names are removed.
    Raises: StallscopeError.
    """
    name = f"{getattr(deadlock, 'id', '')}.json"
    if not layout.is_deadlock_name(name):
        raise StallscopeError(f"{one_line(name, 80)!r} is not the name of a deadlock")
    path = folder / name
    try:
        atomicfile.write(path, [encode(deadlock)])
    except StallscopeError:
        if path.exists():
            return False
        raise
    _drop(folder, most, path.name)
    return True


def _drop(folder: Path, most: int, newest: str) -> None:
    try:
        with files.folder(folder) as inside:
            own = [
                name
                for name in filter(layout.is_deadlock_name, files.names(inside))
                if name != newest and files.regular(name, inside) is not None
            ]
            for name in own[: max(0, len(own) - max(1, most) + 1)]:
                (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise StallscopeError(f"cannot prune {folder}: {files.one_line_of(error)}") from error


def read_all(dest: Path, kind: type[_T], most: int = MOST) -> tuple[list[_T], list[Note]]:
    """Return the ``most`` last deadlocks of a store, in the order of their names, and notes.

    Raises: StallscopeError where the folder cannot be read; one that is not there holds nothing.
    """
    found: list[_T] = []
    notes: list[Note] = []
    decoder = msgspec.json.Decoder(kind)
    try:
        with files.folder(dest) as top, files.folder(layout.DEADLOCKS, top) as inside:
            for name in list(filter(layout.is_deadlock_name, files.names(inside)))[-most:]:
                try:
                    found.append(decoder.decode(files.read(name, inside, _MAX_BYTES)))
                except FileNotFoundError:
                    continue  # removed meanwhile
                except StallscopeError as error:
                    _note(notes, f"{layout.DEADLOCKS}/{error}")
                except DAMAGE as error:
                    _note(notes, f"{layout.DEADLOCKS}/{name}: {error}")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StallscopeError(f"cannot read {dest}: {files.one_line_of(error)}") from error
    return found, notes


def _note(notes: list[Note], message: str) -> None:
    if len(notes) < _MAX_NOTES:
        notes.append(Note("deadlock-unreadable", one_line(message)))
