# SPDX-License-Identifier: Apache-2.0
"""The key of a server: the same after each restart, another for each other server and host."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stallscope.base import host
from stallscope.collectors.processes import PROC, Server

__all__ = ["server_key"]

_MAX_MOUNTS = 4 << 20
_MAX_LABEL = 40
_UNIT = re.compile(r"/([^/\n]+\.service)$", re.MULTILINE)
_OCTAL = re.compile(r"\\([0-7]{3})")
_PLAIN = re.compile(r"[^A-Za-z0-9.]+")
_NAMING = ("--defaults-file=", "--defaults-group-suffix=", "--port=", "--server-id=", "--config=")
"""Options that stay the same when a server is started again, and differ between servers."""


class _Mounted(msgspec.Struct, frozen=True):
    """The place of a path: what is mounted there, and where in that file system it lies."""

    point: str
    source: str
    path: str
    layer: str = ""
    """Of an overlay: the directory with the container's own files."""


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
    """Return what is mounted at a path of the server, where that is not what the agent sees."""
    theirs = _mounted(path, proc / str(pid) / "mountinfo")
    if theirs is None or _same(theirs, _mounted(path, proc / "self" / "mountinfo")):
        return []
    return [theirs.source, theirs.path, theirs.layer]


def _same(theirs: _Mounted, ours: _Mounted | None) -> bool:
    """Compare without the mount point: a service's hardening binds directories onto themselves."""
    return ours is not None and (theirs.source, theirs.path, theirs.layer) == (
        ours.source,
        ours.path,
        ours.layer,
    )


def _mounted(path: str, mountinfo: Path) -> _Mounted | None:
    """Return the place of a path by the last mount that covers it; None: unknown."""
    best: _Mounted | None = None
    for mount in _mounts(mountinfo):
        point = mount.point.rstrip("/")
        covers = path == point or path.startswith(f"{point}/")
        if covers and (best is None or len(point) >= len(best.point.rstrip("/"))):
            best = mount
    if best is None:
        return None
    below = path[len(best.point.rstrip("/")) :]
    return msgspec.structs.replace(best, path=best.path.rstrip("/") + below)


def _mounts(mountinfo: Path) -> Iterator[_Mounted]:
    text = ""
    with contextlib.suppress(OSError), mountinfo.open("rb") as file:
        text = file.read(_MAX_MOUNTS).decode("utf-8", "surrogateescape")
    for line in text.splitlines():
        # proc_pid_mountinfo(5): "36 35 98:0 /root /point options - type source super-options"
        head, _, tail = line.partition(" - ")
        fields, source = head.split(), tail.split()
        if len(fields) < 5 or len(source) < 2:
            continue
        layer = ""
        if source[0] == "overlay" and len(source) > 2:
            found = re.search(r"(?:^|,)upperdir=([^,]*)", source[2])
            layer = found.group(1) if found is not None else ""
        yield _Mounted(_plain(fields[4]), _plain(source[1]), _plain(fields[3]), layer)


def _plain(field: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), field)


def _unit(cgroup: Path) -> str:
    """Return the systemd service of a process; "": none. A login's scope has a number each time."""
    text = ""
    with contextlib.suppress(OSError), cgroup.open("rb") as file:
        text = file.read(1 << 16).decode("utf-8", "replace")
    found = _UNIT.search(text)
    return "" if found is None else found.group(1)
