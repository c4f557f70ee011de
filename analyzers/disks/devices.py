# SPDX-License-Identifier: Apache-2.0
"""Rules about one block device: its queue, its cache, what it is made of."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stallscope.analyzers.disks.advice import (
    Finding,
    fine,
    quoted,
    set_queue,
    sized,
    udev,
    unknown,
    wrong,
)
from stallscope.model.diskfacts import Device, DiskFacts, as_int

__all__ = [
    "cache",
    "depth",
    "encryption",
    "loop",
    "raid",
    "readahead",
    "rotational",
    "scheduler",
    "snapshot",
    "split",
    "statistics",
    "throttling",
]

LEAST_REQUESTS = 32
"""Flash disks work on so many requests at once; the kernel's own least is 4."""
MOST_READAHEAD = 1 << 20
LEAST_LATENCY_USEC = 500
"""Less than a flash disk's own latency under load: the kernel would hold back writes all the
time."""
_SEEKING = ("bfq", "cfq")


def _is_flash(device: Device) -> bool | None:
    number = device.number("queue/rotational")
    return None if number is None else number == 0


def scheduler(facts: DiskFacts, device: Device) -> Iterator[Finding]:
    """A scheduler that orders requests for a head that must seek holds flash back."""
    key = "queue/scheduler"
    text = device.texts.get(key)
    if text is None or device.kind in ("dm", "md", "partition"):
        return  # dm and md pass requests on
    now = re.search(r"\[([\w-]{1,32})\]", text)
    offered = re.findall(r"[\w-]{1,32}", text)
    if now is None:
        if text == "none":
            yield fine(
                "scheduler", f"{device.name}: none, and no other is offered", device.source(key)
            )
        else:
            yield unknown("scheduler", f"{device.name}: {text!r}", None, device.source(key))
        return
    name = now.group(1)
    better = next((one for one in ("none", "mq-deadline") if one in offered), None)
    if _is_flash(device) is False:
        better = "mq-deadline" if "mq-deadline" in offered else None
    sources = (device.source(key), device.source("queue/rotational"))
    if name in _SEEKING and better is not None:
        yield wrong(
            "scheduler",
            "speed",
            f"{device.name} uses the I/O scheduler {name}",
            "It shares the disk out between processes and waits idle for more of one."
            " A database is one process, and orders its requests itself: its syncs only wait.",
            set_queue(device, key, better),
            udev(device, key, better),
            *sources,
        )
    elif (
        name == "none"
        and _is_flash(device) is False
        and better
        and device.kind == "disk"
        and (not device.name.startswith(("vd", "xvd", "nvme")))
    ):
        yield wrong(
            "scheduler",
            "speed",
            f"{device.name} rotates and has no I/O scheduler",
            "Requests reach the disk in the order in which threads send them, and its head seeks"
            " between them. (Behind a RAID controller with its own queue, none is right.)",
            set_queue(device, key, better),
            udev(device, key, better),
            *sources,
        )
    else:
        yield fine("scheduler", f"{device.name}: {name}", *sources)


def rotational(facts: DiskFacts, device: Device) -> Iterator[Finding]:
    """What the server does for rotating disks alone must fit the disk."""
    key = "queue/rotational"
    flash = _is_flash(device)
    if device.kind != "disk" or flash is None:
        return
    neighbours = as_int(facts.variables.get("innodb_flush_neighbors"))
    virtual = device.name.startswith(("vd", "xvd"))
    shown = "flash" if flash else "rotating"
    hint = "; a virtual disk often says this whatever is below" if virtual and not flash else ""
    sources = (
        (device.source(key), facts.variables_from)
        if neighbours is not None
        else (device.source(key),)
    )
    if flash and neighbours:
        yield wrong(
            "rotational",
            "speed",
            f"{device.name} is flash, and innodb_flush_neighbors = {neighbours}",
            "With each dirty page InnoDB also writes its neighbours, which saves seeks on a"
            " rotating disk. On flash these are additional writes that wear it.",
            "SET GLOBAL innodb_flush_neighbors = 0",
            "innodb_flush_neighbors = 0 in the option file, group [mysqld]",
            *sources,
        )
    elif virtual and not flash and neighbours:
        yield fine(
            "rotational",
            f"{device.name} says that it rotates{hint}: if it is flash, SET GLOBAL"
            " innodb_flush_neighbors = 0, and echo 0 into this file",
            *sources,
        )
    else:
        yield fine("rotational", f"{device.name}: {shown}{hint}", *sources)


