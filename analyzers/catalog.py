# SPDX-License-Identifier: Apache-2.0
"""The signature catalog: TOML files in, compiled patterns out; docs/signatures.md is its manual."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from stallscope.analyzers.patterns import Pattern, PatternError, Vocabulary
from stallscope.errors import StallscopeError

__all__ = ["Catalog", "CatalogError", "Holder", "Idle", "Signature", "WaitKind", "check", "load"]

PACKAGE_DATA = Path(__file__).resolve().parent / "signatures"

MAX_FILE = 4 << 20

HOLDER_USE = ("optional", "required", "none")


class CatalogError(StallscopeError):
    """A signature file is wrong: file, key and what is wrong."""


class WaitKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Frames that say how a thread waits; ``contends``: for something another thread holds."""

    kind: str
    frames: list[str]
    contends: bool = False
    queues: bool = False
    """It is the lock's own routine: also a thread that is idle by its stack waits there."""
    running: bool = False
    """The thread spins: it waits although it is on a CPU."""


class _IdleEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    what: str
    stack: list[str] = []
    session: bool = False
    nameless: bool = False


class _ServerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    programs: list[str] = []
    frames: list[str] = []
    sessions: list[str] = []


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stack: list[str]
    versions: str = ""


class _HolderEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stack: list[str]
    versions: str = ""
    role: str = ""
    unique: bool = False
    running: bool = False
    waiting: bool = False
    alone: bool = False


class _SignatureEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    title: str
    servers: list[str]
    versions: str
    meaning: str
    remedies: list[str]
    references: list[str]
    precedence: int
    waiter: list[_Entry] = []
    holder: list[_HolderEntry] = []
    locks: list[str] = []
    explains: list[str] = []
    holders: str = "optional"
    min_waiters: int = 3
    idle_holder: bool = False
    device: bool = False
    generic: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    family: str
    sets: dict[str, list[str]] = {}
    wait: list[WaitKind] = []
    helpers: list[str] = []
    thread_start: list[str] = []
    server: list[_ServerEntry] = []
    idle: list[_IdleEntry] = []
    signature: list[_SignatureEntry] = []


class Holder(msgspec.Struct, frozen=True):
    """Where the culprit stands, best first; see docs/signatures.md for the fields."""

    patterns: tuple[Pattern, ...]
    versions: str
    role: str
    unique: bool
    running: bool
    waiting: bool
    alone: bool


class Idle(msgspec.Struct, frozen=True):
    """A stack of a thread that has nothing to do. ``session``: a client's connection."""

    what: str
    pattern: Pattern | None
    """None: the entry for threads of which only the wait and the start have names."""
    session: bool


class Signature(msgspec.Struct, frozen=True):
    """One way to stall; the fields are those of docs/signatures.md."""

    id: str
    title: str
    family: str
    servers: tuple[str, ...]
    versions: str
    meaning: str
    remedies: tuple[str, ...]
    references: tuple[str, ...]
    precedence: int
    waiters: tuple[Pattern, ...]
    holders: tuple[Holder, ...]
    locks: tuple[str, ...]
    explains: tuple[str, ...]
    holder_use: str
    min_waiters: int
    idle_holder: bool
    device: bool
    generic: bool
    source: str
    waiter_texts: tuple[tuple[str, str], ...] = ()
    """(versions, pattern) as written, for people."""


class Server(msgspec.Struct, frozen=True):
    name: str
    programs: tuple[str, ...]
    marks: int
    sessions: int
    family: str


