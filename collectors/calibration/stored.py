# SPDX-License-Identifier: Apache-2.0
"""Calibrations that are kept, a file a build: offsets alone, no data of the server."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from stallscope.base import atomicfile, trust
from stallscope.base.errors import StallscopeError
from stallscope.collectors import ownclaims
from stallscope.model.capture import Index

__all__ = ["Calibration", "folders", "load", "save", "text"]

SCHEMA = "stallscope.calibration/1"
SYSTEM = Path("/var/lib/stallscope")
_MAX_BYTES = 256 << 10
_BUILD = re.compile(r"[0-9a-z-]{8,140}")

_Key = Annotated[str, msgspec.Meta(pattern=r"\A(?a:[A-Za-z_][\w.#<>:,*&()~-]{0,94})\Z")]
_Offset = Annotated[int, msgspec.Meta(ge=-(1 << 40), le=1 << 40)]


class Calibration(msgspec.Struct, frozen=True):
    """Where one build of a server keeps its connections."""

    build: str
    """Its build-id, or a hash of its beginning (collectors/calibration/build.py)."""
    program: str
    version: str
    """As the server reports it."""
    time_ns: Index
    layout: Annotated[dict[_Key, _Offset], msgspec.Meta(max_length=512)]
    """Keys for the probe: docs/calibration.md."""
    unknown: tuple[str, ...] = ()
    """Fields that were not found, or of which several places disagreed."""
    compared: int = 0
    """Connections for which the server's memory and SQL were compared."""
    schema: str = SCHEMA


_decoder = msgspec.json.Decoder(Calibration)
_DAMAGE = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)


def folders() -> tuple[Path, ...]:
    """Return the folders of calibrations, the first to write first."""
    own = trust.own_folder("XDG_STATE_HOME", ".local/state", "stallscope/calibrations")
    system = SYSTEM / "calibrations"
    if own is None:
        return (system,)
    return (system, own) if os.access(SYSTEM, os.W_OK) else (own, system)


def load(build: str) -> Calibration | None:
    """Return the calibration of a build; None where there is none that can be used.

    One that other users can change is left out, with a warning; the agent's account is trusted.
    """
    if not _BUILD.fullmatch(build):
        return None
    for folder in folders():
        with contextlib.suppress(OSError, *_DAMAGE):
            try:
                number = trust.open_file(folder / f"{build}.json", owners=ownclaims.accounts())
            except trust.DistrustError as error:
                if os.path.lexists(folder / f"{build}.json"):
                    trust.warn(str(error))
                continue
            with open(number, "rb") as file:
                found = _decoder.decode(file.read(_MAX_BYTES))
            if found.schema == SCHEMA and found.build == build:
                return found
    return None


def save(calibration: Calibration) -> Path:
    """Keep a calibration. Raises: StallscopeError."""
    folder = folders()[0]
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise StallscopeError(f"cannot make {folder}: {error.strerror or error}") from error
    path = folder / f"{calibration.build}.json"
    data = msgspec.json.format(msgspec.json.encode(calibration))
    atomicfile.write(path, [data, b"\n"], force=True, mode=0o644, sync=False)
    return path


def text(layout: Mapping[str, int]) -> str:
    """Return a layout as the probe's ``--layout`` takes it."""
    return " ".join(f"{key}={value}" for key, value in sorted(layout.items()))
