# SPDX-License-Identifier: Apache-2.0
"""Whether the file systems of a server have room: those of its data, logs and temporary files."""

from __future__ import annotations

import contextlib
import os

from stallscope.base.errors import StallscopeError
from stallscope.collectors import rootpath
from stallscope.collectors.disks import mounts, serverpaths
from stallscope.collectors.disks.tree import Tree
from stallscope.collectors.host.collecting import HostCollector
from stallscope.collectors.paths import asking
from stallscope.collectors.processes import Server
from stallscope.model.diskfacts import Place
from stallscope.server.families import family

__all__ = ["Space"]

SEARCH_SECONDS = 60.0
"""From one search for the server's folders to the next: it opens its logs later."""
FULL_BYTES = 4 << 20
"""InnoDB extends a file by up to four extents of 1 MiB at once."""
ROLES = ("data", "redo", "binlog", "temporary")
"""Those with a trigger."""
_TEMPORARY = "/tmp"  # noqa: S108
"""Where MySQL and MariaDB keep temporary files without tmpdir."""


class Space(HostCollector):
    """``space.data.free_bytes``, ``.free_inodes``, ``.read_only`` (0 or 1), as far as the file
    system says them, for processes without privileges; and the same of each of ``redo``,
    ``binlog``, ``relay``, ``undo``, ``doublewrite`` and ``temporary`` that is on another file
    system than the data. ``space.read_only``: how many of these are.

    ``.full``: 1 where less than FULL_BYTES or no inode is free; 0 also of what has no file system
    of its own.
    """

    name = "space"
    interval = 5.0
    deadline = 2.0

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        self._found: dict[str, str] = {}
        self._denied = False
        """Whether the file system of one of the server's folders is not known."""
        self._searched_ns: int | None = None
        self._points: dict[str, str] = {}
        """The mount point of each role, as the server sees it: ``{"binlog": "/binlog"}``."""
        self._together: dict[str, tuple[str, ...]] = {}
        """The other roles that share a role's file system."""

    def read(self, clock_ns: int) -> dict[str, float]:
        if self._searched_ns is None or clock_ns - self._searched_ns > SEARCH_SECONDS * 1e9:
            self._search()
            self._searched_ns = clock_ns
        values: dict[str, float] = {}
        errors = []
        for role, path in self._found.items():
            try:
                values |= _numbers(role, asking.space(path))
            except OSError as error:
                errors.append(f"{self._points.get(role, path)}: {error.strerror}")
        if errors and not values:
            raise StallscopeError(f"the room on disks is not known: {errors[0]}")
        if values and not (errors or self._denied):
            values = {f"space.{role}.full": 0.0 for role in ROLES} | values
            values["space.read_only"] = sum(
                value for name, value in values.items() if name.endswith(".read_only")
            )
        return values

    def names(self) -> dict[str, str]:
        found = {f"space.{role}": point for role, point in self._points.items()}
        shared = self._together.items()
        return found | {f"space.{role}.with": " ".join(others) for role, others in shared}

    def _search(self) -> None:
        pid = self._server.main.pid
        table = mounts.read(Tree(), pid)
        of_device: dict[int, str] = {}
        together: dict[str, list[str]] = {}
        found: dict[str, str] = {}
        denied: OSError | None = None
        for place in self._places():
            try:
                path = rootpath.inside(pid, place.path)
                device = asking.status(path).st_dev
            except OSError as error:
                denied = error if denied is None or place.role == "data" else denied
                continue
            first = of_device.setdefault(device, place.role)
            if first != place.role:
                together.setdefault(first, []).append(place.role)
            elif place.role not in found:
                found[place.role] = path
                number = f"{os.major(device)}:{os.minor(device)}"
                mount = mounts.mount_of(table, place.path, number)
                self._points[place.role] = place.path if mount is None else mount.point
        if not found and denied is not None:
            raise StallscopeError(f"the folders of the server cannot be read: {denied.strerror}")
        self._found = found
        self._denied = denied is not None
        self._together = {role: tuple(dict.fromkeys(others)) for role, others in together.items()}

    def _places(self) -> tuple[Place, ...]:
        main, tree = self._server.main, Tree()
        kind = family(main.exe, main.comm)
        files = serverpaths.open_files(tree, main.pid)
        own_root = True
        with contextlib.suppress(OSError):
            own_root = asking.real(f"/proc/{main.pid}/root") != "/"
        options: dict[str, str] = {}
        if kind in ("mysql", "mariadb"):
            options, _ = serverpaths.options_of(main.argv, files=not own_root)
        places = serverpaths.places(options, "--{}", self._server.datadir, files, kind)
        if kind in ("mysql", "mariadb") and all(place.role != "temporary" for place in places):
            places += (Place("temporary", _TEMPORARY, "the default"),)
        return places


def _numbers(role: str, found: os.statvfs_result) -> dict[str, float]:
    values = {
        f"space.{role}.free_bytes": float(found.f_bavail * found.f_frsize),
        f"space.{role}.read_only": float(bool(found.f_flag & os.ST_RDONLY)),
    }
    full = values[f"space.{role}.free_bytes"] < FULL_BYTES
    if found.f_files:  # btrfs and others have no such limit
        values[f"space.{role}.free_inodes"] = float(found.f_favail)
        full |= not found.f_favail
    values[f"space.{role}.full"] = float(full)
    return values
