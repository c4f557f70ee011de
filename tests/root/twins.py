# SPDX-License-Identifier: Apache-2.0
"""Twins of a built target: stripped, with its symbols elsewhere, or damaged."""

from __future__ import annotations

import lzma
import random
import re
import shutil
import struct
import subprocess
from pathlib import Path

__all__ = [
    "build_id",
    "damage",
    "damages",
    "function_ranges",
    "link",
    "minidebug",
    "separate",
    "shift",
    "strip",
]


def tool(*argv: str | Path) -> str:
    done = subprocess.run([str(a) for a in argv], check=True, capture_output=True, text=True)
    return done.stdout


def strip(source: Path, twin: Path) -> None:
    """Keep only the dynamic symbols."""
    tool("strip", "--strip-all", "-o", twin, source)


def build_id(path: Path) -> str:
    found = re.search(r"Build ID: ([0-9a-f]+)", tool("readelf", "-n", path))
    assert found, f"{path} has no build-id"
    return found[1]


def separate(source: Path, twin: Path, debug_dir: Path) -> None:
    """Strip, and put the symbols where debuggers search for them: DIR/.build-id/xx/rest.debug."""
    identity = build_id(source)
    file = debug_dir / ".build-id" / identity[:2] / f"{identity[2:]}.debug"
    file.parent.mkdir(parents=True)
    tool("objcopy", "--only-keep-debug", source, file)
    strip(source, twin)


def link(source: Path, twin: Path, debug_dir: Path) -> Path:
    """Strip, leave the build-id out, and name a debug file by .gnu_debuglink; return that file."""
    bare = twin.with_suffix(".bare")
    file = debug_dir / twin.parent.relative_to("/") / f"{twin.name}.debug"
    file.parent.mkdir(parents=True)
    tool("objcopy", "--remove-section=.note.gnu.build-id", source, bare)
    tool("objcopy", "--only-keep-debug", bare, file)
    strip(bare, twin)
    tool("objcopy", f"--add-gnu-debuglink={file}", twin)
    bare.unlink()
    return file


def minidebug(source: Path, twin: Path) -> None:
    """Strip, and keep the symbols in an xz-compressed .gnu_debugdata section, as Fedora does."""
    mini = twin.with_suffix(".mini")
    packed = twin.with_suffix(".xz")
    tool("objcopy", "--only-keep-debug", source, mini)
    packed.write_bytes(lzma.compress(mini.read_bytes()))
    strip(source, twin)
    tool("objcopy", "--add-section", f".gnu_debugdata={packed}", twin)
    mini.unlink()
    packed.unlink()


def function_ranges(path: Path) -> dict[str, range]:
    """Return the address range of each function in ``.symtab``."""
    ranges = {}
    for line in tool("readelf", "-sW", path).splitlines():
        words = line.split()
        if len(words) == 8 and words[3] == "FUNC" and int(words[2], 0):
            start = int(words[1], 16)
            ranges[words[7].split("@")[0]] = range(start, start + int(words[2], 0))
    return ranges


SECTION = struct.Struct("<IIQQQQIIQQ")
SHT_NOBITS = 8
PT_LOAD = 1


def sections(data: bytes | bytearray) -> dict[str, tuple[int, int, int]]:
    """Return name → (offset in the file, size, offset of its header)."""
    offset = struct.unpack_from("<Q", data, 0x28)[0]
    count, names_index = struct.unpack_from("<HH", data, 0x3C)
    headers = [SECTION.unpack_from(data, offset + nr * SECTION.size) for nr in range(count)]
    names = headers[names_index][4]
    found = {}
    for nr, header in enumerate(headers):
        if header[1] != SHT_NOBITS:
            start = names + header[0]
            name = data[start : data.index(b"\0", start)].decode()
            found[name] = (header[4], header[5], offset + nr * SECTION.size)
    return found


def end_of_loads(data: bytes) -> int:
    """Return the end of what the kernel maps."""
    offset = struct.unpack_from("<Q", data, 0x20)[0]
    size, count = struct.unpack_from("<HH", data, 0x36)
    ends = []
    for nr in range(count):
        kind, _, start, _, _, length = struct.unpack_from("<IIQQQQ", data, offset + nr * size)
        if kind == PT_LOAD:
            ends.append(int(start + length))
    return max(ends)


SYMBOL = struct.Struct("<IBBHQQ")


def shift(source: Path, twin: Path, name: str, offset: int) -> None:
    """Move a symbol in both tables."""
    data = bytearray(source.read_bytes())
    found = sections(data)
    for table, names in ((".symtab", ".strtab"), (".dynsym", ".dynstr")):
        start, size, _ = found[table]
        for at in range(start, start + size, SYMBOL.size):
            text, *rest, address, length = SYMBOL.unpack_from(data, at)
            if data.startswith(name.encode() + b"\0", found[names][0] + text):
                SYMBOL.pack_into(data, at, text, *rest, address + offset, length)
    twin.write_bytes(data)
    twin.chmod(0o755)


def damages() -> list[str]:
    """Return the kinds of damage that leave a program able to run."""
    return [
        "section-count",
        "section-offset",
        "section-headers",
        "names-index",
        "symtab",
        "strtab",
        "eh_frame",
        "eh_frame-lengths",
        "eh_frame_hdr",
        "notes",
        "symbol-sizes",
        "cut-after-loads",
    ]


def damage(source: Path, twin: Path, kind: str, rng: random.Random) -> None:
    """Copy a program and spoil what only debuggers read."""
    data = bytearray(source.read_bytes())
    found = sections(bytes(data))
    headers = struct.unpack_from("<Q", data, 0x28)[0]

    def spoil(offset: int, size: int, share: float) -> None:
        for _ in range(max(1, int(size * share))):
            data[offset + rng.randrange(size)] = rng.randrange(256)

    if kind == "section-count":
        struct.pack_into("<H", data, 0x3C, rng.choice([0xFFFF, 0xFF00, 0, 1]))
    elif kind == "section-offset":
        struct.pack_into("<Q", data, 0x28, rng.choice([2**64 - 64, 2**63, len(data) - 8, 1]))
    elif kind == "section-headers":
        spoil(headers, len(data) - headers, 0.2)
    elif kind == "names-index":
        struct.pack_into("<H", data, 0x3E, rng.choice([0xFFFF, 0, 1, 2]))
    elif kind in ("symtab", "strtab", "eh_frame", "eh_frame_hdr"):
        offset, size, _ = found["." + kind]
        spoil(offset, size, rng.choice([0.001, 0.05, 0.9]))
    elif kind == "eh_frame-lengths":
        offset, size, _ = found[".eh_frame"]
        for at in range(0, size - 4, 4 * rng.randrange(5, 50)):
            struct.pack_into("<I", data, offset + at, rng.choice([0, 1, 0xFFFFFFFF, 0x7FFFFFFF]))
    elif kind == "notes":
        for name, (offset, size, _) in found.items():
            if name.startswith(".note"):
                spoil(offset, size, 0.3)
    elif kind == "symbol-sizes":
        offset, size, _ = found[".symtab"]
        for at in range(offset, offset + size - 24, 24):
            struct.pack_into("<Q", data, at + 16, rng.choice([2**64 - 1, 2**63, 0]))
    else:
        assert kind == "cut-after-loads", kind
        del data[end_of_loads(bytes(data)) + rng.randrange(64) :]
    twin.write_bytes(data)
    shutil.copymode(source, twin)