class Catalog:
    """All signatures, waits, idle stacks and servers, compiled together."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        signatures: Sequence[Signature],
        waits: Sequence[tuple[int, WaitKind]],
        helpers: int,
        thread_start: int,
        servers: Sequence[Server],
        idles: Sequence[Idle],
    ) -> None:
        self.vocabulary = vocabulary
        self.signatures = tuple(signatures)
        self.by_id = {signature.id: signature for signature in signatures}
        self.waits = tuple(waits)
        self.helpers = helpers
        self.thread_start = thread_start
        self.servers = tuple(servers)
        self.sessions = 0
        for server in servers:
            self.sessions |= server.sessions
        self.idles = tuple((idle, idle.pattern) for idle in idles if idle.pattern is not None)
        self.nameless = next((idle for idle in idles if idle.pattern is None), None)
        self.lock_names = {lock: s.id for s in signatures for lock in s.locks}

    def __len__(self) -> int:
        return len(self.signatures)


def load(extra_dirs: Sequence[Path] = ()) -> Catalog:
    """Read the package's signatures, then ``*.toml`` of each folder; later ids replace earlier.

    Raises: CatalogError naming file, key and what is wrong.
    """
    paths = sorted(PACKAGE_DATA.glob("*.toml"))
    for folder in extra_dirs:
        if not folder.is_dir():
            raise CatalogError(f"{folder}: not a folder of signature files (*.toml)")
        paths.extend(sorted(folder.glob("*.toml")))
    return compile_files([(path, _read(path)) for path in paths])


def check(path: Path) -> tuple[Signature, ...]:
    """Return the signatures of one file, compiled with the package's own.

    Raises: CatalogError naming file, key and what is wrong.
    """
    files = [(item, _read(item)) for item in sorted(PACKAGE_DATA.glob("*.toml"))]
    own = _read(path)
    if not any(path.samefile(item) for item, _ in files):
        files.append((path, own))
    by_id = compile_files(files).by_id
    return tuple(by_id[entry.id] for entry in own.signature)


def _read(path: Path) -> _File:
    try:
        if path.stat().st_size > MAX_FILE:
            raise CatalogError(f"{path}: larger than {MAX_FILE} bytes, which no signature file is")
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CatalogError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CatalogError(f"{path}: not valid TOML: {error}") from error
    try:
        return msgspec.convert(data, _File)
    except msgspec.ValidationError as error:
        raise CatalogError(f"{path}: {_where(data, str(error))}") from error


def _where(data: dict[str, Any], message: str) -> str:
    """Turn msgspec's ``$.signature[3].id`` into the signature's own name where it has one."""
    text, _, place = message.partition(" - at `$")
    place = place.rstrip("`").lstrip(".")
    if place.startswith("signature["):
        index, _, key = place[len("signature[") :].partition("]")
        entries = data.get("signature")
        if isinstance(entries, list) and index.isdecimal() and int(index) < len(entries):
            entry = entries[int(index)]
            name = entry.get("id") if isinstance(entry, dict) else None
            place = f"signature {name!r}{key}" if name else place
    return f"{place}: {text}" if place else text


def compile_files(files: Sequence[tuple[Path, _File]]) -> Catalog:
    """Compile parsed files into one catalog; raises CatalogError."""
    sets: dict[str, list[str]] = {}
    for path, file in files:
        for name, members in file.sets.items():
            if name in sets and sets[name] != members:
                raise CatalogError(f"{path}: sets.{name}: another file has a set of this name")
            sets[name] = members
    builder = _Builder(Vocabulary(sets))
    for path, file in files:
        builder.add(path, file)
    return builder.finish()


class _Builder:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.signatures: dict[str, Signature] = {}
        self.waits: list[tuple[int, WaitKind]] = []
        self.helpers = 0
        self.thread_start = 0
        self.servers: list[Server] = []
        self.idles: list[Idle] = []

    def add(self, path: Path, file: _File) -> None:
        for number, wait in enumerate(file.wait):
            mask = self.element(path, f"wait[{number}].frames", wait.frames)
            self.waits.append((mask, wait))
            self.helpers |= mask
        if file.helpers:
            self.helpers |= self.element(path, "helpers", file.helpers)
        self.thread_start |= self.element(path, "thread_start", file.thread_start)
        for number, server in enumerate(file.server):
            where = f"server[{number}]"
            self.servers.append(
                Server(
                    name=server.name,
                    programs=tuple(server.programs),
                    marks=self.element(path, f"{where}.frames", server.frames),
                    sessions=self.element(path, f"{where}.sessions", server.sessions),
                    family=file.family,
                )
            )
        for number, idle in enumerate(file.idle):
            if idle.nameless:
                self.idles.append(Idle(what=idle.what, pattern=None, session=False))
            for text in idle.stack:
                pattern = self.pattern(path, f"idle[{number}].stack", text, anchored=False)
                self.idles.append(Idle(what=idle.what, pattern=pattern, session=idle.session))
        for entry in file.signature:
            self.signatures[entry.id] = self.signature(path, file.family, entry)

    def element(self, path: Path, key: str, names: Sequence[str]) -> int:
        if not names:
            return 0
        try:
            return 1 << self.vocabulary.element(names)
        except PatternError as error:
            raise CatalogError(f"{path}: {key}: {error}") from error

    def pattern(self, path: Path, key: str, text: str, *, anchored: bool) -> Pattern:
        try:
            return self.vocabulary.pattern(text, anchored=anchored)
        except PatternError as error:
            raise CatalogError(f"{path}: {key}: {text!r}: {error}") from error

    def signature(self, path: Path, family: str, entry: _SignatureEntry) -> Signature:
        where = f"signature {entry.id!r}"
        if not entry.id or entry.id.strip("abcdefghijklmnopqrstuvwxyz0123456789-"):
            raise CatalogError(f"{path}: {where}.id: lower-case letters, digits and '-' only")
        if entry.holders not in HOLDER_USE:
            raise CatalogError(f"{path}: {where}.holders: one of {', '.join(HOLDER_USE)}")
        if entry.holders == "required" and not entry.holder:
            raise CatalogError(f"{path}: {where}.holder: required, and there is none")
        if not (entry.waiter or entry.holder or entry.locks or entry.generic):
            raise CatalogError(f"{path}: {where}: no waiter, no holder, no lock: nothing to find")
        waiters = [
            (item.versions, self.pattern(path, f"{where}.waiter", text, anchored=True))
            for item in entry.waiter
            for text in item.stack
        ]
        holders = [
            Holder(
                patterns=tuple(
                    self.pattern(path, f"{where}.holder", text, anchored=False)
                    for text in item.stack
                ),
                versions=item.versions,
                role=item.role,
                unique=item.unique,
                running=item.running,
                waiting=item.waiting,
                alone=item.alone,
            )
            for item in entry.holder
        ]
        return Signature(
            id=entry.id,
            title=entry.title,
            family=family,
            servers=tuple(entry.servers),
            versions=entry.versions,
            meaning=entry.meaning,
            remedies=tuple(entry.remedies),
            references=tuple(entry.references),
            precedence=entry.precedence,
            waiters=tuple(pattern for _, pattern in waiters),
            holders=tuple(holders),
            locks=tuple(entry.locks),
            explains=tuple(entry.explains),
            holder_use=entry.holders,
            min_waiters=entry.min_waiters,
            idle_holder=entry.idle_holder,
            device=entry.device,
            generic=entry.generic,
            source=path.name,
            waiter_texts=tuple((versions, pattern.text) for versions, pattern in waiters),
        )

    def finish(self) -> Catalog:
        for signature in self.signatures.values():
            for other in signature.explains:
                if other not in self.signatures:
                    raise CatalogError(
                        f"{signature.source}: signature {signature.id!r}.explains: "
                        f"no signature is called {other!r}"
                    )
        return Catalog(
            self.vocabulary,
            sorted(self.signatures.values(), key=lambda s: s.precedence),
            self.waits,
            self.helpers,
            self.thread_start,
            self.servers,
            self.idles,
        )
