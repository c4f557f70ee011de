# SPDX-License-Identifier: Apache-2.0
"""Read the inputs that users name: files, folders, standard input."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from stallscope.analyzers import importers
from stallscope.base import inputfile, parallel
from stallscope.base.errors import StallscopeError
from stallscope.collectors import snapshot
from stallscope.commands import _common, _store
from stallscope.model import capturefile, rings, sessionsfile
from stallscope.model.capture import Capture
from stallscope.reporters import progress

__all__ = ["add_arguments", "files", "path_of", "read"]

MAX_FILES = 10_000

_LARGE = 32 << 20
"""The least bytes for which more processes are worth their cost."""
_PT_STALK = re.compile(r"\d{4}(?:_\d\d){5}-([a-z_-]+?)\d*")
_WITH_STACKS = frozenset(("stacktrace", "pmp", "innodbstatus", "processlist", "log_error"))
"""Those of pt-stalk's collectors whose files hold stacks or waits; others only resemble them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that reads dumps."""
    group = parser.add_argument_group("reading")
    group.add_argument(
        "--jobs",
        type=_common.count,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes to read a large gdb text file with (default: all CPUs)",
    )
    group.add_argument("--exe", type=Path, metavar="FILE", help="executable of a core file")
    group.add_argument(
        "--sysroot",
        type=Path,
        metavar="DIR",
        help="root directory of the files of a core file or ring",
    )
    _store.add_dest_argument(group)


def path_of(word: str, args: argparse.Namespace) -> Path:
    """Return the file or folder that a word names: of an incident the folder of its captures."""
    from stallscope.store import layout

    found = _store.incident_path(word, args)
    if found is None or Path(word).exists():
        return Path(word)
    return found / layout.CAPTURES


def files(top: Path) -> Iterator[Path]:
    """Yield the files below a folder that can hold stacks, sorted by name."""
    found = 0
    for folder, folders, names in os.walk(top):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_symlink() or not path.is_file() or name.endswith(sessionsfile.SUFFIX):
                continue
            collected = _PT_STALK.fullmatch(name)
            if collected is not None and collected.group(1) not in _WITH_STACKS:
                continue
            found += 1
            if found > MAX_FILES:
                raise StallscopeError(f"{top}: more than {MAX_FILES} files; name some of them")
            yield path


def read(path: Path, args: argparse.Namespace) -> tuple[list[Capture], str]:
    """Return the captures of a file, and its format: ``stallscope``, ``core``, ``ring`` or the
    backend of the first capture.
    """
    source = inputfile.chunks(path)
    head = next(source, b"")
    if inputfile.is_core(head):
        return [_core(path, args)], "core"
    if rings.is_ring(head):
        return [_ring(path, args)], "ring"
    data: Iterator[bytes] = itertools.chain([head], source)
    large = str(path) != "-" and path.stat().st_size >= _LARGE
    if large:
        data = progress.of_bytes(data, path.name, path.stat().st_size)
    if capturefile.is_capture(head):
        (capture,) = importers.read(data, str(path))
        return [sessionsfile.add_from_file(capture, path)], "stallscope"
    with contextlib.ExitStack() as stack:
        pieces: importers.Pieces = map
        processes = parallel.count(args.jobs)
        if processes > 1 and large:
            pieces = stack.enter_context(parallel.mapper(processes, importers.PIECE))
        captures = list(importers.read(data, str(path), pieces=pieces))
    return captures, captures[0].backend


def _core(path: Path, args: argparse.Namespace) -> Capture:
    """Unwind a core file; it must be on disk, since the probe maps it."""
    _refuse_input(path, "a core file")
    return snapshot.take_core(path, args.exe, args.sysroot, snapshot.Options(seconds=60.0))


def _ring(path: Path, args: argparse.Namespace) -> Capture:
    """Unwind the last waits of a server that has ended; the probe maps the file."""
    _refuse_input(path, "a ring")
    return snapshot.take_ring(path, args.sysroot, snapshot.Options(seconds=60.0))


def _refuse_input(path: Path, what: str) -> None:
    if str(path) == "-":
        raise StallscopeError(f"-: {what} cannot be read from standard input: name the file")
