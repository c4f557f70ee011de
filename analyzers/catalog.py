# SPDX-License-Identifier: Apache-2.0
"""The signature catalog: compile TOML files to patterns; docs/writing-signatures.md is the
manual."""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from stallscope.analyzers.catalogfile import (
    CatalogError,
    EndEntry,
    File,
    HolderEntry,
    Kept,
    ReleaseEntry,
    SignatureEntry,
    SignatureFacts,
    WaiterEntry,
    WaitKind,
    mistake,
    read,
)
from stallscope.analyzers.patterns import Index, Pattern, PatternError, Vocabulary
from stallscope.model.capture import Lock, LockKind

__all__ = [
    "Catalog",
    "CatalogError",
    "Holder",
    "Idle",
    "Kept",
    "LettingGo",
    "Signature",
    "WaitKind",
    "check",
    "load",
]

PACKAGE_DATA = Path(__file__).resolve().parent / "signatures"

Place = Sequence[str | int]
"""Keys and indexes that lead to a value of a file."""

ANY_PROGRAM = "any"
"""The family of what holds for each program on Linux."""

HOLDER_USE = ("optional", "required", "none")


class Holder(msgspec.Struct, frozen=True):
    """Stacks of the blocker, best first; see docs/writing-signatures.md for the fields."""

    patterns: tuple[Pattern, ...]
    versions: str
    role: str
    unique: bool
    running: bool
    waiting: bool
    alone: bool
    cancels: bool

    @property
    def certain(self) -> bool:
        """Return whether such a stack alone shows a holder, and none that waits itself."""
        return not self.unique and not self.waiting


class LettingGo(msgspec.Struct, frozen=True):
    """Stacks in which the blocker releases the lock; see docs/writing-signatures.md for the
    fields."""

    patterns: tuple[Pattern, ...]
    versions: str
    role: str
    then: tuple[Pattern, ...]
    unseen: str


class Idle(msgspec.Struct, frozen=True):
    """A stack of an idle thread. ``session``: a client's connection."""

    what: str
    pattern: Pattern | None
    """None: the entry for threads of which only the first and last frames have names."""
    session: bool


class Site(msgspec.Struct, frozen=True):
    """The places of a wait and of a lock's creation in a server's report."""

    kind: str
    """``mutex``, ``rwlock`` or empty for both."""
    place: str
    created: str

    def fits(self, kind: str, place: str, lock: Lock) -> bool:
        """Return whether place and kind of lock match."""
        if self.kind not in ("", kind) or not fnmatchcase(place, self.place):
            return False
        return not self.created or fnmatchcase(lock.created or "", self.created)


def _site(path: Path, number: int, signature: str, text: str) -> Site:
    """Parse ``[mutex|rwlock ]PLACE[ of CREATED]``."""
    parts = text.split()
    kind = parts.pop(0) if parts[:1] in (["mutex"], ["rwlock"]) else ""
    if len(parts) == 1:
        return Site(kind, parts[0], "")
    if len(parts) == 3 and parts[1] == "of":
        return Site(kind, parts[0], parts[2])
    message = f"signature {signature!r}.sites: {text!r}: not '[mutex|rwlock] PLACE [of CREATED]'"
    raise mistake(path, ["signature", number, "sites"], message)


