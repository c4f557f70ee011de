# SPDX-License-Identifier: Apache-2.0
"""Rules about the server's own settings, against what it lies on."""

from __future__ import annotations

from collections.abc import Iterator

from stallscope.analyzers.disks.advice import Finding, fine, quoted, sized, unknown, wrong
from stallscope.model.diskfacts import Device, DiskFacts, FileSystem, Place, as_int

__all__ = ["direct_io", "doublewrite", "redo_size", "sharing", "write_ahead"]

LEAST_REDO_SECONDS = 600.0
"""InnoDB flushes what the redo log must free: less than ten minutes make it flush all the time."""
LEAST_UPTIME = 600.0
_NO_DIRECT = ("tmpfs", "ramfs", "zfs")
_OFF = ("OFF", "0", "FALSE")


def _first(facts: DiskFacts, role: str) -> tuple[Place, FileSystem] | None:
    for place in facts.places:
        mount = facts.mount_of(place)
        if place.role == role and mount is not None:
            return place, mount
    return None


def direct_io(facts: DiskFacts) -> Iterator[Finding]:
    """How data files are accessed, against their file system."""
    found = _first(facts, "data")
    if found is None or facts.family == "postgres":
        return
    place, mount = found
    method = facts.variables.get("innodb_flush_method", "").lower()
    buffering = facts.variables.get("innodb_data_file_buffering", "").upper()
    sources = (f"fdinfo of the files in {place.path}", facts.variables_from)
    if method in ("nosync", "littlesync", "async_unbuffered"):
        yield wrong(
            "flush-method",
            "loss",
            f"innodb_flush_method = {method}",
            "InnoDB does not sync its files: a crash of the host destroys the database.",
            "innodb_flush_method = O_DIRECT in the option file, group [mysqld], and restart",
            None,
            facts.variables_from,
        )
        return
    wants = buffering == "OFF" or (buffering == "" and method.startswith("o_direct"))
    direct = place.direct if place.direct is not None else (wants if method or buffering else None)
    if direct is None:
        yield unknown(
            "flush-method",
            f"whether files in {place.path} are open with O_DIRECT",
            "run it with sudo, or with the server's account",
        )
    elif (wants and place.direct is False) or (wants and mount.kind in _NO_DIRECT):
        yield wrong(
            "flush-method",
            "speed",
            f"innodb_flush_method = {method or 'O_DIRECT'}, and {mount.kind} at {mount.point} has"
            " no direct I/O",
            "Pages are in the buffer pool and in the page cache, so the host needs twice the"
            " memory; the server expects otherwise.",
            "move the data to XFS or ext4; or plan memory for both",
            None,
            *sources,
            mount.source,
        )
    elif not direct:
        yield wrong(
            "flush-method",
            "speed",
            f"data files in {place.path} go through the page cache"
            + (f" (innodb_flush_method = {method})" if method else ""),
            "Pages are in memory twice, and the cache of the host pushes out what else it holds or"
            " swaps. A sync writes all that has piled up, and everybody waits for it.",
            "innodb_flush_method = O_DIRECT in the option file, group [mysqld], and restart the"
            " server",
            None,
            *sources,
        )
    else:
        yield fine("flush-method", f"data files in {place.path} bypass the page cache", *sources)


def doublewrite(facts: DiskFacts) -> Iterator[Finding]:
    """The doublewrite buffer is what repairs torn pages."""
    text = facts.variables.get("innodb_doublewrite")
    found = _first(facts, "data")
    if text is None or found is None:
        return
    place, mount = found
    if text.upper() not in (*_OFF, "DETECT_ONLY"):
        yield fine("doublewrite", f"innodb_doublewrite = {text}", facts.variables_from)
        return
    copies = mount.kind == "zfs" or (mount.kind == "btrfs" and place.nocow is False)
    if copies:
        yield fine(
            "doublewrite",
            f"innodb_doublewrite = {text}; {mount.kind} writes pages whole",
            facts.variables_from,
            mount.source,
        )
        return
    yield wrong(
        "doublewrite",
        "loss",
        f"innodb_doublewrite = {text} on {mount.kind} ({mount.point})",
        "A page that a crash leaves half written cannot be repaired: the table is lost. Right only"
        " where the disk writes pages whole (atomic writes), or copies of the data are elsewhere."
        " The doublewrite buffer costs about half of the bytes written.",
        "innodb_doublewrite = ON in the option file, group [mysqld], and restart",
        None,
        facts.variables_from,
        mount.source,
    )


