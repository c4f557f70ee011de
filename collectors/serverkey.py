# SPDX-License-Identifier: Apache-2.0
"""The key of a server: the same after each restart, another for each other server and host."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from stallscope.base import host, mounts
from stallscope.collectors.processes import PROC, Server

__all__ = ["server_key"]

_MAX_LABEL = 40
_UNIT = re.compile(r"/([^/\n]+\.service)$", re.MULTILINE)
_PLAIN = re.compile(r"[^A-Za-z0-9.]+")
_NAMING = ("--defaults-file=", "--defaults-group-suffix=", "--port=", "--server-id=", "--config=")
"""Options that stay the same when a server is started again, and differ between servers."""


def server_key(server: Server, *, proc: Path = PROC, host_id: str | None = None) -> str:
    """Return the key of a server: a readable part, and eight hex digits that identify it.

    They are of the host, and of the first of these that is known: the data directory, the socket,
    the program with its options and its systemd unit. The pid is not in it, nor what differs from
    start to start. A data directory that the agent sees elsewhere, or not at all, is that of a
    container: then what is mounted there is part of the key, since every container has the same
    paths. ``/proc/PID/mountinfo`` says so to all users, unlike ``/proc/PID/root``.
    """
    place, label, facts = _identity(server, proc)
    own = host.host_id() if host_id is None else host_id
    readable = _PLAIN.sub("_", label).strip("_.")[-_MAX_LABEL:].lstrip("_.") or "server"
    return f"{readable}-{host.digest(own, place, *facts)}"


def _identity(server: Server, proc: Path) -> tuple[str, str, list[str]]:
    pid = server.main.pid
    # A process that has just been started is still in "/".
    if server.datadir is not None and server.datadir != "/":
        path = os.path.normpath(server.datadir)
        return "datadir", path, [path, *_elsewhere(path, pid, proc)]
    if server.sockets:
        path = server.sockets[0]
        return "socket", path, [path, *_elsewhere(path, pid, proc)]
    options = [arg for arg in server.main.argv[1:] if arg.startswith(_NAMING)]
    unit = _unit(proc / str(pid) / "cgroup")
    label = unit.removesuffix(".service") or server.name
    return "program", label, [server.name, *map(str, server.ports), unit, *options]


def _elsewhere(path: str, pid: int, proc: Path) -> list[str]:
    """Return what is mounted at a path of the server, where that is not what the agent sees.

    The mount point is not compared: a service's hardening binds directories onto themselves.
    """
    theirs = mounts.place(path, proc / str(pid) / "mountinfo")
    if theirs is None:
        return []
    found = [theirs.source, theirs.path, theirs.layer]
    ours = mounts.place(path, proc / "self" / "mountinfo")
    same = ours is not None and found == [ours.source, ours.path, ours.layer]
    return [] if same else found


def _unit(cgroup: Path) -> str:
    """Return the systemd service of a process; "": none. A login's scope has a number each time."""
    text = ""
    with contextlib.suppress(OSError), cgroup.open("rb") as file:
        text = file.read(1 << 16).decode("utf-8", "replace")
    found = _UNIT.search(text)
    return "" if found is None else found.group(1)
