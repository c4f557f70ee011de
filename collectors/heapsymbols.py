# SPDX-License-Identifier: Apache-2.0
"""Name the addresses of a heap dump from the mapped files, where this machine has them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stallscope.analyzers.importers.jemalloc import HeapDump, Mapping, find
from stallscope.base.errors import StallscopeError
from stallscope.collectors import symbols
from stallscope.collectors.paths import asking
from stallscope.model.capture import Capture, Frame, Module, Thread

__all__ = ["Elf", "Named", "elf_of", "name"]

MAX_HEADERS = 4096
MAX_NOTES = 1 << 16
_LOAD = 1
_NOTE = 4
_GNU_BUILD_ID = 3
_EXECUTABLE = 1


class Named(msgspec.Struct, frozen=True):
    """The frames of each stack of the dump, in its order, and what could not be named."""

    stacks: tuple[tuple[str, ...], ...]
    problems: tuple[str, ...]


class Elf(msgspec.Struct, frozen=True):
    """What is read of a file's headers."""

    build_id: str | None
    segments: tuple[tuple[int, int, int], ...]
    """(offset in the file, bytes, address) of executable ones."""

    def address(self, offset: int) -> int | None:
        """Return the address in the file's own numbers of an offset in it."""
        for start, size, address in self.segments:
            if start <= offset < start + size:
                return address + offset - start
        return None


def elf_of(path: Path) -> Elf | None:
    """Return the headers of an ELF file of 64 bits; None: it is none, or it is damaged.

    Raises: SilentDiskError.
    """
    try:
        head, _ = asking.read(path, 64)
        if len(head) < 64 or head[:5] != b"\x7fELF\x02" or head[5] != 1:
            return None
        at, size, count = (
            *struct.unpack_from("<Q", head, 32),
            *struct.unpack_from("<HH", head, 54),
        )
        if size != 56 or not 0 < count <= MAX_HEADERS:
            return None
        headers, _ = asking.read(path, size * count, offset=at)
        if len(headers) < size * count:
            return None
        segments = []
        build_id = None
        for index in range(count):
            kind, flags, offset, address, _, length = struct.unpack_from(
                "<IIQQQQ", headers, index * size
            )
            if kind == _LOAD and flags & _EXECUTABLE:
                segments.append((offset, length, address))
            elif kind == _NOTE and build_id is None:
                build_id = _build_id(asking.read(path, min(length, MAX_NOTES), offset=offset)[0])
        return Elf(build_id, tuple(segments))
    except asking.SilentDiskError:
        raise
    except (OSError, struct.error):
        return None


def _build_id(notes: bytes) -> str | None:
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        name_at = at + 12
        data_at = name_at + (name_size + 3) // 4 * 4
        end = data_at + size
        if end > len(notes):
            return None
        if kind == _GNU_BUILD_ID and notes[name_at : name_at + name_size] == b"GNU\0":
            return notes[data_at:end].hex() or None
        at = data_at + (size + 3) // 4 * 4
    return None


def name(dump: HeapDump, *, sysroot: Path | None, pack_dirs: Sequence[Path] = ()) -> Named:
    """Return the names. Files are looked for under their paths, below ``sysroot`` if it is given;
    without build-id they are not used."""
    modules: dict[str, tuple[Module, Elf] | None] = {}
    paths: dict[str, Path] = {}
    frames: dict[int, Frame] = {}
    problems: list[str] = []
    for stack in dump.stacks:
        for address in stack.addresses:
            if address not in frames:
                frames[address] = _frame(dump.mappings, address, modules, paths, sysroot, problems)
    threads = tuple(
        Thread(tid=0, frames=tuple(frames[address] for address in stack.addresses))
        for stack in dump.stacks
    )
    capture = Capture(backend="jemalloc", processes=(), threads=threads)
    if paths:
        try:
            found = symbols.symbolize(
                capture,
                debug_dir=None,
                pack_dirs=pack_dirs,
                fetch=lambda build_id: paths[build_id],
            )
            capture = found.capture
            problems += found.problems
        except StallscopeError as error:
            problems.append(f"no function is named: {error}")
    return Named(
        tuple(tuple(map(str, thread.frames)) for thread in capture.threads), tuple(problems)
    )


def _frame(
    mappings: tuple[Mapping, ...],
    address: int,
    modules: dict[str, tuple[Module, Elf] | None],
    paths: dict[str, Path],
    sysroot: Path | None,
    problems: list[str],
) -> Frame:
    # A return address may be behind the last instruction of its function, even of its mapping.
    mapping = find(mappings, address - 1)
    if mapping is None:
        return Frame(pc=address)
    if mapping.path not in modules:
        modules[mapping.path] = _module(mapping.path, sysroot, paths, problems)
    known = modules[mapping.path]
    offset = address - mapping.start + mapping.offset
    if known is None:
        return Frame(pc=address, module=Module(process=0, path=mapping.path), offset=offset)
    module, elf = known
    return Frame(pc=address, module=module, offset=elf.address(offset) or offset)


def _module(
    path: str, sysroot: Path | None, paths: dict[str, Path], problems: list[str]
) -> tuple[Module, Elf] | None:
    here = Path(path) if sysroot is None else sysroot / path.lstrip("/")
    if path.startswith("["):
        return None
    try:
        elf = elf_of(here)
    except asking.SilentDiskError as error:
        problems.append(f"{path}: {error.strerror}: its addresses have no names")
        return None
    if elf is None:
        problems.append(f"{path}: this machine has no such file: its addresses have no names")
        return None
    if elf.build_id is not None:
        paths[elf.build_id] = here
    return Module(process=0, path=path, build_id=elf.build_id), elf
