# SPDX-License-Identifier: Apache-2.0
"""What a program or library was built without, as ``readelf`` (binutils) shows it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

__all__ = ["unprotected_objects", "weaknesses"]

_BOTH = "IBT, SHSTK"


def readelf(path: Path, *options: str) -> str:
    return subprocess.run(
        ["readelf", "-W", *options, str(path)], capture_output=True, text=True, check=True
    ).stdout


def weaknesses(path: Path, *, fortified: bool = True) -> list[str]:
    """Return what is missing of a program or library; nothing is well.

    Which functions are called cannot be seen in a program that has its C library in itself.
    """
    said = readelf(path, "-h", "-l", "-d", "-s")
    segments = re.findall(r"^ +(LOAD|GNU_\w+) +(?:0x\w+ +){5}([RWE ]{3}) ", said, re.M)
    flags = " ".join(re.findall(r"\((?:FLAGS|FLAGS_1)\) +(.*)", said))
    is_library = re.search(r"\(SONAME\)", said) is not None
    is_static = not is_library and re.search(r"^ +INTERP ", said, re.M) is None
    wanted = {
        "position independent": re.search(r"^ +Type: +DYN", said, re.M)
        and (is_library or "PIE" in flags),
        "RELRO": "GNU_RELRO" in dict(segments),
        "bound at its start": "NOW" in flags,
        "stack without code": "E" not in dict(segments).get("GNU_STACK", "E"),
        "memory either written or executed": not [
            one for name, one in segments if name == "LOAD" and "W" in one and "E" in one
        ],
        "code as it is in the file": "(TEXTREL)" not in said,
        "no paths of libraries": not re.search(r"\((RPATH|RUNPATH)\)", said),
        "stack protector": is_static or "__stack_chk_fail" in said,
        "fortified functions": is_static
        or not fortified
        or re.search(r"\b__(?!stack)\w+_chk\b", said),
    }
    return [name for name, there in wanted.items() if not there]


def unprotected_objects(archive: Path) -> list[str]:
    """Return the objects of a static library that were built without marks for a shadow stack and
    for the places that indirect branches may lead to.

    The linker leaves the mark out of a program where the C library's own start files have none, as
    those of Debian.
    """
    found = re.split(r"^File: .*\((.*)\)$", readelf(archive, "-n"), flags=re.M)[1:]
    return [name for name, notes in zip(found[::2], found[1::2], strict=True) if _BOTH not in notes]
