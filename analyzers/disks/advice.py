# SPDX-License-Identifier: Apache-2.0
"""What a rule about storage says, and how its commands are written."""

from __future__ import annotations

import shlex
from typing import Literal

import msgspec

from stallscope.base.text import clean, one_line
from stallscope.model.diskfacts import Device, DiskFacts, FileSystem

__all__ = [
    "Finding",
    "fine",
    "fstab",
    "in_fstab",
    "node",
    "quoted",
    "remount",
    "set_queue",
    "sized",
    "sysctl",
    "udev",
    "unknown",
    "volatile",
    "wrong",
]

Status = Literal["ok", "degraded", "unknown"]
Risk = Literal["loss", "speed", "space"]


class Finding(msgspec.Struct, frozen=True):
    """What one rule says of one subject."""

    rule: str
    status: Status
    what: str
    why: str | None = None
    """Why it matters for a database."""
    fix: str | None = None
    """The command that changes it now."""
    permanent: str | None = None
    """The command that keeps it so after a restart of the host."""
    risk: Risk | None = None
    """What it costs: committed data, speed, or space."""
    sources: tuple[str, ...] = ()
    """Where its facts are from."""


def fine(rule: str, what: str, *sources: str) -> Finding:
    """Return that a rule found nothing wrong."""
    return Finding(rule, "ok", one_line(what), sources=tuple(map(clean, sources)))


def unknown(rule: str, what: str, fix: str | None = None, *sources: str) -> Finding:
    """Return that a rule cannot decide."""
    text = f"not known: {one_line(what)}"
    return Finding(rule, "unknown", text, fix=fix, sources=tuple(map(clean, sources)))


def wrong(
    rule: str,
    risk: Risk,
    what: str,
    why: str,
    fix: str,
    permanent: str | None = None,
    *sources: str,
) -> Finding:
    """Return what is wrong. Names in the commands are to be ``quoted`` before."""
    return Finding(
        rule,
        "degraded",
        one_line(what),
        one_line(why),
        one_line(fix),
        None if permanent is None else one_line(permanent),
        risk,
        tuple(map(clean, sources)),
    )


def quoted(name: str) -> str:
    """Return a name for a shell. One that no terminal should get is written in its escapes, as
    ``$'…'``, which bash reads back."""
    safe = clean(name)
    if safe == name:
        return shlex.quote(name)
    data = name.encode("utf-8", "surrogateescape")
    plain = (chr(b) if 32 < b < 127 and b not in b"'\\" else f"\\x{b:02x}" for b in data)
    return f"$'{''.join(plain)}'"


def set_queue(device: Device, key: str, value: str | int) -> str:
    """Return the command that sets a file of a device."""
    return f"echo {value} | sudo tee {quoted(f'/sys/block/{device.name}/{key}')}"


def udev(device: Device, key: str, value: str | int) -> str:
    """Return the command that keeps it so: a rule of udev."""
    rule = f'ACTION=="add|change", KERNEL=="{device.name}", ATTR{{{key}}}="{value}"'
    name = f"/etc/udev/rules.d/60-database-{device.name}-{key.rpartition('/')[2]}.rules"
    return f"echo {quoted(rule)} | sudo tee {quoted(name)}"


def remount(mount: FileSystem, options: str) -> str:
    """Return the command that changes options of a mount that is in use."""
    return f"sudo mount -o remount,{options} {quoted(mount.point)}"


def fstab(mount: FileSystem, add: str = "", remove: str = "") -> str:
    """Return what to edit so that the next mount has it."""
    parts = [f"add {add}"] if add else []
    parts += [f"remove {remove}"] if remove else []
    return f"in /etc/fstab, options of {quoted(mount.point)}: {' and '.join(parts)}"


def node(mount: FileSystem) -> str:
    """Return the path of the device that a file system is on, for a command."""
    if len(mount.devices) == 1:
        return quoted(f"/dev/{mount.devices[0].replace('!', '/')}")
    return quoted(mount.device)


def in_fstab(mount: FileSystem, options: str) -> str:
    """Return the commands for options that only a new mount takes."""
    point = quoted(mount.point)
    return f"stop the server; sudo umount {point} && sudo mount -o {options} {point}"


def sysctl(**values: int) -> tuple[str, str]:
    """Return the commands that set values of vm: now, and for good."""
    words = [f"vm.{name}={value}" for name, value in values.items()]
    lines = "\\n".join(f"vm.{name} = {value}" for name, value in values.items())
    return (
        f"sudo sysctl -w {' '.join(words)}",
        f"printf '{lines}\\n' | sudo tee /etc/sysctl.d/90-database-{next(iter(values))}.conf",
    )


def sized(count: float) -> str:
    """Return bytes for people: ``64 KiB``."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def volatile(facts: DiskFacts, mount: FileSystem) -> tuple[tuple[Device, ...], bool]:
    """Return the disks below a mount with a cache that loses its content, and whether this is
    known of all of them."""
    bottoms = facts.bottoms(mount)
    caches = [device.texts.get("queue/write_cache") for device in bottoms]
    found = tuple(d for d, cache in zip(bottoms, caches, strict=True) if cache == "write back")
    return found, bool(bottoms) and None not in caches
