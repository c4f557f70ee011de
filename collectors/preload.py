# SPDX-License-Identifier: Apache-2.0
"""Start a program with libstallscope.so; refuse programs in which that would fail."""

from __future__ import annotations

import os
import re
import shutil
import stat
import struct
from collections.abc import Mapping
from pathlib import Path

from stallscope.base import package, trust
from stallscope.base.errors import StallscopeError, UsageError
from stallscope.collectors import probe

__all__ = ["LIBRARY", "check_folder", "check_program", "environment", "find", "resolve"]

LIBRARY = "libstallscope.so"

_SEPARATORS = re.compile("[ :]")
"""Of names in LD_PRELOAD, ld.so(8)."""
_MAX_SCRIPTS = 4  # interpreters that are scripts: the kernel follows five at most
_HEAD = 1 << 16
_ELF64 = b"\x7fELF\x02\x01"  # ELFCLASS64, ELFDATA2LSB
_MACHINE = 62  # EM_X86_64
_PT_INTERP = 3
_PROGRAM_HEADER = 56  # sizeof(Elf64_Phdr)
_LOADER = "ld-linux-x86-64.so.2"  # of glibc, by the ABI of x86-64


def find() -> Path:
    """Return the library: $STALLSCOPE_LIBRARY, the checkout's build, the package's own."""
    named = os.environ.get("STALLSCOPE_LIBRARY")
    if named:
        path = Path(named).absolute()
        if not path.is_file():
            raise StallscopeError(f"STALLSCOPE_LIBRARY={named}: no file there; unset it, or build")
        why = trust.reason(path, named=True)
        if why is not None:
            raise StallscopeError(f"STALLSCOPE_LIBRARY: {why}")
        return path
    for path in (*probe.built(f"inproc/{LIBRARY}"), package.FOLDER / "_lib" / LIBRARY):
        if path.is_file():
            return path
    raise StallscopeError(
        f"{LIBRARY} not found: run ./scripts/setup, or meson setup build && meson compile -C build,"
        " or set STALLSCOPE_LIBRARY"
    )


def environment(library: Path, own: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which a program loads the library.

    Libraries that are preloaded already stay first: an allocator or a sanitizer must come first,
    and may replace functions before our library does.
    """
    name = str(library)
    if _SEPARATORS.search(name):
        raise StallscopeError(
            f"{name}: LD_PRELOAD takes no path with a blank or a colon; copy the library elsewhere"
            " and set STALLSCOPE_LIBRARY"
        )
    before = [word for word in _SEPARATORS.split(own.get("LD_PRELOAD", "")) if word]
    words = [word for word in before if os.path.basename(word) != LIBRARY]
    return {**own, "LD_PRELOAD": ":".join([*words, name])}


def resolve(name: str) -> Path:
    """Return the file of a command, as execvp(3) finds it."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    if "/" in name and os.path.isfile(name):
        raise StallscopeError(f"{name} cannot be executed: permission denied")
    where = "there is no such file" if "/" in name else "it is not in PATH"
    raise StallscopeError(f"no program {name}: {where}")


def check_program(path: Path) -> None:
    """Refuse a program that would run without the library. Raises: StallscopeError."""
    for _ in range(_MAX_SCRIPTS):
        head = _head(path)
        if not head.startswith(b"#!"):
            break
        # The interpreter passes the environment on to the programs that the script starts.
        words = head[2:].split(b"\n", 1)[0].split()
        if not words:
            return  # execve(2) refuses it with its own message
        path = Path(os.fsdecode(words[0]))
    if not head.startswith(b"\x7fELF"):
        return
    if not head.startswith(_ELF64) or _machine(head) != _MACHINE:
        raise StallscopeError(
            f"{path} is not an x86-64 program: {LIBRARY} cannot be loaded into it"
        )
    loader = _interpreter(head)
    if loader is None:
        raise StallscopeError(
            f"{path} is linked statically: no loader runs that would load {LIBRARY};"
            " use the default backend, which needs nothing inside"
        )
    if os.path.basename(loader) != _LOADER:
        raise StallscopeError(f"{path} is not linked against glibc (its loader is {loader})")
    _check_rights(path)


def check_folder(folder: Path | None) -> None:
    """Refuse a folder in which no ring can be made. None: the library's own choice."""
    if folder is None:
        return
    if not folder.is_dir():
        raise UsageError(f"--ring-dir {folder}: no such folder; create it, writable for the server")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"--ring-dir {folder} cannot be written by uid {os.geteuid()}")


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD)
    except PermissionError:
        return b""  # a program may be run without being read
    except OSError as error:
        raise StallscopeError(f"{path}: {error.strerror or error}") from error


def _machine(head: bytes) -> int:
    return int.from_bytes(head[18:20], "little")


def _interpreter(head: bytes) -> str | None:
    """Return the loader that an ELF file names; None where it is static."""
    if len(head) < 64:
        return None
    (table,) = struct.unpack_from("<Q", head, 32)
    (count,) = struct.unpack_from("<H", head, 56)
    for at in range(table, table + count * _PROGRAM_HEADER, _PROGRAM_HEADER):
        if at + _PROGRAM_HEADER > len(head):
            break
        (kind,) = struct.unpack_from("<I", head, at)
        if kind == _PT_INTERP:
            (offset,) = struct.unpack_from("<Q", head, at + 8)
            (size,) = struct.unpack_from("<Q", head, at + 32)
            return head[offset : offset + min(size, 4096)].rstrip(b"\0").decode("utf-8", "replace")
    return None


def _check_rights(path: Path) -> None:
    """Refuse programs that run with more rights than this process: ld.so ignores LD_PRELOAD for
    them.

    AT_SECURE of getauxval(3): a set-user-ID or set-group-ID bit or a file capability has an effect.
    """
    if _no_new_privileges():
        return  # such programs do not get their rights either
    status = path.stat()
    secure = [
        why
        for why, given in (
            ("set-user-ID", status.st_mode & stat.S_ISUID and status.st_uid != os.getuid()),
            (
                "set-group-ID",
                status.st_mode & stat.S_ISGID
                and status.st_mode & stat.S_IXGRP
                and status.st_gid != os.getgid(),
            ),
            ("file capabilities", os.getuid() != 0 and _has_capabilities(path)),
        )
        if given
    ]
    if secure:
        raise StallscopeError(
            f"{path} has {' and '.join(secure)}: the loader ignores LD_PRELOAD for it; remove"
            " this, and give the rights with AmbientCapabilities= of systemd.exec(5), or run it as"
            " its user"
        )


def _has_capabilities(path: Path) -> bool:
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False


def _no_new_privileges() -> bool:
    try:
        with open("/proc/self/status", encoding="utf-8") as file:
            return any(line.split() == ["NoNewPrivs:", "1"] for line in file)
    except OSError:
        return False