def write_ahead(facts: DiskFacts) -> Iterator[Finding]:
    """The redo log in blocks smaller than the file system's reads before it writes."""
    size = as_int(facts.variables.get("innodb_log_write_ahead_size"))
    found = _first(facts, "redo")
    if size is None or found is None or found[1].block_bytes is None:
        return
    mount, block = found[1], found[1].block_bytes
    if mount.kind in _NO_DIRECT:
        return
    dynamic = as_int(facts.variables.get("innodb_redo_log_capacity")) is not None
    if size < block and dynamic:
        yield wrong(
            "write-ahead",
            "speed",
            f"innodb_log_write_ahead_size = {size}, blocks of {mount.point} have {block} bytes",
            "A write of the redo log to a block that is not cached reads the block first: each"
            " commit at the end of the log waits for a read.",
            f"SET GLOBAL innodb_log_write_ahead_size = {block}",
            f"innodb_log_write_ahead_size = {block} in the option file, group [mysqld]",
            facts.variables_from,
            f"statvfs(3) of {mount.point}",
        )
    else:
        yield fine(
            "write-ahead",
            f"innodb_log_write_ahead_size = {size}, blocks of {mount.point} have {block} bytes",
            facts.variables_from,
        )


def redo_size(facts: DiskFacts) -> Iterator[Finding]:
    """How many minutes of changes the redo log holds."""
    capacity = as_int(facts.variables.get("innodb_redo_log_capacity"))
    name = "innodb_redo_log_capacity"
    if capacity is None:
        name = "innodb_log_file_size"
        each = as_int(facts.variables.get(name))
        files = as_int(facts.variables.get("innodb_log_files_in_group")) or 1
        capacity = each * files if each is not None else None
    if capacity is None:
        return
    written, uptime = facts.status.get("Innodb_os_log_written"), facts.status.get("Uptime")
    if written is None or uptime is None:
        yield unknown(
            "redo-size",
            f"how much redo is written a second ({sized(capacity)} of log): SQL was not asked",
        )
        return
    if uptime < LEAST_UPTIME or written <= 0:
        yield unknown(
            "redo-size",
            f"the server is up for {uptime:.0f} s: too short to judge"
            f" {sized(capacity)} of redo log",
            "ask again later",
        )
        return
    rate = written / uptime
    seconds = capacity / rate if rate > 0 else float("inf")
    what = f"{sized(capacity)} of redo log hold {_minutes(seconds)} of changes, on average"
    sources = (facts.variables_from, "Innodb_os_log_written, Uptime")
    if seconds >= LEAST_REDO_SECONDS:
        yield fine("redo-size", what, *sources)
        return
    want = max(1 << 30, int(rate * 3600) >> 20 << 20)
    yield wrong(
        "redo-size",
        "speed",
        what,
        "Pages must be written before their redo is overwritten: a page that changes often is"
        " written again and again, and at the end of the log all writers wait for that.",
        f"SET GLOBAL {name} = {want}"
        if name != "innodb_log_file_size"
        or (as_int(facts.variables.get("innodb_log_files_in_group")) in (None, 1))
        else f"{name} = {want // 2} in the option file, and restart",
        f"{name} = {want} in the option file, group [mysqld]",
        *sources,
    )


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} minutes"


def sharing(facts: DiskFacts) -> Iterator[Finding]:
    """Which of data, redo log and binlog share a disk."""
    data = _first(facts, "data")
    if data is None:
        return
    for role, name in (("redo", "the redo log"), ("binlog", "the binlog")):
        other = _first(facts, role)
        if other is None:
            continue
        below = facts.bottoms(data[1])
        shared = [d for d in facts.bottoms(other[1]) if d in below]
        if not below or not facts.bottoms(other[1]):
            yield unknown(
                "sharing",
                f"whether data and {name} share a disk: one of them is on"
                " none that is visible here",
            )
        elif shared and all(d.number("queue/rotational") == 1 for d in shared):
            yield _shared(facts, role, name, other[0], shared)
        elif shared:
            text = f"data and {name} are on the same disk ({_names(shared)})"
            if role == "binlog":
                text += ": its failure takes both, and with them the changes since the last backup"
            yield fine("sharing", text, shared[0].source("queue/rotational"))
        else:
            yield fine("sharing", f"data and {name} are on different disks", other[1].source)


def _names(devices: list[Device]) -> str:
    return ", ".join(device.name for device in devices)


def _shared(facts: DiskFacts, role: str, name: str, place: Place, shared: list[Device]) -> Finding:
    virtual = all(device.name.startswith(("vd", "xvd")) for device in shared)
    hint = " (a virtual disk often says so whatever is below)" if virtual else ""
    text = f"data and {name} share {_names(shared)}, which says that it rotates{hint}"
    if virtual:
        return fine("sharing", text, shared[0].source("queue/rotational"))
    option = "innodb_log_group_home_dir" if role == "redo" else "log_bin"
    return wrong(
        "sharing",
        "speed",
        text,
        "A commit appends and syncs; between two of them the head seeks to pages of tables and"
        " back, some 10 ms each. Syncs of both wait for each other's writes.",
        f"stop the server; copy {quoted(place.path)} to another disk; {option} = /other/disk/… in"
        " the option file",
        None,
        shared[0].source("queue/rotational"),
        place.origin,
    )
