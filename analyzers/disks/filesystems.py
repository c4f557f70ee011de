# SPDX-License-Identifier: Apache-2.0
"""Rules about kinds of file systems, their blocks, features and space."""

from __future__ import annotations

from collections.abc import Iterator

from stallscope.analyzers.disks.advice import (
    Finding,
    fine,
    fstab,
    in_fstab,
    node,
    quoted,
    remount,
    sized,
    unknown,
    wrong,
)
from stallscope.model.diskfacts import DiskFacts, FileSystem, as_int

__all__ = [
    "blocks",
    "copies",
    "errors",
    "extents",
    "journal",
    "layers",
    "log_size",
    "memory",
    "preallocation",
    "space",
]

LEAST_FREE = 0.05
LEAST_FREE_BYTES = 256 << 20
LEAST_LOG = 64 << 20
"""mkfs.xfs makes none smaller since xfsprogs 5.15."""
MOST_PREALLOCATION = 64 << 20
_EXT = ("ext2", "ext3", "ext4")
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def blocks(facts: DiskFacts, mount: FileSystem) -> Iterator[Finding]:
    """The blocks of the file system against the pages of the server."""
    size = mount.block_bytes
    if mount.kind not in (*_EXT, "xfs", "btrfs", "f2fs"):
        return
    if size is None:
        yield unknown("block-size", f"the block size of {mount.point}", None, "statvfs(3)")
        return
    page = as_int(facts.variables.get("innodb_page_size"))
    if page is None:
        page = 8192 if facts.family == "postgres" else 16384
    source = f"statvfs(3) of {mount.point}"
    if size > page:
        yield wrong(
            "block-size",
            "speed",
            f"{mount.point} has blocks of {sized(size)}, larger than a page of {sized(page)}",
            "A write of one page reads the block, changes a part and writes all of it.",
            f"make it again with blocks of 4 KiB, and copy the data: mkfs.{mount.kind}"
            f" {'-b size=4096' if mount.kind == 'xfs' else '-b 4096'} {node(mount)}",
            None,
            source,
            facts.variables_from,
        )
    elif size < 4096:
        yield wrong(
            "block-size",
            "speed",
            f"{mount.point} has blocks of {sized(size)}",
            f"A page of {sized(page)} is {page // size} blocks that need not lie together, and"
            " the page cache has to keep track of each.",
            f"make it again with blocks of 4 KiB, and copy the data: mkfs.{mount.kind}"
            f" {'-b size=4096' if mount.kind == 'xfs' else '-b 4096'} {node(mount)}",
            None,
            source,
        )
    else:
        yield fine("block-size", f"{mount.point}: {sized(size)}, a page has {sized(page)}", source)


def copies(facts: DiskFacts, mount: FileSystem) -> Iterator[Finding]:
    """btrfs writes each changed page elsewhere, unless it must not."""
    if mount.kind != "btrfs":
        return
    everywhere = "nodatacow" in mount.options
    places = [p for p in facts.places_on(mount) if p.role != "temporary" and p.mount == mount.point]
    bad = [p for p in places if p.nocow is False and not everywhere]
    for place in {p.path: p for p in bad}.values():
        path = quoted(place.path)
        yield wrong(
            "copy-on-write",
            "speed",
            f"{place.path} is on btrfs, and {place.file} has no attribute C (nodatacow)",
            "Each page that is written goes to a new place with a new checksum, and changes the"
            " tree of extents: files fall into as many pieces as they have pages, and each sync"
            " writes metadata.",
            f"stop the server; sudo mv {path} {path}.old && sudo mkdir {path} && sudo chattr +C"
            f" {path} && sudo cp -a --reflink=never {path}.old/. {path}/",
            f"{fstab(mount, 'nodatacow')} (for new files of the whole file system)",
            f"FS_IOC_GETFLAGS of {place.file}",
            mount.source,
        )
    for place in places:
        if place.nocow is None and not everywhere:
            yield unknown(
                "copy-on-write",
                f"whether files in {place.path} are copied at each write",
                f"sudo lsattr {quoted(place.path)}",
            )
            return
    if places and not bad:
        yield fine(
            "copy-on-write",
            f"{mount.point}: pages are written in place",
            f"FS_IOC_GETFLAGS of {places[0].file}",
            mount.source,
        )


