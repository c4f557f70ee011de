# SPDX-License-Identifier: Apache-2.0
"""Find packs, and read the layouts of structures from them: docs/pack-format.md.

The names of functions in a pack are the probe's business.
"""

from __future__ import annotations

import os
import re
import struct
import sys
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import msgspec

from stallscope.base import trust
from stallscope.base.errors import StallscopeError

__all__ = [
    "SUFFIX",
    "Header",
    "PackError",
    "directories",
    "find",
    "header",
    "layout",
    "own_directory",
    "probe_options",
]

SUFFIX = ".pack"
SYSTEM = Path("/usr/share/stallscope/packs")
"""The probe searches it by itself."""

_MAGIC = b"STLLPACK"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQIHBBQIIIIQ" + "QII" * 3 + "96s128s")
_CHECKSUM = slice(24, 28)
_MAX_BLOCKS = 4096
_MAX_LAYOUTS = 4 << 20
"""The most bytes of the text of the layouts."""
_MAX_FILE = 256 << 20
_SYMBOLS = {1: ".symtab", 2: ".gnu_debugdata", 3: ".dynsym"}
_IDENTITY = re.compile(r"[0-9a-f]{4,64}|crc32-[0-9a-f]{8}-[0-9a-f]{1,16}")
_LINE = re.compile(r"([!-<>-~]{1,95})=(\d{1,10})")


class PackError(StallscopeError):
    """The file is not a pack that this version reads."""


class Header(msgspec.Struct, frozen=True):
    """What a pack says about itself."""

    identity: str
    """The build-id of the program, or what it is known by without one."""
    name: str
    """The name of the file that it was made of."""
    symbols: str
    """Where its names are from: ``.symtab``, ``.gnu_debugdata`` or ``.dynsym``."""
    functions: int
    objects: int
    layouts: int
    """Lines of layouts: members and sizes."""
    layouts_at: int
    layouts_packed: int
    layouts_plain: int


def own_directory() -> Path | None:
    """Return where the user's own packs are, or would be; None: the user has no home, or that of
    another user."""
    return trust.own_folder("XDG_DATA_HOME", ".local/share", "stallscope/packs")


def directories(given: Iterable[Path] = ()) -> list[Path]:
    """Return where packs are: the given directories, the user's own if there is one, the system's.

    All but the last are for the probe's ``--pack-dir``.
    """
    own = own_directory()
    return [*given, *([own] if own is not None and _is_there(own) else []), SYSTEM]


def _is_there(folder: Path) -> bool:
    """Return whether it is a directory; one that cannot be seen, as root's by others, is not."""
    return os.path.isdir(folder) and os.access(folder, os.X_OK)


def probe_options(given: Iterable[Path] = ()) -> list[str]:
    """Return the probe's options for the directories, the user's own among them."""
    return [word for path in directories(given)[:-1] for word in ("--pack-dir", str(path))]


def find(build_id: str, dirs: Sequence[Path]) -> Path | None:
    """Return the first pack of that build-id, or identity, that the directories have.

    One that other users can change is left out, with a warning.
    """
    if not _IDENTITY.fullmatch(build_id):
        return None
    for folder in dirs:
        path = folder / f"{build_id}{SUFFIX}"
        why = trust.reason(path, named=True)
        if why is not None:
            trust.warn(why)
        elif os.path.isfile(path):
            return path
    return None


def header(path: Path) -> Header:
    """Read what a pack says about itself."""
    with _open(path) as file:
        return _header(file, path)


def layout(path: Path) -> dict[str, int]:
    """Read the layouts: ``STRUCT.member`` is an offset in bytes, ``STRUCT#size`` a size.

    Reads nothing else of the file. Empty where the pack has none.
    """
    with _open(path) as file:
        found = _header(file, path)
        file.seek(found.layouts_at)
        packed = file.read(found.layouts_packed)
    if len(packed) != found.layouts_packed:
        raise _damaged(path)
    return _parse(_unpack(packed, found.layouts_plain, path), path)


def _damaged(path: Path) -> PackError:
    return PackError(f"{path}: a damaged or torn pack; make it again with stallscope pack")


def _open(path: Path) -> BinaryIO:
    try:
        # A FIFO must not block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return os.fdopen(descriptor, "rb")
    except OSError as error:
        raise PackError(f"cannot read the pack {path}: {error.strerror or error}") from error


def _header(file: BinaryIO, path: Path) -> Header:
    try:
        start = file.read(_HEADER.size)
        blocks = b""
        if len(start) == _HEADER.size and start.startswith(_MAGIC):
            size = int.from_bytes(start[12:16], "little")
            blocks = file.read(min(max(size - _HEADER.size, 0), 4 * _MAX_BLOCKS))
        file_size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise PackError(f"cannot read the pack {path}: {error.strerror or error}") from error
    if not start.startswith(_MAGIC):
        raise PackError(f"{path}: not a pack")
    if len(start) < _HEADER.size:
        raise _damaged(path)
    fields = _HEADER.unpack(start)
    if fields[1] != _VERSION:
        raise PackError(f"{path}: a pack of format {fields[1]}; this version reads {_VERSION}")
    return _checked(start, blocks, fields, file_size, path)


def _checked(
    start: bytes, blocks: bytes, fields: tuple[Any, ...], file_size: int, path: Path
) -> Header:
    (_, _, size, stated, checksum, _, symbols, _, _, functions, objects, layouts, count, _) = (
        fields[:14]
    )
    at, packed, plain = fields[17:20]
    identity, name = fields[23:25]
    zeroed = bytearray(start)
    zeroed[_CHECKSUM] = bytes(4)
    identity_text = identity.split(b"\0")[0].decode("ascii", "replace")
    if (
        count > _MAX_BLOCKS
        or size != _HEADER.size + 4 * count
        or len(blocks) != 4 * count
        or stated != file_size
        or file_size > _MAX_FILE
        or zlib.crc32(blocks, zlib.crc32(zeroed)) != checksum
        or not _IDENTITY.fullmatch(identity_text)
        or not size <= at <= file_size
        or packed > file_size - at
        or plain > _MAX_LAYOUTS
    ):
        raise _damaged(path)
    return Header(
        identity=identity_text,
        name=name.split(b"\0")[0].decode(errors="replace"),
        symbols=_SYMBOLS.get(symbols, "none"),
        functions=functions,
        objects=objects,
        layouts=layouts,
        layouts_at=at,
        layouts_packed=packed,
        layouts_plain=plain,
    )


def _unpack(packed: bytes, plain: int, path: Path) -> bytes:
    zstd = _zstd()
    decompressor = zstd.ZstdDecompressor()
    try:
        # One byte more, so that a frame that holds more is not taken for a complete one.
        text: bytes = decompressor.decompress(packed, max_length=plain + 1)
    except zstd.ZstdError as error:
        raise _damaged(path) from error
    if len(text) != plain or not decompressor.eof or decompressor.unused_data:
        raise _damaged(path)
    return text


def _zstd() -> ModuleType:
    """Import it where it is needed: the agent needs only the names of directories."""
    if sys.version_info < (3, 14):
        from backports import zstd
    else:
        from compression import zstd
    return zstd


def _parse(text: bytes, path: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in text.decode("ascii", "replace").splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise _damaged(path)
        found[match[1]] = int(match[2])
    return found
