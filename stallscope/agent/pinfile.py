# SPDX-License-Identifier: Apache-2.0
"""What a server was when an agent first watched it, for the agent that is started later: otherwise
any program of the name could be that server then.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import msgspec

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.collectors.pins import Pin
from stallscope.model.incident import TargetEntry
from stallscope.store import files, layout
from stallscope.store.records import DAMAGE, encode
from stallscope.store.serverstate import PIN, ServerState

__all__ = ["Kept", "find", "last", "save"]

_log = logging.getLogger(__name__)
_MAX_PIN = 1 << 16


class Kept(msgspec.Struct, frozen=True):
    """What is kept of a server."""

    words: str
    """By which the user names the server: other words may mean another one."""
    pin: Pin
    target: TargetEntry | None = None
    """Its process that was watched last."""
    schema: str = "stallscope.pin/1"


_decoder = msgspec.json.Decoder(Kept)


def find(dest: Path, words: str) -> tuple[ServerState, Kept] | None:
    """Return the server of these words that was watched last; None: none was."""
    found: list[tuple[int, ServerState, Kept]] = []
    with contextlib.suppress(OSError), files.folder(dest / layout.SERVERS) as above:
        for key in filter(layout.is_server_key, files.names(above)):
            with contextlib.suppress(OSError, StallscopeError, *DAMAGE):
                with files.folder(key, above) as inside:
                    status = files.regular(PIN, inside)
                    kept = _decoder.decode(files.read(PIN, inside, _MAX_PIN))
                if status is not None and kept.words == words:
                    state = ServerState(dest / layout.SERVERS / key)
                    found.append((status.st_mtime_ns, state, kept))
    latest = max(found, key=lambda one: one[0], default=None)
    return None if latest is None else latest[1:]


def last(server: ServerState) -> TargetEntry | None:
    """Return the process of a server that was watched last; None: it is not known."""
    try:
        with files.folder(server.path) as inside:
            return _decoder.decode(files.read(PIN, inside, _MAX_PIN)).target
    except (OSError, StallscopeError, *DAMAGE):
        return None


def save(server: ServerState, words: str, pin: Pin, target: TargetEntry) -> None:
    """Keep it. A disk that is full is a line in the log: the agent works without."""
    try:
        data = [encode(Kept(words, pin, target)), b"\n"]
        atomicfile.write(server.path / PIN, data, force=True)
    except StallscopeError as error:
        _log.warning("%s", error)