def extents(facts: DiskFacts, mount: FileSystem) -> Iterator[Finding]:
    """ext4: files that are mapped block by block, and clusters."""
    if mount.kind != "ext4":
        return
    places = [p for p in facts.places_on(mount) if p.mount == mount.point]
    without = [p for p in places if p.extents is False]
    if without:
        place = without[0]
        yield wrong(
            "extents",
            "speed",
            f"{place.file} in {place.path} has no extents",
            "Its blocks are mapped one by one, as in ext3: DROP and TRUNCATE of a large table read"
            " and free thousands of mapping blocks while others wait for the journal.",
            f"stop the server; sudo tune2fs -O extents {node(mount)}; sudo chattr +e FILE (or copy"
            " the files)",
            None,
            f"FS_IOC_GETFLAGS of {place.file}",
        )
    elif any(p.extents for p in places):
        yield fine("extents", f"{mount.point}: files have extents", "FS_IOC_GETFLAGS")
    clusters = [p.cluster_bytes for p in places if p.cluster_bytes]
    if clusters and mount.block_bytes and min(clusters) > mount.block_bytes:
        size = min(clusters)
        yield wrong(
            "clusters",
            "space",
            f"{mount.point} allocates {sized(size)} at a time (bigalloc)",
            f"Each small file takes that much, a table of one page too; a hole or a page that is"
            f" freed gives nothing back until all {sized(size)} are free (page compression).",
            "only mkfs changes it: make the file system again without -O bigalloc",
            None,
            "st_blocks of its smallest files",
        )
    elif clusters:
        yield fine(
            "clusters",
            f"{mount.point}: {sized(min(clusters))} at a time",
            "st_blocks of its smallest files",
        )


def journal(facts: DiskFacts, mount: FileSystem) -> Iterator[Finding]:
    """Without a journal, a crash leaves the file system itself in pieces."""
    if mount.kind not in _EXT:
        return
    if mount.kind == "ext2":
        has, source = False, mount.source
    else:
        options = mount.text("options")
        if options is None:
            if mount.kind == "ext4":
                yield unknown("journal", f"whether {mount.point} has a journal")
            return
        # With a journal the kernel lists the mode of its data.
        has, source = any(line.startswith("data=") for line in options[1].split()), options[0]
    if has:
        yield fine("journal", f"{mount.point}: it has a journal", source)
        return
    yield wrong(
        "journal",
        "loss",
        f"{mount.point} ({mount.kind}) has no journal",
        "After a crash, directories and the lengths of files can be wrong, also of files that were"
        " synced. InnoDB recovers pages, not lost files; fsck runs for as long as the disk is"
        " large.",
        (
            "from a rescue system, because / is in use: "
            if mount.point == "/"
            else f"stop the server; sudo umount {quoted(mount.point)} && "
        )
        + f"sudo tune2fs -O has_journal {node(mount)}",
        None,
        source,
    )


def errors(facts: DiskFacts, mount: FileSystem) -> Iterator[Finding]:
    """Errors that the file system has met, and what it does at the next one."""
    found = mount.text("errors_count")
    if found is not None and found[1] not in ("", "0"):
        yield wrong(
            "errors",
            "loss",
            f"{mount.point} has met {found[1]} errors in its own structures",
            "What lies in the damaged part is read wrong or overwritten later.",
            f"sudo dmesg | grep EXT4-fs; back up, stop the server, sudo umount"
            f" {quoted(mount.point)} and sudo e2fsck -f {node(mount)}",
            None,
            found[0],
        )
    elif found is not None:
        yield fine("errors", f"{mount.point}: no errors so far", found[0])
    options = mount.text("options")
    if options is None or mount.kind != "ext4":
        return
    if "errors=continue" in options[1].split():
        yield wrong(
            "on-errors",
            "loss",
            f"{mount.point} continues after an error (errors=continue)",
            "With damaged structures it goes on to write, which can overwrite tables.",
            remount(mount, "errors=remount-ro"),
            f"sudo tune2fs -e remount-ro {node(mount)}",
            options[0],
        )
    else:
        yield fine("on-errors", f"{mount.point}: an error stops writes", options[0])


def log_size(facts: DiskFacts, mount: FileSystem) -> Iterator[Finding]:
    """XFS: a small log makes changes of metadata wait."""
    if mount.kind != "xfs":
        return
    size = mount.log_bytes
    if size is None:
        yield unknown(
            "xfs-log",
            f"the size of the log of {mount.point}",
            f"sudo xfs_info {quoted(mount.point)}",
        )
    elif size < LEAST_LOG:
        yield wrong(
            "xfs-log",
            "speed",
            f"{mount.point} (XFS) has a log of {sized(size)}",
            "When it is full, threads that extend, make or drop files wait until metadata is"
            " written back; syncs that need the log wait with them.",
            f"only mkfs changes it: mkfs.xfs -l size=512m {node(mount)}, and copy the data",
            None,
            f"XFS_IOC_FSGEOMETRY of {mount.point}",
        )
    else:
        yield fine(
            "xfs-log", f"{mount.point}: {sized(size)}", f"XFS_IOC_FSGEOMETRY of {mount.point}"
        )


def preallocation(facts: DiskFacts, mount: FileSystem) -> Iterator[Finding]:
    """XFS: allocsize is allocated behind the end of each file that grows."""
    if mount.kind != "xfs" or "allocsize" not in mount.options:
        return
    text = mount.options["allocsize"]
    size = (as_int(text[:-1]) or 0) * _UNITS.get(text[-1:].lower(), 0) or as_int(text) or 0
    if size > MOST_PREALLOCATION:
        yield wrong(
            "preallocation",
            "space",
            f"{mount.point} (XFS) has allocsize={text}",
            "Each file that grows takes that much more, until it is closed: with thousands of"
            " tables the disk is full before its data is.",
            in_fstab(mount, "allocsize=1m"),
            fstab(mount, "allocsize=1m", f"allocsize={text}"),
            mount.source,
        )
    else:
        yield fine("preallocation", f"{mount.point}: allocsize={text}", mount.source)


