# SPDX-License-Identifier: Apache-2.0
"""The file of sessions next to a capture: ``0001.sessions.json`` of ``0001.jsonl.zst``. It holds
the server's connections right after the capture, with statements without literals;
docs/capture-format.md. The capture stays as the probe wrote it, and is complete without this
file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.model.capture import Capture, Index
from stallscope.model.sessions import Sessions, annotate, missing

__all__ = ["MAX_BYTES", "SCHEMA", "SUFFIX", "add", "add_from_file", "path_of", "write"]

SCHEMA = "stallscope.sessions/1"
SUFFIX = ".sessions.json"
MAX_BYTES = 64 << 20
"""The most bytes: enough for 50,000 connections with statements of 1,024 characters."""

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _File(msgspec.Struct, frozen=True):
    schema: str
    capture_time_ns: Index | None
    """Time of the capture: another capture with the same name has another time."""
    sessions: Sessions


_decoder = msgspec.json.Decoder(_File)


def path_of(capture: Path) -> Path:
    """Return where the sessions of a capture are, by the path of the capture."""
    return capture.parent / (capture.name.removesuffix(".zst").removesuffix(".jsonl") + SUFFIX)


def write(capture: Capture, sessions: Sessions, path: Path) -> None:
    """Write the redacted sessions of a capture next to it; ``path`` is that of the capture.

    Raises: StallscopeError.
    """
    data = msgspec.json.encode(_File(SCHEMA, capture.time_ns, sessions))
    atomicfile.write(path_of(path), [data, b"\n"], force=True)


def add_from_file(capture: Capture, path: Path) -> Capture:
    """Return the capture of a file with its file of sessions, if there is one."""
    if str(path) == "-":
        return capture
    beside = path_of(path)
    data: bytes | None = None
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        try:
            with os.fdopen(os.open(beside, _FLAGS), "rb") as file:
                data = file.read(MAX_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            return missing(capture, f"{beside}: {error.strerror or error}")
    return capture if data is None else add(capture, data, str(beside))


def add(capture: Capture, data: bytes, name: str) -> Capture:
    """Return the capture with sessions; unreadable data becomes a note with ``name``."""
    try:
        return annotate(capture, _decode(data, capture))
    except StallscopeError as error:
        return missing(capture, f"{name}: {error}")


def _decode(data: bytes, capture: Capture) -> Sessions:
    if len(data) > MAX_BYTES:
        raise StallscopeError(f"larger than {MAX_BYTES >> 20} MiB; it is not read")
    try:
        file = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise StallscopeError(f"cannot be read: {one_line(str(error), 300)}") from None
    if file.schema != SCHEMA:
        raise StallscopeError(
            f"schema {one_line(file.schema, 40)!r}, and this stallscope reads {SCHEMA}"
        )
    if file.capture_time_ns != capture.time_ns:
        raise StallscopeError("belongs to another capture")
    return file.sessions
