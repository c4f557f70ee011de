# SPDX-License-Identifier: Apache-2.0
"""``postmaster.pid``: where a PostgreSQL listens, as it says itself in its data directory.

The file is the server's: a container can have anything in its place.
"""

from __future__ import annotations

import re

import msgspec

from stallscope.base.text import one_line
from stallscope.collectors import processes, rootpath

__all__ = ["NAME", "Postmaster", "parse", "read"]

NAME = "postmaster.pid"
MAX_BYTES = 4096
MAX_LINES = 8
MAX_PATH = 1024
MAX_PORT = 65_535
# Lines of the file, src/include/utils/pidfile.h.
_PID, _PORT, _FOLDER, _STATUS = 0, 3, 4, 7
_NUMBER = re.compile(r"-?[0-9]{1,10}")


class Postmaster(msgspec.Struct, frozen=True):
    """What the file says."""

    pid: int
    """In the server's pid namespace."""
    port: int | None = None
    folder: str | None = None
    """The first folder of its sockets; None: it has none."""
    status: str | None = None
    """``ready``, ``starting``, ``stopping`` or ``standby``; before PostgreSQL 10 there is none."""

    @property
    def socket(self) -> str | None:
        """Return the path of the socket."""
        if self.folder is None or self.port is None:
            return None
        return f"{self.folder.rstrip('/')}/.s.PGSQL.{self.port}"


def parse(data: bytes) -> Postmaster | None:
    """Return what the file says; None where it is none of a postmaster."""
    lines = data[:MAX_BYTES].decode("utf-8", "surrogateescape").split("\n")[:MAX_LINES]
    lines = [line.strip() for line in lines] + [""] * (MAX_LINES - len(lines))
    pid = _number(lines[_PID])
    if pid is None or pid <= 0:  # negative: a single-user server, which listens nowhere
        return None
    port = _number(lines[_PORT])
    folder = lines[_FOLDER]
    is_path = folder.startswith("/") and len(folder) <= MAX_PATH and "\0" not in folder
    return Postmaster(
        pid=pid,
        port=port if port is not None and 0 < port <= MAX_PORT else None,
        folder=folder if is_path else None,
        status=one_line(lines[_STATUS].encode("utf-8", "replace").decode(), 20) or None,
    )


def read(pid: int, datadir: str) -> Postmaster | None:
    """Return what the file in the data directory of process ``pid`` says, as this process sees the
    directory; None where it cannot be read, or is of another postmaster."""
    data = rootpath.read(pid, f"{datadir}/{NAME}", MAX_BYTES)
    if data is None:
        return None
    found = parse(data)
    if found is None or found.pid not in (pid, *processes.namespace_pids(pid)):
        return None
    return found


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None