class Signature(SignatureFacts, frozen=True, kw_only=True):
    """One signature: the entry of its file, with compiled stacks."""

    family: str
    waiters: tuple[Pattern, ...]
    sure: tuple[Pattern, ...]
    """Those of the waiters that are evidence whether or not a holder is seen."""
    holders: tuple[Holder, ...]
    releases: tuple[LettingGo, ...]
    ends: tuple[tuple[EndEntry, tuple[Pattern, ...]], ...]
    """Statements that end the stall, each where a thread of it has one of these stacks, if any."""
    sites: tuple[Site, ...]
    holder_use: str
    source: str
    waiter_texts: tuple[tuple[str, str], ...] = ()
    """(versions, pattern) as in the file, for people."""

    def certain_holder(self, entries: Iterable[int]) -> int | None:
        """Return the first of these holder entries that is certain."""
        return next((number for number in entries if self.holders[number].certain), None)


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
        leaves: int,
        helpers: int,
        wakes: int,
        asked: int,
        thread_start: int,
        servers: Sequence[Server],
        idles: Sequence[Idle],
    ) -> None:
        self.vocabulary = vocabulary
        self._take(signatures)
        self.waits = tuple(waits)
        self.waiting = 0
        for mask, _ in self.waits:
            self.waiting |= mask
        self.leaves = leaves
        """The frames of libc that wait: the innermost ones of a whole stack."""
        self.helpers = helpers
        self.carriers = vocabulary.only(helpers)
        """The elements of which each name is a helper's."""
        self.wakes = wakes
        self.asked = asked
        self.thread_start = thread_start
        self.servers = tuple(servers)
        self.sessions = 0
        for server in servers:
            self.sessions |= server.sessions
        self.idles = Index((idle.pattern, idle) for idle in idles if idle.pattern is not None)
        self.nameless = next((idle for idle in idles if idle.pattern is None), None)

    def _take(self, signatures: Sequence[Signature]) -> None:
        self.signatures = tuple(signatures)
        self.by_id = {signature.id: signature for signature in signatures}
        self.waiters = Index((pattern, s) for s in signatures for pattern in s.waiters)
        self.holders = Index(
            (pattern, (s, number))
            for s in signatures
            for number, holder in enumerate(s.holders)
            for pattern in holder.patterns
        )
        self._claims: dict[str, tuple[Signature, ...]] = {}

    def __len__(self) -> int:
        return len(self.signatures)

    def claims(self, lock: str) -> tuple[Signature, ...]:
        """Return the signatures for waiters of a lock of this name, nearest to causes first.

        ``index->lock`` is also ``&new_index->lock``, as servers print it.
        """
        known = self._claims.get(lock)
        if known is None:
            name = lock.lstrip("&").partition("+")[0]
            known = tuple(
                s for s in self.signatures if any(fnmatchcase(name, glob) for glob in s.locks)
            )
            self._claims[lock] = known
        return known

    def by_server_text(self, lock: Lock | None, activity: str | None) -> tuple[Signature, ...]:
        """Return the signatures for a thread by the kind of its lock, or by its activity.
        ``activity``: ``State`` of the processlist.
        """
        return tuple(
            s
            for s in self.signatures
            if (lock is not None and lock.kind in s.lock_kinds)
            or (activity is not None and any(fnmatchcase(activity, a) for a in s.activities))
        )

    def without(self, ids: Collection[str]) -> Catalog:
        """Return a catalog without these signatures."""
        other = copy.copy(self)
        other._take([s for s in self.signatures if s.id not in ids])
        return other

    def at_site(self, lock: Lock, place: str) -> tuple[Signature, ...]:
        """Return the signatures for waiters of the lock at this ``file:line``."""
        kind = "rwlock" if lock.kind is LockKind.RWLOCK else "mutex"
        return tuple(
            s for s in self.signatures if any(site.fits(kind, place, lock) for site in s.sites)
        )


def load(extra_dirs: Sequence[Path] = ()) -> Catalog:
    """Read the package's signatures, then ``*.toml`` of each folder; later ids replace earlier.

    Raises: CatalogError naming file, key and what is wrong.
    """
    paths: list[Path] = []
    for folder in extra_dirs:
        if not folder.is_dir():
            raise CatalogError(f"{folder}: not a folder of signature files (*.toml)")
        paths.extend(sorted(folder.glob("*.toml")))
    return compile_files([*_shipped(), *((path, read(path)) for path in paths)])


@functools.cache
def _shipped() -> tuple[tuple[Path, File], ...]:
    """Read the package's own files once: they do not change while a program runs."""
    return tuple((path, read(path)) for path in sorted(PACKAGE_DATA.glob("*.toml")))


def check(path: Path) -> tuple[Signature, ...]:
    """Return the signatures of one file, compiled with the package's own.

    Raises: CatalogError naming file, key and what is wrong.
    """
    own = read(path)
    files = list(_shipped())
    if not any(path.samefile(item) for item, _ in files):
        files.append((path, own))
    by_id = compile_files(files).by_id
    return tuple(by_id[entry.id] for entry in own.signature)


