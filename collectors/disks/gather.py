# SPDX-License-Identifier: Apache-2.0
"""All facts about the storage of one server. Nothing is written, and no device is read.

A file system that does not answer (NFS without its server) delays its own places alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from stallscope.collectors import rootpath
from stallscope.collectors.disks import blockdevices, filefacts, mounts, serverpaths
from stallscope.collectors.disks.mounts import Mount
from stallscope.collectors.disks.serverpaths import OpenFile
from stallscope.collectors.disks.tree import Tree
from stallscope.collectors.paths import asking
from stallscope.collectors.paths.asking import SilentDiskError
from stallscope.model.diskfacts import DiskFacts, FileSystem, Place

__all__ = ["Subject", "gather"]

MAX_DEPTH = 8
"""Mounts on devices on files on mounts."""

_SYSCTLS = tuple(
    f"/proc/sys/vm/{name}"
    for name in (
        "dirty_background_bytes",
        "dirty_background_ratio",
        "dirty_bytes",
        "dirty_ratio",
        "swappiness",
        "zone_reclaim_mode",
    )
)


class Subject(msgspec.Struct, frozen=True):
    """Whose storage it is. ``pid`` None: no server runs, its option files count."""

    pid: int | None
    family: str | None
    argv: tuple[str, ...] = ()
    datadir: str | None = None
    variables: Mapping[str, str] | None = None
    """By SQL; None: it was not asked, or did not answer."""
    status: Mapping[str, float] = {}


def gather(subject: Subject, *, root: Path = Path("/")) -> DiskFacts:
    """Collect the facts; what cannot be read is said in ``missing``."""
    return _Gathering(subject, Tree(root)).all()


class _Gathering:
    def __init__(self, subject: Subject, tree: Tree) -> None:
        self._subject = subject
        self._tree = tree
        self._who = "self" if subject.pid is None else str(subject.pid)
        self._own = mounts.read(tree, "self")
        self._theirs = mounts.read(tree, self._who)
        self._files: tuple[OpenFile, ...] = ()
        self._mounts: dict[str, FileSystem] = {}
        self._folders: list[str] = []
        self._missing: list[str] = []
        self._silent: set[str] = set()

    def all(self) -> DiskFacts:
        variables, where, origin = self._variables()
        if self._subject.pid is not None:
            self._files = serverpaths.open_files(self._tree, self._subject.pid)
            if not self._files:
                self._missing.append(
                    f"the open files of pid {self._subject.pid} cannot be read: run it with sudo"
                )
        of = serverpaths.places(
            variables, origin, self._subject.datadir, self._files, self._subject.family
        )
        if not of:
            self._missing.append("no directory of the server is known: give --datadir")
        found = tuple(self._place(place) for place in of)
        devices = blockdevices.walk(self._tree, self._folders, self._backing)
        if len(devices) >= blockdevices.MAX_DEVICES:
            self._missing.append(f"only the first {blockdevices.MAX_DEVICES} devices were read")
        return DiskFacts(
            places=found,
            mounts=self._mounts,
            devices=devices,
            kernel=dict(self._kernel()),
            variables=variables,
            variables_from=where,
            status=self._subject.status,
            family=self._subject.family,
            missing=tuple(self._missing),
        )

    def _variables(self) -> tuple[dict[str, str], str, str]:
        """Return the settings, where they are from, and how one is named."""
        if self._subject.variables is not None:
            named = {name.lower(): value for name, value in self._subject.variables.items()}
            return named, "SHOW GLOBAL VARIABLES", "@@{}"
        if self._subject.family == "postgres":
            return {}, "", "{}"
        options, notes = serverpaths.options_of(
            self._subject.argv, files=self._subject.pid is None or not self._has_own_root()
        )
        self._missing += notes
        return options, "its command line and option files", "--{}"

    def _has_own_root(self) -> bool:
        try:
            return self._tree.real(f"/proc/{self._who}/root") not in ("/", None)
        except SilentDiskError:
            return True

    def _kernel(self) -> Iterator[tuple[str, str]]:
        for path in _SYSCTLS:
            if (text := self._tree.text(path)) is not None:
                yield path, text
        memory = self._tree.text("/proc/meminfo") or ""
        for name in ("MemTotal", "MemAvailable"):
            if found := re.search(rf"^{name}:\s+(\d{{1,15}}) kB", memory, re.MULTILINE):
                yield f"/proc/meminfo {name}", str(int(found.group(1)) * 1024)
        cgroup = self._tree.text(f"/proc/{self._who}/cgroup") or ""
        if found := re.search(r"^0::(/\S{0,1024})$", cgroup, re.MULTILINE):
            path = os.path.normpath(f"/sys/fs/cgroup{found.group(1)}/io.max")
            if path.startswith("/sys/fs/cgroup/") and (text := self._tree.text(path)):
                yield path, text

    def _place(self, place: Place) -> Place:
        """Find the mount of a place, and what its files are like."""
        silent = self._silent_above(place.path)
        if silent is not None:
            return msgspec.structs.replace(place, why=f"{silent} does not answer")
        try:
            return self._look(place)
        except OSError as error:
            mount = mounts.mount_of(self._theirs, place.path, None)
            if isinstance(error, SilentDiskError) and mount is not None:
                self._silent.add(mount.point)
                self._mounts.setdefault(mount.point, self._plain(mount, self._who))
                return msgspec.structs.replace(place, mount=mount.point, why=error.strerror)
            return msgspec.structs.replace(place, why=error.strerror or str(error))

    def _silent_above(self, path: str) -> str | None:
        mount = mounts.mount_of(self._theirs, path, None)
        return mount.point if mount is not None and mount.point in self._silent else None

    def _look(self, place: Place) -> Place:
        here = self._inside(place.path)
        number = _number(asking.status(here).st_dev)
        theirs = self._without_root(here)
        mount, who, path = mounts.mount_of(self._theirs, theirs, number), self._who, theirs
        # In a recorded tree no number is that of the mount.
        other = mount is not None and mount.number != number and mount.kind != "btrfs"
        if mount is None or (other and self._tree.root == Path("/")):
            # Under chroot a server's own list has only what is mounted below its root.
            path = self._tree.real(f"/proc/{self._who}/root{theirs}") or theirs
            mount, who = mounts.mount_of(self._own, path, number) or mount, "self"
        if mount is None:
            return msgspec.structs.replace(place, why="no line of mountinfo has it")
        if mount.point not in self._mounts:
            self._mounts[mount.point] = self._file_system(mount, here, who, 0)
        of = filefacts.attributes(here, mount.kind)
        return msgspec.structs.replace(
            place,
            mount=mount.point,
            nocow=of.nocow,
            extents=of.extents,
            journaled=of.journaled,
            cluster_bytes=of.cluster_bytes,
            file=of.file,
            direct=self._is_direct(place),
        )

    def _inside(self, path: str) -> str:
        if self._subject.pid is None:
            return self._tree.path(path)
        if self._tree.root != Path("/"):
            return self._tree.path(f"/proc/{self._who}/root{path}")
        return rootpath.inside(self._subject.pid, path)

    def _without_root(self, here: str) -> str:
        above = self._tree.path("/" if self._subject.pid is None else f"/proc/{self._who}/root")
        return "/" + os.path.relpath(here, above) if above != "/" else asking.real(here)

    def _is_direct(self, place: Place) -> bool | None:
        """Return whether files of that role have O_DIRECT."""
        below = f"{place.path.rstrip('/')}/"
        flags = [
            file.flags
            for file in self._files
            if file.flags is not None
            and file.path.startswith(below)
            and (file.role == place.role or (place.role == "data" and file.path.endswith(".ibd")))
        ]
        return any(flag & os.O_DIRECT for flag in flags) if flags else None

    def _plain(self, mount: Mount, who: str) -> FileSystem:
        source = f"/proc/{who}/mountinfo"
        return FileSystem(mount.point, mount.kind, mount.device, mount.options, source)

    def _file_system(self, mount: Mount, here: str, who: str, depth: int) -> FileSystem:
        made = self._plain(mount, who)
        upper = None
        if mount.kind == "overlay" and depth < MAX_DEPTH:
            upper = self._below(mount.options.get("upperdir", ""), depth)
        folders = self._folders_of(mount)
        self._folders += folders
        names = [os.path.basename(folder) for folder in folders]
        space = filefacts.space(here)
        geometry = filefacts.geometry(here) if mount.kind == "xfs" else None
        above = self._mounts.get(upper or "")
        return msgspec.structs.replace(
            made,
            devices=tuple(names) or (above.devices if above is not None else ()),
            upper=upper,
            block_bytes=space.block_bytes,
            size_bytes=space.size_bytes,
            free_bytes=space.free_bytes,
            inodes=space.inodes,
            free_inodes=space.free_inodes,
            texts=mounts.texts_of(self._tree, mount.kind, names[0] if names else None),
            log_bytes=geometry.log_bytes if geometry else None,
            stripe_bytes=geometry.stripe_bytes if geometry else None,
            width_bytes=geometry.width_bytes if geometry else None,
        )

    def _below(self, path: str, depth: int) -> str | None:
        """Return the mount point of a directory or file of this host, and keep its facts."""
        if not path.startswith("/"):
            return None
        here = self._tree.path(path)
        try:
            number = _number(asking.status(here).st_dev)
        except SilentDiskError:
            raise
        except OSError:
            return None
        mount = mounts.mount_of(self._own, self._tree.real(path) or path, number)
        if mount is None:
            return None
        if mount.point not in self._mounts:
            self._mounts[mount.point] = self._file_system(mount, here, "self", depth + 1)
        return mount.point

    def _backing(self, file: str) -> tuple[str, tuple[str, ...]] | None:
        path = file.removesuffix(" (deleted)")
        try:
            point = self._below(path, 0)
        except SilentDiskError as error:
            self._missing.append(f"{path}, the file of a loop device: {error.strerror}")
            return None
        except OSError:
            return None
        if point is None:
            return None
        folders = [
            blockdevices.by_name(self._tree, f"/dev/{name}") for name in self._mounts[point].devices
        ]
        return point, tuple(folder for folder in folders if folder is not None)

    def _folders_of(self, mount: Mount) -> list[str]:
        """Return the folders in /sys of the devices that a file system is on."""
        major = mount.number.partition(":")[0]
        if major != "0":
            found = self._tree.real(f"/sys/dev/block/{mount.number}")
            return [found] if found is not None else []
        if mount.kind != "btrfs":
            return []
        first = blockdevices.by_name(self._tree, mount.device)
        if first is None:
            return []
        for of in self._tree.names("/sys/fs/btrfs"):
            names = self._tree.names(f"/sys/fs/btrfs/{of}/devices")
            if os.path.basename(first) in names:
                folders = [blockdevices.by_name(self._tree, f"/dev/{name}") for name in names]
                return [folder for folder in folders if folder is not None]
        return [first]


def _number(device: int) -> str:
    return f"{os.major(device)}:{os.minor(device)}"
