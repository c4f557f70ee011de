# SPDX-License-Identifier: Apache-2.0
"""Rules about the options of a mount: what a crash takes, and what costs speed."""

from __future__ import annotations

from collections.abc import Iterator

from stallscope.analyzers.disks.advice import (
    Finding,
    fine,
    fstab,
    in_fstab,
    node,
    remount,
    unknown,
    volatile,
    wrong,
)
from stallscope.model.diskfacts import DiskFacts, FileSystem

__all__ = [
    "access_times",
    "barriers",
    "discard",
    "journaled_data",
    "network",
    "synchronous",
    "unordered_data",
]

_EXT = ("ext3", "ext4")
_ON_DISKS = (*_EXT, "ext2", "xfs", "btrfs", "f2fs", "jfs", "reiserfs")


def barriers(facts: DiskFacts, mount: FileSystem) -> Iterator[Finding]:
    """Without barriers a sync does not reach what keeps data without power."""
    if mount.kind not in _ON_DISKS:
        return
    options = mount.options
    off = "nobarrier" in options or options.get("barrier") in ("0", "none")
    if not off:
        yield fine(
            "barriers", f"{mount.point}: a sync flushes the caches of the disks", mount.source
        )
        return
    caches, known = volatile(facts, mount)
    names = ", ".join(device.name for device in caches)
    fix = remount(mount, "barrier" if mount.kind != "ext4" else "barrier=1")
    keep = fstab(mount, remove="nobarrier, barrier=0")
    sources = (mount.source, *(device.source("queue/write_cache") for device in caches))
    if caches:
        what = f"{mount.point} is mounted without barriers, and {names} caches writes"
        why = (
            "A sync returns while its data is only in the disk's volatile cache. After a loss of"
            " power, committed transactions are gone, and pages, the doublewrite buffer's"
            " included, can be torn: the server may not start."
        )
        yield wrong("barriers", "loss", what, why, fix, keep, *sources)
    else:
        seen = (
            "no disk below says that it caches writes"
            if known
            else ("whether a disk below caches writes is not known")
        )
        what = f"{mount.point} is mounted without barriers; {seen}"
        why = (
            "Where no cache is volatile, barriers cost nothing, because the kernel sends no flush;"
            " where one is, commits are lost with the power. So there is nothing to gain."
        )
        yield wrong("barriers", "loss", what, why, fix, keep, *sources)


def synchronous(facts: DiskFacts, mount: FileSystem) -> Iterator[Finding]:
    """With sync each write waits for the disk."""
    if mount.kind not in (*_ON_DISKS, "nfs", "nfs4"):
        return
    found = [name for name in ("sync", "dirsync") if name in mount.options]
    if not found:
        yield fine(
            "synchronous", f"{mount.point}: writes wait for the disk only when synced", mount.source
        )
        return
    many = "each write" if found[0] == "sync" else "each file that is made or removed"
    yield wrong(
        "synchronous",
        "speed",
        f"{mount.point} is mounted with {found[0]}",
        f"With it {many} waits for the disk. The server syncs what must be kept itself; so its"
        " other writes (pages, temporary files, sorts) become as slow as commits.",
        remount(mount, "async"),
        fstab(mount, remove=", ".join(found)),
        mount.source,
    )


def access_times(facts: DiskFacts, mount: FileSystem) -> Iterator[Finding]:
    """Times of access make a write of each read."""
    if mount.kind not in (*_ON_DISKS, "zfs"):
        return
    name = next((n for n in ("noatime", "relatime") if n in mount.options), None)
    if "ro" in mount.options or name is not None:
        said = name or "read-only"
        yield fine("access-times", f"{mount.point}: {said}", mount.source)
        return
    yield wrong(
        "access-times",
        "speed",
        f"{mount.point} keeps the time of each access (strictatime)",
        "Each read through the page cache changes the file's inode, and so goes to the journal.",
        remount(mount, "noatime"),
        fstab(mount, "noatime", "strictatime"),
        mount.source,
    )


def discard(facts: DiskFacts, mount: FileSystem) -> Iterator[Finding]:
    """Discards at each deletion go before the server's own requests."""
    if mount.kind not in _ON_DISKS:
        return
    value = mount.options.get("discard")
    if value is None or value == "async":
        shown = "discards are asynchronous" if value else "no discards at each deletion"
        yield fine("discard", f"{mount.point}: {shown}", mount.source)
        return
    better = "discard=async" if mount.kind == "btrfs" else "nodiscard"
    yield wrong(
        "discard",
        "speed",
        f"{mount.point} is mounted with discard",
        "When DROP TABLE, TRUNCATE or PURGE BINARY LOGS frees space, the commit of the journal"
        " sends discards and waits for them; syncs of all others wait with it. On many disks a"
        " discard takes milliseconds.",
        f"{remount(mount, better)}; sudo systemctl enable --now fstrim.timer",
        fstab(mount, better if mount.kind == "btrfs" else "", "discard"),
        mount.source,
    )


