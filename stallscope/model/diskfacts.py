# SPDX-License-Identifier: Apache-2.0
"""What is known of the disks, file systems and mounts that a server's files are on.

Nothing here is judged: analyzers/disks/ does that. Texts of the kernel are kept as they are, by the
name of their file, so that advice can name its source. Every name is hostile input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

__all__ = ["DURABLE", "Device", "DiskFacts", "FileSystem", "Place", "as_int"]

DURABLE = ("data", "redo", "binlog", "undo", "doublewrite")
"""Roles of places whose content must survive a crash."""


def as_int(text: str | None) -> int | None:
    """Return a number of the kernel or of an option; None where it is none."""
    try:
        return int(text) if text is not None and len(text) < 32 else None
    except ValueError:
        return None


class Device(msgspec.Struct, frozen=True):
    """A block device: a disk, a partition, or one that is made of others."""

    name: str
    """The kernel's: ``sda1``, ``dm-0``."""
    path: str
    """Its folder in /sys."""
    kind: str
    """``disk``, ``partition``, ``dm``, ``md`` or ``loop``."""
    texts: Mapping[str, str]
    """What its files say, by their path below ``path``: ``queue/scheduler``."""
    below: tuple[str, ...] = ()
    """The devices that it is made of."""
    backing: str | None = None
    """Of a loop device: the mount point of the file that it is made of."""

    def number(self, key: str) -> int | None:
        """Return a file's number, None where it has none."""
        return as_int(self.texts.get(key))

    def source(self, key: str) -> str:
        """Return the path of a file."""
        return f"{self.path}/{key}"


class FileSystem(msgspec.Struct, frozen=True):
    """A mount, as the server sees it. Sizes in bytes; None: not known."""

    point: str
    kind: str
    device: str
    """What it is mounted from, as it says."""
    options: Mapping[str, str]
    """Of the mount and of the file system; an option without a value has ``""``."""
    source: str
    """The mountinfo that has it."""
    devices: tuple[str, ...] = ()
    """Names of the block devices directly below; those of an overlay's upper directory too."""
    upper: str | None = None
    """Of an overlay: the mount point of its upper directory."""
    block_bytes: int | None = None
    size_bytes: int | None = None
    free_bytes: int | None = None
    inodes: int | None = None
    """0: the file system has no fixed number."""
    free_inodes: int | None = None
    texts: Mapping[str, str] = {}
    """Files of the kernel about it, by their whole path; the last name distinguishes them."""
    log_bytes: int | None = None
    """XFS: the size of its log."""
    stripe_bytes: int | None = None
    """Stripe unit; 0: none."""
    width_bytes: int | None = None

    def text(self, name: str) -> tuple[str, str] | None:
        """Return path and text of a file of the kernel by its last name."""
        return next(
            ((path, text) for path, text in self.texts.items() if path.endswith(f"/{name}")), None
        )


class Place(msgspec.Struct, frozen=True):
    """A directory of the server, and what it is for."""

    role: str
    """``data``, ``redo``, ``binlog``, ``undo``, ``doublewrite``, ``relay`` or ``temporary``."""
    path: str
    """As the server names it."""
    origin: str
    """Where this path is from: ``@@datadir``, ``--datadir``, ``open files``."""
    mount: str | None = None
    """Mount point of its file system; None: not known, ``why`` says why."""
    why: str | None = None
    nocow: bool | None = None
    """Whether its files have the attribute C (no copy on write)."""
    extents: bool | None = None
    """ext4: whether its files are mapped by extents."""
    journaled: bool | None = None
    """ext4: whether a file has the attribute j (its data go through the journal)."""
    cluster_bytes: int | None = None
    """ext4: the least that a file takes, by its smallest files."""
    direct: bool | None = None
    """Whether the server has files here open with O_DIRECT; None: none is open, or unreadable."""
    file: str | None = None
    """The file that these were read of."""


class DiskFacts(msgspec.Struct, frozen=True):
    """All facts that were collected at one moment."""

    places: tuple[Place, ...]
    mounts: Mapping[str, FileSystem]
    devices: Mapping[str, Device]
    kernel: Mapping[str, str]
    """Settings of the host by path: ``/proc/sys/vm/swappiness``."""
    variables: Mapping[str, str] = {}
    """The server's settings, by lower-case name."""
    variables_from: str = ""
    status: Mapping[str, float] = {}
    family: str | None = None
    missing: tuple[str, ...] = ()
    """What could not be read, and why: sentences."""

    def mount_of(self, place: Place) -> FileSystem | None:
        """Return the file system of a place."""
        return None if place.mount is None else self.mounts.get(place.mount)

    def stack(self, mount: FileSystem) -> tuple[Device, ...]:
        """Return all devices below a mount, from the top down, each once."""
        found: dict[str, Device] = {}
        todo = list(mount.devices)
        while todo:
            device = self.devices.get(todo.pop(0))
            if device is None or device.name in found:
                continue
            found[device.name] = device
            todo += device.below
            backing = self.mounts.get(device.backing or "")
            todo += backing.devices if backing is not None else ()
        return tuple(found.values())

    def bottoms(self, mount: FileSystem) -> tuple[Device, ...]:
        """Return the devices that are made of no other: the disks."""
        return tuple(
            device
            for device in self.stack(mount)
            if not device.below and device.backing is None and device.kind != "partition"
        )

    def places_on(self, mount: FileSystem) -> Iterator[Place]:
        """Yield the places on a mount, or on one that lies above it."""
        for place in self.places:
            on = self.mount_of(place)
            seen = 0
            while on is not None and seen < 16:
                if on.point == mount.point:
                    yield place
                    break
                lower = on.upper
                if lower is None:
                    backings = (device.backing for device in self.stack(on) if device.backing)
                    lower = next(backings, None)
                on = self.mounts.get(lower or "")
                seen += 1

    def roles_on(self, mount: FileSystem) -> tuple[str, ...]:
        """Return the roles of the places on a mount, each once."""
        return tuple(dict.fromkeys(place.role for place in self.places_on(mount)))

    def is_durable(self, mount: FileSystem) -> bool:
        """Return whether something lies on it that must survive a crash."""
        return any(role in DURABLE for role in self.roles_on(mount))