def cache(facts: DiskFacts, device: Device) -> Iterator[Finding]:
    """The kernel must know of a cache that loses its content, or a sync is none."""
    key = "queue/write_cache"
    text = device.texts.get(key)
    if device.kind != "disk":
        return
    if text is None:
        yield unknown(
            "write-cache",
            f"{device.name} does not say whether it caches writes",
            None,
            device.source(key),
        )
        return
    own = next((k for k in device.texts if k.endswith("/cache_type")), None)
    source = device.source(key)
    if own is not None and "write back" in device.texts[own] and text == "write through":
        yield wrong(
            "write-cache",
            "loss",
            f"{device.name} caches writes, and the kernel has it as write through",
            "The kernel sends no flush: after a loss of power, transactions that were committed"
            " are gone and pages torn, whatever innodb_flush_log_at_trx_commit says. Right only"
            " if the cache has a battery.",
            set_queue(device, key, "'write back'"),
            udev(device, key, "write back"),
            source,
            device.source(own),
        )
        return
    fua = device.texts.get("queue/fua")
    what = f"{device.name}: {text}"
    if text == "write back":
        what += ", each sync flushes the cache" + (
            ", one write at a time can bypass it (FUA)" if fua == "1" else ""
        )
    yield fine("write-cache", what, source, device.source("queue/fua"))


def depth(facts: DiskFacts, device: Device) -> Iterator[Finding]:
    """A short queue leaves a disk idle that could work on many requests."""
    key = "queue/nr_requests"
    requests, queue = device.number(key), device.number("device/queue_depth")
    if device.kind != "disk" or requests is None:
        return
    if queue is not None and queue <= 1:
        yield wrong(
            "queue-depth",
            "speed",
            f"{device.name} takes one request at a time (queue_depth {queue})",
            "The disk cannot order requests or work on several: reads of all threads wait in a"
            " line. NCQ is off.",
            set_queue(device, "device/queue_depth", 32),
            udev(device, "device/queue_depth", 32),
            device.source("device/queue_depth"),
        )
    elif requests < LEAST_REQUESTS:
        yield wrong(
            "queue-depth",
            "speed",
            f"{device.name} queues {requests} requests at most (nr_requests)",
            "A thread that sends one more sleeps in the kernel until one is done, also if it only"
            " wants to sync a commit. innodb_io_capacity above that has no effect.",
            set_queue(device, key, 128),
            udev(device, key, 128),
            device.source(key),
        )
    else:
        yield fine(
            "queue-depth",
            f"{device.name}: {requests} requests"
            + (f", {queue} of them in the device" if queue is not None else ""),
            device.source(key),
        )


def readahead(facts: DiskFacts, device: Device) -> Iterator[Finding]:
    """Read-ahead of the page cache reads what random access does not use."""
    key = "queue/read_ahead_kb"
    kib = device.number(key)
    if kib is None or device.kind == "partition":
        return
    if kib == 0:
        yield wrong(
            "read-ahead",
            "speed",
            f"{device.name} reads nothing ahead",
            "Sequential reads through the page cache (binlogs for replicas, backups, Aria, MyISAM,"
            " PostgreSQL's scans) become one request for each page.",
            set_queue(device, key, 128),
            udev(device, key, 128),
            device.source(key),
        )
    elif kib * 1024 > MOST_READAHEAD:
        yield wrong(
            "read-ahead",
            "speed",
            f"{device.name} reads {sized(kib * 1024)} ahead",
            "It counts for reads through the page cache (PostgreSQL, Aria, MyISAM, binlogs, InnoDB"
            " without O_DIRECT). Accesses that look sequential for a moment read up to that much,"
            " and push other pages out of memory.",
            set_queue(device, key, 128),
            udev(device, key, 128),
            device.source(key),
        )
    else:
        yield fine("read-ahead", f"{device.name}: {kib} KiB", device.source(key))


def throttling(facts: DiskFacts, device: Device) -> Iterator[Finding]:
    """Writeback throttling with an aim that no disk reaches stops buffered writes."""
    key = "queue/wbt_lat_usec"
    usec = device.number(key)
    if usec is None or device.kind != "disk":
        return
    if 0 < usec < LEAST_LATENCY_USEC:
        yield wrong(
            "writeback-throttling",
            "speed",
            f"{device.name}: writeback is throttled to keep reads below {usec} µs",
            "Below the latency of the disk itself, the kernel lets a single buffered write through"
            " at a time. Binlogs and files without O_DIRECT pile up as dirty pages.",
            set_queue(device, key, -1),
            udev(device, key, -1),
            device.source(key),
        )
    elif usec == 0:
        yield fine(
            "writeback-throttling",
            f"{device.name}: off; buffered writes can delay reads",
            device.source(key),
        )
    else:
        yield fine(
            "writeback-throttling", f"{device.name}: reads below {usec} µs", device.source(key)
        )


def split(facts: DiskFacts, device: Device) -> Iterator[Finding]:
    """A page that is larger than the largest request is several requests."""
    key = "queue/max_sectors_kb"
    kib = device.number(key)
    page = as_int(facts.variables.get("innodb_page_size")) or (
        8192 if facts.family == "postgres" else 16384
    )
    if kib is None or device.kind == "partition":
        return
    if kib * 1024 < page:
        yield wrong(
            "request-size",
            "speed",
            f"{device.name} takes at most {kib} KiB in a request, a page has {sized(page)}",
            "Each page is several requests, and is torn more easily when the power fails.",
            set_queue(device, key, 512),
            udev(device, key, 512),
            device.source(key),
        )
    else:
        yield fine("request-size", f"{device.name}: up to {kib} KiB", device.source(key))