def compile_files(files: Sequence[tuple[Path, File]]) -> Catalog:
    """Compile parsed files into one catalog; raises CatalogError."""
    sets: dict[str, list[str]] = {}
    for path, file in files:
        for name, members in file.sets.items():
            if name in sets and sets[name] != members:
                raise mistake(
                    path, ["sets", name], f"sets.{name}: another file has a set of this name"
                )
            sets[name] = members
    builder = _Builder(Vocabulary(sets))
    for path, file in files:
        builder.add(path, file)
    return builder.finish()


def _key(place: Place) -> str:
    """Return ``idle[0].stack`` for a place."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _wrong(entry: SignatureEntry) -> tuple[str, str] | None:
    """Return key and error of an invalid entry, None for a valid one."""
    if not entry.id or entry.id.strip("abcdefghijklmnopqrstuvwxyz0123456789-"):
        return "id", "lower-case letters, digits and '-' only"
    if entry.holders not in HOLDER_USE:
        return "holders", f"one of {', '.join(HOLDER_USE)}"
    if entry.holders == "required" and not entry.holder:
        return "holder", "required, and there is none"
    described = (entry.waiter, entry.holder, entry.locks, entry.sites, entry.activities)
    if not (any(described) or entry.generic):
        return "", "no waiter, no holder, no lock: nothing to find"
    if entry.min_waiters < 1:
        return "min_waiters", "a number of threads, 1 or more"
    if entry.precedence < 0:
        return "precedence", "a number, 0 or more"
    for reference in entry.references:
        if not reference.startswith(("https://", "http://")):
            return "references", f"{reference!r} is no address (https://...)"
    return None


class _Builder:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.signatures: dict[str, Signature] = {}
        self.where: dict[str, tuple[Path, int]] = {}
        self.waits: list[tuple[int, WaitKind]] = []
        self.leaves = 0
        self.helpers = 0
        self.wakes = 0
        self.asked = 0
        self.thread_start = 0
        self.servers: list[Server] = []
        self.idles: list[Idle] = []

    def add(self, path: Path, file: File) -> None:
        for number, wait in enumerate(file.wait):
            mask = self.element(path, ["wait", number, "frames"], wait.frames)
            self.waits.append((mask, wait))
            self.helpers |= mask
            if file.family == ANY_PROGRAM:
                self.leaves |= mask
        if file.helpers:
            self.helpers |= self.element(path, ["helpers"], file.helpers)
        self.wakes |= self.element(path, ["wakes"], file.wakes)
        self.asked |= self.element(path, ["asked"], file.asked)
        self.thread_start |= self.element(path, ["thread_start"], file.thread_start)
        for number, server in enumerate(file.server):
            self.servers.append(
                Server(
                    name=server.name,
                    programs=tuple(server.programs),
                    marks=self.element(path, ["server", number, "frames"], server.frames),
                    sessions=self.element(path, ["server", number, "sessions"], server.sessions),
                    family=file.family,
                )
            )
        for number, idle in enumerate(file.idle):
            if idle.nameless:
                self.idles.append(Idle(what=idle.what, pattern=None, session=False))
            for text in idle.stack:
                pattern = self.pattern(path, ["idle", number, "stack"], text, anchored=False)
                self.idles.append(Idle(what=idle.what, pattern=pattern, session=idle.session))
        own: set[str] = set()
        for number, entry in enumerate(file.signature):
            if entry.id in own:
                what = f"signature {entry.id!r}.id: twice in this file"
                raise mistake(path, ["signature", number, "id"], what)
            own.add(entry.id)
            self.where[entry.id] = (path, number)
            self.signatures[entry.id] = self.signature(path, file.family, number, entry)

    def element(self, path: Path, place: Place, names: Sequence[str]) -> int:
        if not names:
            return 0
        try:
            return 1 << self.vocabulary.element(names)
        except PatternError as error:
            raise mistake(path, place, f"{_key(place)}: {error}") from error

    def pattern(
        self, path: Path, place: Place, text: str, *, anchored: bool, where: str = ""
    ) -> Pattern:
        try:
            return self.vocabulary.pattern(text, anchored=anchored)
        except PatternError as error:
            raise mistake(path, place, f"{where or _key(place)}: {text!r}: {error}") from error

    def patterns(
        self, path: Path, place: Place, texts: Sequence[str], *, anchored: bool, where: str
    ) -> tuple[Pattern, ...]:
        return tuple(
            self.pattern(path, place, text, anchored=anchored, where=where) for text in texts
        )

    def stacks(
        self, path: Path, number: int, key: str, entry: SignatureEntry, *, anchored: bool
    ) -> list[tuple[Pattern, ...]]:
        """Compile the patterns of each waiter, holder or release entry."""
        out = []
        items: Sequence[WaiterEntry | HolderEntry | ReleaseEntry] = getattr(entry, key)
        for index, item in enumerate(items):
            place = ("signature", number, key, index, "stack")
            where = f"signature {entry.id!r}.{key}"
            if not item.stack:
                raise mistake(path, place, f"{where}[{index}].stack: it has no pattern")
            out.append(self.patterns(path, place, item.stack, anchored=anchored, where=where))
        return out

    def signature(self, path: Path, family: str, number: int, entry: SignatureEntry) -> Signature:
        wrong = _wrong(entry)
        if wrong is not None:
            key, message = wrong
            dotted = f".{key}" if key else ""
            place: list[str | int] = ["signature", number, *([key] if key else [])]
            raise mistake(path, place, f"signature {entry.id!r}{dotted}: {message}")
        waiting = self.stacks(path, number, "waiter", entry, anchored=True)
        waiters = [
            (item.versions, pattern)
            for item, patterns in zip(entry.waiter, waiting, strict=True)
            for pattern in patterns
        ]
        sure = [
            pattern
            for item, patterns in zip(entry.waiter, waiting, strict=True)
            for pattern in patterns
            if not item.with_holder
        ]
        holding = self.stacks(path, number, "holder", entry, anchored=False)
        holders = [
            Holder(
                patterns=patterns,
                versions=item.versions,
                role=item.role,
                unique=item.unique,
                running=item.running,
                waiting=item.waiting,
                alone=item.alone,
                cancels=item.cancels,
            )
            for item, patterns in zip(entry.holder, holding, strict=True)
        ]
        letting = self.stacks(path, number, "release", entry, anchored=True)
        releases = [
            LettingGo(
                patterns=patterns,
                versions=item.versions,
                role=item.role,
                then=self.patterns(
                    path,
                    ("signature", number, "release", index, "then"),
                    item.then,
                    anchored=False,
                    where=f"signature {entry.id!r}.release",
                ),
                unseen=item.unseen,
            )
            for index, (item, patterns) in enumerate(zip(entry.release, letting, strict=True))
        ]
        return Signature(
            **{name: getattr(entry, name) for name in SignatureFacts.__struct_fields__},
            family=family,
            waiters=tuple(pattern for _, pattern in waiters),
            sure=tuple(sure),
            holders=tuple(holders),
            releases=tuple(releases),
            ends=self.ends(path, number, entry),
            sites=tuple(_site(path, number, entry.id, text) for text in entry.sites),
            holder_use=entry.holders,
            source=path.name,
            waiter_texts=tuple((versions, pattern.text) for versions, pattern in waiters),
        )

    def ends(
        self, path: Path, number: int, entry: SignatureEntry
    ) -> tuple[tuple[EndEntry, tuple[Pattern, ...]], ...]:
        """Return what ends the stall, each with the stacks that it is said for."""
        return tuple(
            (
                item,
                self.patterns(
                    path,
                    ("signature", number, "end", index, "stack"),
                    item.stack,
                    anchored=False,
                    where=f"signature {entry.id!r}.end",
                ),
            )
            for index, item in enumerate(entry.end)
        )

    def finish(self) -> Catalog:
        for signature in self.signatures.values():
            for key in ("explains", "causes"):
                for other in getattr(signature, key):
                    if other not in self.signatures:
                        path, number = self.where[signature.id]
                        what = f"signature {signature.id!r}.{key}: no signature is called {other!r}"
                        raise mistake(path, ["signature", number, key], what)
        return Catalog(
            self.vocabulary,
            sorted(self.signatures.values(), key=lambda s: s.precedence),
            self.waits,
            self.leaves,
            self.helpers,
            self.wakes,
            self.asked,
            self.thread_start,
            self.servers,
            self.idles,
        )
