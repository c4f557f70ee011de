# SPDX-License-Identifier: Apache-2.0
"""Pokes: what is allowed, what a process has now, what was planned, and what was done."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

__all__ = [
    "AllowList",
    "DirectIo",
    "Event",
    "FileChange",
    "Life",
    "Looked",
    "OpenFile",
    "Plan",
    "Poke",
    "Range",
    "Record",
    "State",
    "Stored",
    "WordValue",
]

MAX_ENTRIES = 64
"""Of each kind: the probe reads so many words at once."""

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,59}$")]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
BuildId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{8,128}$")]
Value = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Word = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Pid = Annotated[int, msgspec.Meta(ge=1, le=1 << 22)]
Short = Annotated[str, msgspec.Meta(max_length=200)]
Path_ = Annotated[str, msgspec.Meta(max_length=4096)]


Life = Literal["active", "restored", "changed", "undone", "not-written", "ended", "unknown"]
"""``restored``: it has the old value, and no event says why. ``changed``: neither value."""


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of an unsigned word, both ends included."""

    least: Value
    most: Value

    def __contains__(self, value: int) -> bool:
        return self.least <= value <= self.most

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


class _Build(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """For which build alone, and what people need to know."""

    name: Name
    server: Text
    """Product and version, for people."""
    program: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._+-]{1,60}$")]
    """Name of the program's file."""
    build_id: BuildId | None = None
    sha256: Digest | None = None
    """Of the program's file, where the build has no build-id."""
    does: Text
    undo: Text
    risks: Text


class Poke(_Build, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A word that may be set."""

    symbol: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    address: Annotated[int, msgspec.Meta(ge=1, le=(1 << 47) - 1)]
    """As in the program's symbol table."""
    size: Literal[1, 2, 4, 8]
    """Bytes."""
    old: Range
    """What it must hold before."""
    new: Range
    read_by: Text
    mixed_is_safe: bool = False
    """A reader may see some bytes of the old value with some of the new one."""


class DirectIo(_Build, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Open files that may get O_DIRECT."""

    file_class: Literal["redo"] = msgspec.field(name="class")
    block: Literal[512]
    """Bytes that the server's writes to these files are aligned to, in memory and in the file."""


class AllowList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    poke: Annotated[tuple[Poke, ...], msgspec.Meta(max_length=MAX_ENTRIES)] = ()
    direct_io: Annotated[tuple[DirectIo, ...], msgspec.Meta(max_length=MAX_ENTRIES)] = ()


class WordValue(msgspec.Struct, frozen=True):
    """A word as it is now, or why it cannot be changed."""

    address: Count
    size: Count
    value: Count | None = None
    error: str | None = None


class OpenFile(msgspec.Struct, frozen=True):
    """An open file of a known class."""

    fd: Count
    path: str
    file_class: str = msgspec.field(name="class")
    dev: Count
    ino: Count
    direct: bool
    memory_alignment: Count
    offset_alignment: Count
    """Bytes that a direct write must be aligned to; 0: the file system does not say."""


class Looked(msgspec.Struct, frozen=True):
    """A process, held against reuse of its pid, and its build."""

    pid: int
    identity: str
    start_time: int
    state: str
    """As in /proc/PID/stat."""
    exe: str
    build_id: str | None
    sha256: str | None
    """Of the program's file, where it was asked for."""
    bias: int
    """To be added to addresses of the symbol table."""
    words: tuple[WordValue, ...]
    files: tuple[OpenFile, ...]

    @property
    def build(self) -> str:
        """Return what identifies the build."""
        if self.build_id:
            return f"build-id {self.build_id}"
        return f"sha256 {self.sha256}" if self.sha256 else "without a build-id"


class FileChange(msgspec.Struct, frozen=True):
    """An open file of the server that gets O_DIRECT."""

    fd: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]
    dev: Count
    ino: Count
    path: Path_


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: what is changed where. A word, or files."""

    schema: Literal["stallscope.poke-record/1"]
    id: Annotated[str, msgspec.Meta(pattern=r"^\d{8}T\d{6}-[0-9a-f]{6}$")]
    created_ns: Count
    """Since the epoch."""
    name: Short
    server: Annotated[str, msgspec.Meta(max_length=500)]
    pid: Pid
    pid_namespace: Count
    start_time: Count
    """Of the process, clock ticks since boot."""
    identity: Annotated[
        str, msgspec.Meta(pattern=r"^\d{1,20}:\d{1,20}:\d{1,20}(?::[0-9a-f]{64}){1,2}$")
    ]
    """As ``stallscope-poke --process`` takes it."""
    boot_id: Short
    exe: Path_
    build: Short
    uid: Count
    """Of who poked."""
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    """Until the supervisor undoes it; None: it does not."""
    symbol: Short | None = None
    address: Count | None = None
    size: Literal[1, 2, 4, 8] | None = None
    old: Word | None = None
    new: Word | None = None
    files: Annotated[tuple[FileChange, ...], msgspec.Meta(max_length=64)] = ()

    @property
    def change(self) -> list[str]:
        """Return the options that say what is changed."""
        if self.files:
            return [w for f in self.files for w in ("--file", f"{f.fd}:{f.dev}:{f.ino}")]
        return ["--word", f"{self.address:x}:{self.size}:{self.old:x}:{self.new:x}"]


class Event(msgspec.Struct, frozen=True):
    """A later line."""

    event: Short
    at_ns: Count = 0
    by: Short = ""
    pid: Annotated[int, msgspec.Meta(ge=0, le=1 << 22)] = 0
    start_time: Count = 0
    detail: Annotated[str, msgspec.Meta(max_length=4096)] | None = None


class Stored(msgspec.Struct, frozen=True):
    """A record as it is on disk."""

    path: Path
    record: Record
    events: tuple[Event, ...] = ()
    damaged: int = 0
    """Lines that are none, such as one that was cut off."""

    @property
    def end(self) -> Event | None:
        """The event after which nothing is left to undo; None: there is none."""
        over = ("undone", "not-written", "ended")
        return next((event for event in self.events if event.event in over), None)

    def last(self, name: str) -> Event | None:
        return next((event for event in reversed(self.events) if event.event == name), None)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A change that nothing speaks against so far."""

    entry: Poke | DirectIo
    looked: Looked
    address: int | None = None
    old: int | None = None
    new: int | None = None
    files: tuple[FileChange, ...] = ()


class State(msgspec.Struct, frozen=True):
    """A record, and what its change is now."""

    stored: Stored
    life: Life
    why: str | None = None
    """``unknown``: why."""
    supervisors: tuple[int, ...] = ()
    """Processes that will undo it and still run."""
