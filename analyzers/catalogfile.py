# SPDX-License-Identifier: Apache-2.0
"""The content of signature files, and the places of errors in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.base.tomlfile import Reader
from stallscope.model.capture import LockKind

__all__ = [
    "CatalogError",
    "EndEntry",
    "File",
    "HolderEntry",
    "IdleEntry",
    "Kept",
    "ReleaseEntry",
    "ServerEntry",
    "SignatureEntry",
    "SignatureFacts",
    "WaitKind",
    "WaiterEntry",
    "mistake",
    "read",
]


class CatalogError(StallscopeError):
    """A signature file is wrong: file, line, key and what is wrong."""


Kept = Literal["statement", "transaction", "session"]
"""What a connection keeps a lock for: what has to end so that the lock is free."""


class WaitKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Frames that show how a thread waits; ``contends``: for something that another thread
    holds."""

    kind: str
    frames: list[str]
    contends: bool = False
    queues: bool = False
    """The lock's own function: also a thread with an idle stack waits there."""
    running: bool = False
    """The thread spins: it waits although it is on a CPU."""


class IdleEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[[idle]]``: stacks of threads that wait for work; ``what`` they wait for."""

    what: str
    stack: list[str] = []
    session: bool = False
    nameless: bool = False


class ServerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[[server]]``: how a server is recognized, by its programs or its frames."""

    name: str
    programs: list[str] = []
    frames: list[str] = []
    sessions: list[str] = []


class WaiterEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[[signature.waiter]]``: a stack of those that wait."""

    stack: list[str]
    versions: str = ""
    with_holder: bool = False


class HolderEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[[signature.holder]]``: a stack of the holder."""

    stack: list[str]
    versions: str = ""
    role: str = ""
    unique: bool = False
    running: bool = False
    waiting: bool = False
    alone: bool = False
    cancels: bool = False


class ReleaseEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[[signature.release]]``: a stack of a thread that releases the lock."""

    stack: list[str]
    role: str
    versions: str = ""
    then: list[str] = []
    unseen: str = ""


class EndEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[[signature.end]]``: a statement that ends the stall, and what it does."""

    statement: str
    effect: str
    server: str = ""
    since: str = ""
    before: str = ""
    asks: bool = False
    shell: bool = False
    stack: list[str] = []


class SignatureFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The keys of a signature that need no compilation; docs/writing-signatures.md."""

    id: str
    title: str
    servers: tuple[str, ...]
    versions: str
    meaning: str
    remedies: tuple[str, ...]
    references: tuple[str, ...]
    precedence: int
    locks: tuple[str, ...] = ()
    lock_kinds: tuple[LockKind, ...] = ()
    activities: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    min_waiters: int = 3
    waited_s: int = 0
    idle_holder: bool = False
    kept: Kept | None = None
    in_transaction: bool = False
    device: bool = False
    busy: bool = False
    generic: bool = False


class SignatureEntry(SignatureFacts, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[[signature]]``."""

    waiter: list[WaiterEntry] = []
    holder: list[HolderEntry] = []
    release: list[ReleaseEntry] = []
    end: list[EndEntry] = []
    sites: list[str] = []
    holders: str = "optional"


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the catalog: the stalls of a family of servers."""

    family: str
    sets: dict[str, list[str]] = {}
    wait: list[WaitKind] = []
    helpers: list[str] = []
    wakes: list[str] = []
    asked: list[str] = []
    thread_start: list[str] = []
    server: list[ServerEntry] = []
    idle: list[IdleEntry] = []
    signature: list[SignatureEntry] = []


_reader = Reader("signature file", CatalogError, {"signature": "id"}, harmless=True)


def read(path: Path) -> File:
    """Read one file.

    Raises: CatalogError naming file, line and what is wrong.
    """
    return _reader.read(path, File)


def mistake(path: Path, place: Sequence[str | int], message: str) -> StallscopeError:
    """Return the CatalogError with the line it is about, where that can be found."""
    return _reader.mistake(path, place, message)