def layers(facts: DiskFacts, mount: FileSystem) -> Iterator[Finding]:
    """overlay: the writable layer of a container is no place for data."""
    if mount.kind != "overlay":
        return
    roles = [role for role in facts.roles_on(mount) if role != "temporary"]
    if not roles:
        yield fine("overlay", f"{mount.point}: only temporary files are on it", mount.source)
        return
    if "volatile" in mount.options:
        yield wrong(
            "overlay",
            "loss",
            f"{mount.point} is an overlay with the option volatile",
            "No sync reaches the disk: after a crash nothing that was committed is certain.",
            "mount the data directory from outside: --volume /srv/mysql:/var/lib/mysql",
            None,
            mount.source,
        )
    else:
        yield wrong(
            "overlay",
            "loss",
            f"{', '.join(roles)} of the server: on an overlay ({mount.point})",
            "The data is in the writable layer of a container and is removed with it. The first"
            " write to a file of the image copies the whole file while the server waits, and"
            " renames of directories and O_DIRECT depend on what is below.",
            "mount the data directory from outside: --volume /srv/mysql:/var/lib/mysql",
            None,
            mount.source,
        )
    if mount.upper is None:
        yield unknown(
            "overlay-disk",
            f"the disk below {mount.point}: its upper directory is not visible from here",
        )


def memory(facts: DiskFacts, mount: FileSystem) -> Iterator[Finding]:
    """tmpfs: data that must survive, and temporary files that take memory."""
    if mount.kind not in ("tmpfs", "ramfs"):
        return
    roles = facts.roles_on(mount)
    durable = [role for role in roles if role != "temporary"]
    if durable:
        yield wrong(
            "memory",
            "loss",
            f"{', '.join(durable)} of the server: in memory ({mount.kind} at {mount.point})",
            "All of it is gone after a restart of the host. Its syncs return at once and prove"
            " nothing.",
            "move the directory to a disk, with the server stopped",
            None,
            mount.source,
        )
        return
    total = as_int(facts.kernel.get("/proc/meminfo MemTotal"))
    size = mount.size_bytes
    if size is None or total is None:
        yield unknown("memory", f"the size of {mount.point}")
    elif size > total // 4:
        yield wrong(
            "memory",
            "speed",
            f"temporary files ({mount.point}) can take {sized(size)} of {sized(total)} of memory",
            "A query that sorts much takes memory from the buffer pool until the host swaps or"
            " kills the server.",
            remount(mount, f"size={max(1, total // 8 >> 20)}m"),
            fstab(mount, f"size={max(1, total // 8 >> 20)}m"),
            mount.source,
            "/proc/meminfo",
        )
    else:
        yield fine(
            "memory", f"{mount.point}: temporary files alone, up to {sized(size)}", mount.source
        )


def space(facts: DiskFacts, mount: FileSystem) -> Iterator[Finding]:
    """A full disk stops the server."""
    size, free = mount.size_bytes, mount.free_bytes
    source = f"statvfs(3) of {mount.point}"
    if size is None or free is None:
        yield unknown("space", f"the free space of {mount.point}", f"df {quoted(mount.point)}")
        return
    if size == 0:
        return
    point = quoted(mount.point)
    if free < size * LEAST_FREE or (free < LEAST_FREE_BYTES < size):
        yield wrong(
            "space",
            "space",
            f"{mount.point}: {sized(free)} of {sized(size)} are free ({free / size:.1%})",
            "When it is full, commits wait for space (binlog) or transactions fail. Before that,"
            " file systems search long for free extents.",
            f"sudo du -xh {point} | sort -h | tail;"
            " PURGE BINARY LOGS BEFORE NOW() - INTERVAL 3 DAY",
            "binlog_expire_logs_seconds in the option file, or a larger disk",
            source,
        )
    else:
        yield fine("space", f"{mount.point}: {sized(free)} of {sized(size)} free", source)
    if (
        mount.inodes
        and mount.free_inodes is not None
        and (mount.free_inodes < mount.inodes * LEAST_FREE)
    ):
        yield wrong(
            "inodes",
            "space",
            f"{mount.point}: {mount.free_inodes} of {mount.inodes} inodes are free",
            "Without one no file can be made: CREATE TABLE, temporary tables and new binlogs fail"
            " although space is free.",
            f"sudo du --inodes -x {point} | sort -n | tail",
            "make the file system again with more inodes (mkfs.ext4 -i 16384), or use XFS",
            source,
        )
    elif mount.inodes and mount.free_inodes is not None:
        yield fine("inodes", f"{mount.point}: {mount.free_inodes} free", source)
