# SPDX-License-Identifier: Apache-2.0
"""The control groups of a process, of version 1 or 2: /proc/PID/cgroup, /proc/self/mountinfo."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from stallscope.base.errors import StallscopeError

__all__ = ["Group", "groups"]

MAX_DEPTH = 8
_MAX_TABLE = 1 << 20
_DELETED = " (deleted)"


class Group(NamedTuple):
    """A control group."""

    folder: str
    name: str
    """Its path within the hierarchy: ``/system.slice/mariadb.service``."""
    old: bool
    """Whether it is of version 1."""


def groups(pid: int, controller: str, proc: Path = Path("/proc")) -> tuple[Group, ...]:
    """Return the group that limits a process by ``controller`` (``cpu``, ``memory``), then its
    parents; the root of the hierarchy, which has no limit, is left out.

    Without a controller: its group of version 2. Raises: StallscopeError.
    """
    name, old = _name(pid, controller, proc)
    root, mount = _mount(controller if old else "", proc)
    found: list[Group] = []
    inside = os.path.relpath(name, root)
    while inside != "." and not inside.startswith("..") and len(found) < MAX_DEPTH:
        found.append(Group(os.path.join(mount, inside), os.path.join("/", root, inside), old))
        inside = os.path.dirname(inside) or "."
    return tuple(found)


def _name(pid: int, controller: str, proc: Path) -> tuple[str, bool]:
    unified = None
    for line in _text(proc / str(pid) / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        name = name.removesuffix(_DELETED)
        if controller and controller in controllers.split(","):
            return name, True
        if number == "0" and not controllers:
            unified = name
    if not unified:
        raise StallscopeError(f"process {pid} is not in a version 2 cgroup")
    return unified, False


def _mount(controller: str, proc: Path) -> tuple[str, str]:
    """Return the group at which a hierarchy is mounted, and where: the last of its mounts."""
    found = None
    for line in _text(proc / "self" / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        words, kind = before.split(), after.split()
        if len(words) < 5 or len(kind) < 3:
            continue
        wanted = (
            kind[0] == "cgroup" and controller in kind[2].split(",")
            if controller
            else kind[0] == "cgroup2"
        )
        if wanted:
            found = words[3], words[4]
    if found is None:
        raise StallscopeError(f"no cgroups{controller and ' of '}{controller} are mounted")
    return found


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_TABLE).decode("utf-8", "backslashreplace")
    except OSError as error:
        raise StallscopeError(f"cannot read {path}: {error.strerror}") from error
