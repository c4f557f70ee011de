# SPDX-License-Identifier: Apache-2.0
"""Make packs: the names and layouts of programs, for hosts without their debug files."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import sys
from pathlib import Path

import msgspec

from stallscope.base.errors import Exit, StallscopeError
from stallscope.base.text import one_line
from stallscope.collectors import packs, probe

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope pack /usr/sbin/mariadbd -o packs
  stallscope pack $(debuginfod-find debuginfo 439da8d94412de2c7eb3e2c5554bc0f31f438dc3) -o packs
  stallscope pack /usr/lib/debug/.build-id/43/9da8d9.debug
  scp packs/*.pack root@db1:/usr/share/stallscope/packs/
"""

SCHEMA = "stallscope.pack/1"
_SECONDS = 900.0
_IDENTITY = re.compile(r"[0-9a-f]{4,64}|crc32-[0-9a-f]{8}-[0-9a-f]{1,16}")


class _Made(msgspec.Struct):
    """The probe's line about a pack; also a row of the output."""

    file: str
    pack: str
    identity: str
    debug_file: str | None
    symbols: str
    functions: int
    objects: int
    structures: int
    layouts: int
    layouts_missing: str | None
    bytes: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "file",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="a program or library with symbols, or a separate debug file",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="write the packs to DIR (default: the user's own directory of packs)",
    )
    parser.add_argument(
        "--debug-dir",
        type=Path,
        metavar="DIR",
        help="directory of separate debug files, by build-id, besides /usr/lib/debug",
    )
    parser.add_argument("--force", action="store_true", help="replace packs that exist")
    parser.add_argument("--json", action="store_true", help=f"print JSON ({SCHEMA})")


def run(args: argparse.Namespace) -> Exit:
    """Make a pack of each file; code 3 where some failed, 1 where all did."""
    folder = _folder(args.output)
    made: list[_Made] = []
    failed: list[tuple[str, str]] = []
    for file in args.file:
        try:
            made.append(_make(file, folder, args.debug_dir, force=args.force))
        except StallscopeError as error:
            failed.append((str(file), one_line(str(error))))
            print(f"stallscope: {failed[-1][1]}", file=sys.stderr)
            continue
        if not args.json:
            _show(made[-1])
    if args.json:
        rows = [msgspec.structs.asdict(pack) for pack in made]
        errors = [{"file": file, "error": error} for file, error in failed]
        print(msgspec.json.encode({"schema": SCHEMA, "packs": rows, "failed": errors}).decode())
    if failed:
        return Exit.PARTIAL if made else Exit.FAILED
    return Exit.DONE


def _folder(given: Path | None) -> Path:
    folder = given or packs.own_directory()
    if folder is None:
        raise StallscopeError("there is no $HOME to put packs into: give -o DIR")
    try:
        if not folder.is_dir():
            folder.mkdir(parents=given is None)
            # The process that reads packs has no rights of its own.
            folder.chmod(0o755)
    except OSError as error:
        raise StallscopeError(f"cannot make {folder}: {error.strerror or error}") from error
    return folder


def _make(file: Path, folder: Path, debug_dir: Path | None, *, force: bool) -> _Made:
    """Make one pack; only the probe knows its name, so it gets another one first."""
    aside = folder / f".{secrets.token_hex(6)}{packs.SUFFIX}"
    args = ["pack", f"--output={aside}"]
    if debug_dir is not None:
        args.append(f"--debug-dir={debug_dir}")
    try:
        out = probe.run([*args, "--", str(file)], seconds=_SECONDS)
        made = _understood(out)
        path = folder / f"{made.identity}{packs.SUFFIX}"
        _publish(aside, path, force=force)
    finally:
        aside.unlink(missing_ok=True)
    return msgspec.structs.replace(made, file=str(file), pack=str(path))


def _understood(out: bytes) -> _Made:
    try:
        made = msgspec.json.decode(out, type=_Made)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise StallscopeError(f"{probe.PROBE} pack: not understood: {error}") from error
    if not _IDENTITY.fullmatch(made.identity):
        raise StallscopeError(f"{probe.PROBE} pack: not an identity: {made.identity}")
    return made


def _publish(aside: Path, path: Path, *, force: bool) -> None:
    try:
        if force:
            aside.replace(path)
        else:
            os.link(aside, path)  # unlike a rename, it never replaces
    except FileExistsError:
        raise StallscopeError(f"{path} exists; give --force to replace it") from None
    except OSError as error:
        raise StallscopeError(f"cannot write {path}: {error.strerror or error}") from error


def _show(made: _Made) -> None:
    size = f"{made.bytes / 1000:.0f} kB" if made.bytes < 10_000_000 else f"{made.bytes >> 20} MiB"
    print(
        one_line(
            f"{made.pack}: {made.functions} functions, {made.objects} objects,"
            f" layouts of {made.structures} structures; {size}"
        )
    )
    if made.symbols == ".dynsym":
        what = f"{made.file} has only the names of exported functions: a pack of its debug file"
        print(f"  {one_line(what)} has all")
    if made.layouts_missing:
        what = "layouts are missing" if made.structures else "no layouts"
        print(f"  {what}: {one_line(made.layouts_missing)}")