def journaled_data(facts: DiskFacts, mount: FileSystem) -> Iterator[Finding]:
    """data=journal writes everything twice, which the doublewrite buffer does already."""
    if mount.kind not in _EXT:
        return
    options = mount.text("options")
    modes = {mount.options.get("data")}
    if options is not None:
        modes |= {line.partition("=")[2] for line in options[1].split() if line.startswith("data=")}
    source = mount.source if options is None else options[0]
    files = [place for place in facts.places_on(mount) if place.journaled]
    if "journal" not in modes and not files:
        yield fine("journaled-data", f"{mount.point}: the journal has no data of files", source)
        return
    doublewrite = facts.variables.get("innodb_doublewrite", "").upper()
    on = doublewrite not in ("", "OFF", "0", "FALSE")
    twice = (
        " Each page of InnoDB is written four times: to the doublewrite buffer and to its place,"
        " both through the journal."
        if on
        else " All data is written twice: to the journal, and to its place."
    )
    what = (
        f"{mount.point} is mounted with data=journal"
        if "journal" in modes
        else (f"{files[0].file} in {files[0].path} has the attribute j: its data are journaled")
    )
    if on:
        what += ", and innodb_doublewrite is on"
    yield wrong(
        "journaled-data",
        "speed",
        what,
        "O_DIRECT is ignored." + twice + " Redo log and binlog are written twice too.",
        in_fstab(mount, "data=ordered") if "journal" in modes else "chattr -j FILE",
        fstab(mount, remove="data=journal")
        + f" (and: sudo tune2fs -o ^journal_data {node(mount)})",
        source,
        facts.variables_from or mount.source,
    )


def unordered_data(facts: DiskFacts, mount: FileSystem) -> Iterator[Finding]:
    """data=writeback can show old blocks of other files after a crash."""
    if mount.kind not in _EXT:
        return
    if mount.options.get("data") != "writeback":
        return
    yield wrong(
        "unordered-data",
        "loss",
        f"{mount.point} is mounted with data=writeback",
        "After a crash, what was appended and not synced can contain blocks of deleted files."
        " InnoDB's pages have checksums; binlogs without them, Aria, MyISAM and relay logs have"
        " not.",
        in_fstab(mount, "data=ordered"),
        fstab(mount, remove="data=writeback"),
        mount.source,
    )


def network(facts: DiskFacts, mount: FileSystem) -> Iterator[Finding]:
    """NFS: what a server that does not answer, and another client, may do."""
    if mount.kind not in ("nfs", "nfs4"):
        return
    options = mount.options
    found = False
    if "soft" in options or "softerr" in options:
        found = True
        yield wrong(
            "network",
            "loss",
            f"{mount.point} is NFS with the option soft",
            "When its server does not answer in time, a write fails with EIO. InnoDB ends the"
            " process, or data that the server believed to be written is missing.",
            in_fstab(mount, "hard"),
            fstab(mount, "hard", "soft"),
            mount.source,
        )
    version = options.get("vers", "")
    locks = "nolock" in options or options.get("local_lock", "none") != "none"
    if locks:
        found = True
        yield wrong(
            "network",
            "loss",
            f"{mount.point} is NFS with locks of this host only (version {version or 'unknown'})",
            "The server's lock on its files does not hold on other hosts: a second server can open"
            " the same data directory, and both destroy it.",
            in_fstab(mount, "vers=4.1"),
            fstab(mount, "vers=4.1", "nolock, local_lock"),
            mount.source,
        )
    elif version.startswith("3"):
        found = True
        yield wrong(
            "network",
            "loss",
            f"{mount.point} is NFS version 3",
            "Its locks are kept by another program (lockd): after a crash of this host they can"
            " stay, and the server does not start, or be lost, and two servers start.",
            in_fstab(mount, "vers=4.1"),
            fstab(mount, "vers=4.1", "vers=3"),
            mount.source,
        )
    if options.get("proto") == "udp":
        found = True
        yield wrong(
            "network",
            "loss",
            f"{mount.point} is NFS over UDP",
            "Fragments of a lost packet can be joined to another's: data is damaged silently.",
            in_fstab(mount, "proto=tcp"),
            fstab(mount, "proto=tcp", "proto=udp"),
            mount.source,
        )
    if "noac" in options:
        found = True
        yield wrong(
            "network",
            "speed",
            f"{mount.point} is NFS with the option noac",
            "Each write is synchronous, and each access asks the server for the file's size. One"
            " server alone uses these files: nothing has to be shared.",
            in_fstab(mount, "ac"),
            fstab(mount, remove="noac"),
            mount.source,
        )
    if not found:
        yield fine(
            "network",
            f"{mount.point}: hard, version {version or 'unknown'}, locks of its server",
            mount.source,
        )
    yield unknown(
        "network-server",
        f"whether the server of {mount.device} keeps what it has acknowledged (export option sync)"
        " and what its disks do",
        "look there: exportfs -v",
        mount.source,
    )
