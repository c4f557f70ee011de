# SPDX-License-Identifier: Apache-2.0
"""What a store keeps of one server: ``DEST/servers/KEY``.

The kernel holds the locks, so they end with their process, and count in every container and pid
namespace of the host. Other hosts have other keys (collectors/serverkey.py), so a lock need not
count between hosts.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.base.times import Count, local
from stallscope.store import files, layout, locking
from stallscope.store.records import DAMAGE, encode

__all__ = [
    "AGENT_LOCK",
    "CRON_LOCK",
    "PIN",
    "STATE",
    "Holder",
    "ServerBusy",
    "ServerState",
]

AGENT_LOCK = "agent.lock"
CRON_LOCK = "cron.lock"
STATE = "state.json"
PIN = "pin.json"
"""What the server was when it was first watched."""

_MAX_HOLDER = 4096
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Holder(msgspec.Struct, frozen=True):
    """Who holds a lock, for messages: the lock itself is the kernel's."""

    pid: Count
    """In its own pid namespace."""
    host: str
    since_ns: Count = 0

    def __str__(self) -> str:
        since = f" since {local(self.since_ns)[:19]}" if self.since_ns else ""
        return f"pid {self.pid} on {one_line(self.host, 64)}{since}"


class ServerBusy(locking.Locked):
    """Another process holds a lock of the server; the message names its file."""

    def __init__(self, message: str, holder: Holder | None) -> None:
        super().__init__(message)
        self.holder = holder


_holder = msgspec.json.Decoder(Holder)


class ServerState:
    """The folder of one server; several processes may have it open."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, dest: Path, key: str) -> ServerState:
        """Make the folder of the server ``key`` (``server_key``) in a store, if it is not there.

        Raises: StallscopeError.
        """
        if not layout.is_server_key(key):
            raise StallscopeError(f"{one_line(key, 80)!r} is not the key of a server")
        above = dest / layout.SERVERS
        files.make_folder(above)
        files.make_folder(above / key)
        return cls(above / key)

    def lock(self, name: str) -> locking.Held:
        """Lock the file ``name``, and write into it who this is.

        Raises: ServerBusy where another process holds it, with the holder where that is known.
        StallscopeError where it cannot be locked.
        """
        path = self.path / name
        try:
            os.close(os.open(path, _OPEN, 0o600))
            held = locking.take(path)
        except locking.Locked:
            holder = self._holder(name)
            raise ServerBusy(str(path), holder) from None
        except OSError as error:
            raise StallscopeError(f"cannot lock {path}: {files.one_line_of(error)}") from error
        with contextlib.suppress(OSError):  # a full disk: the lock holds without a name
            _sign(path)
        return held

    def _holder(self, name: str) -> Holder | None:
        try:
            with files.folder(self.path) as inside:
                return _holder.decode(files.read(name, inside, _MAX_HOLDER))
        except (OSError, StallscopeError, *DAMAGE):
            return None


def _sign(path: Path) -> None:
    """Write who holds a lock into its file, which must stay the same file."""
    descriptor = os.open(path, _OPEN, 0o600)
    try:
        text = encode(Holder(os.getpid(), os.uname().nodename, time.time_ns())) + b"\n"
        os.ftruncate(descriptor, 0)
        os.write(descriptor, text)
    finally:
        os.close(descriptor)