def statistics(facts: DiskFacts, device: Device) -> Iterator[Finding]:
    """Without statistics nobody sees that a disk is slow."""
    key = "queue/iostats"
    text = device.texts.get(key)
    if text is None or device.kind == "partition":
        return
    if text == "0":
        yield wrong(
            "statistics",
            "speed",
            f"{device.name} counts no requests (iostats)",
            "/proc/diskstats stays as it is: iostat, and the disk numbers and triggers of"
            " stallscope, show an idle disk.",
            set_queue(device, key, 1),
            udev(device, key, 1),
            device.source(key),
        )
    else:
        yield fine("statistics", f"{device.name}: requests are counted", device.source(key))


def loop(facts: DiskFacts, device: Device) -> Iterator[Finding]:
    """A loop device through the page cache keeps everything twice."""
    text = device.texts.get("loop/dio")
    if device.kind != "loop" or text is None:
        return
    if text == "0":
        yield wrong(
            "loop",
            "speed",
            f"{device.name} is a file ({device.texts.get('loop/backing_file', '?')}), accessed"
            " through the page cache",
            "Each block is in memory twice, and O_DIRECT of the server is none below: its writes"
            " wait with those of everybody for writeback.",
            f"sudo losetup --direct-io=on {quoted(f'/dev/{device.name}')}",
            "losetup --direct-io=on where it is set up; better a partition or a logical volume",
            device.source("loop/dio"),
        )
    else:
        yield fine("loop", f"{device.name}: direct I/O to its file", device.source("loop/dio"))


def encryption(facts: DiskFacts, device: Device) -> Iterator[Finding]:
    """dm-crypt hands each request to other threads, which flash feels."""
    uuid = device.texts.get("dm/uuid", "")
    if not uuid.startswith("CRYPT-"):
        return
    name = quoted(device.texts.get("dm/name", device.name))
    yield unknown(
        "encryption",
        f"whether {device.name} ({device.texts.get('dm/name', '?')}) encrypts in work queues,"
        " which delay each request; the table that says so also holds the key and is not read",
        f"look at the flags of `sudo cryptsetup status {name}`; for flash: sudo cryptsetup"
        f" --perf-no_read_workqueue --perf-no_write_workqueue --persistent refresh {name}",
        device.source("dm/uuid"),
    )


def snapshot(facts: DiskFacts, device: Device) -> Iterator[Finding]:
    """While an LVM volume has a snapshot, each first write of a block copies the old one."""
    name = device.texts.get("dm/name", "")
    if device.kind != "dm":
        return
    if name.endswith(("-real", "-cow")):
        yield wrong(
            "snapshot",
            "speed",
            f"the volume {name.rpartition('-')[0]} has a snapshot",
            "The first write of each block since then reads the old block and writes it elsewhere"
            " first: three requests in place of one, and synchronous.",
            f"sudo lvs -o lv_name,origin,data_percent; sudo lvremove the snapshot of"
            f" {quoted(name.rpartition('-')[0])} when its backup is done",
            None,
            device.source("dm/name"),
        )
    else:
        yield fine("snapshot", f"{device.name}: none below it", device.source("dm/name"))


def raid(facts: DiskFacts, device: Device) -> Iterator[Finding]:
    """An array that lacks a disk, is being rebuilt, or turns small writes into four."""
    if device.kind != "md":
        return
    level = device.texts.get("md/level", "?")
    missing = device.number("md/degraded")
    action = device.texts.get("md/sync_action", "idle")
    path = quoted(f"/dev/{device.name}")
    found = False
    if missing:
        found = True
        yield wrong(
            "raid",
            "loss",
            f"{device.name} ({level}) lacks {missing} of its disks",
            "The next disk that fails can take the data with it; reads of the missing disk are"
            " computed from all the others.",
            f"sudo mdadm --detail {path}; sudo mdadm --manage {path} --add DISK",
            None,
            device.source("md/degraded"),
        )
    if action not in ("idle", "frozen"):
        found = True
        yield wrong(
            "raid",
            "speed",
            f"{device.name} is busy with {action}",
            "It reads or writes all disks beside the server, up to sync_speed_max.",
            f"echo 20000 | sudo tee {quoted(f'/sys/block/{device.name}/md/sync_speed_max')}",
            "dev.raid.speed_limit_max = 20000 in /etc/sysctl.d; and the check (mdcheck, checkarray)"
            " at a quiet hour",
            device.source("md/sync_action"),
        )
    if level in ("raid4", "raid5", "raid6"):
        found = True
        yield wrong(
            "raid",
            "speed",
            f"{device.name} is a {level}",
            "A write of one page is less than a stripe: it reads old data and parity first and"
            " writes both, so four or six requests are one. Each sync of the redo log waits for"
            " that.",
            "move redo log and binlog to a mirror (raid1, raid10), or use raid10 for all of it;"
            f" meanwhile: echo 8192 | sudo tee"
            f" {quoted(f'/sys/block/{device.name}/md/stripe_cache_size')}",
            None,
            device.source("md/level"),
        )
    if not found:
        yield fine(
            "raid",
            f"{device.name}: {level}, complete, {action}",
            device.source("md/degraded"),
            device.source("md/sync_action"),
        )
