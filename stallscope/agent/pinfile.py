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
from stallscope.store import files, layout
from stallscope.store.records import DAMAGE, encode
from stallscope.store.serverstate import PIN, ServerState

__all__ = ["load", "save"]

_log = logging.getLogger(__name__)
_MAX_PIN = 1 << 16


class _Kept(msgspec.Struct, frozen=True):
    words: str
    """By which the user names the server: other words may mean another one."""
    pin: Pin
    schema: str = "stallscope.pin/1"


_decoder = msgspec.json.Decoder(_Kept)


def load(dest: Path, words: str) -> Pin | None:
    """Return what the server of these words was; None: it is not known."""
    found: list[tuple[int, Pin]] = []
    with contextlib.suppress(OSError), files.folder(dest / layout.SERVERS) as above:
        for key in filter(layout.is_server_key, files.names(above)):
            with contextlib.suppress(OSError, StallscopeError, *DAMAGE):
                with files.folder(key, above) as inside:
                    status = files.regular(PIN, inside)
                    kept = _decoder.decode(files.read(PIN, inside, _MAX_PIN))
                if status is not None and kept.words == words:
                    found.append((status.st_mtime_ns, kept.pin))
    return max(found, key=lambda one: one[0], default=(0, None))[1]


def save(server: ServerState, words: str, pin: Pin) -> None:
    """Keep it. A disk that is full is a line in the log: the agent works without."""
    try:
        data = [encode(_Kept(words, pin)), b"\n"]
        atomicfile.write(server.path / PIN, data, force=True)
    except StallscopeError as error:
        _log.warning("%s", error)
