# SPDX-License-Identifier: Apache-2.0
"""What was measured of made servers, for tests of reports of ``storage writes``."""

from __future__ import annotations

import msgspec

from stallscope.model.storage import SCHEMA, FileSums, ProcessIo, StorageLine
from stallscope.model.storagecounters import Commits, StorageChanges
from stallscope.model.storagewrites import DiskRow, HostWrites, Measured, class_bytes

__all__ = ["CHANGES", "file", "hostile", "idle", "line", "measured", "mysql", "unknown"]

MIB = 1 << 20
HOSTILE = "/data/\x1b[31mred\u202e\n\udc80" + "x" * 5000

CHANGES = StorageChanges(
    60.0,
    "mariadb",
    "10.11.6-MariaDB",
    commits=Commits(12_000, "Binlog_cache_use", exact=True),
    rows=60_000,
    rows_source="Handler_write, _update, _delete",
    row_bytes=12.0 * MIB,
    row_bytes_source="binary log in row format",
    log_bytes=20.0 * MIB,
    counters={
        "Innodb_data_written": 700.0 * MIB,
        "Innodb_os_log_written": 22.0 * MIB,
        "Innodb_dblwr_pages_written": 20_000.0,
        "Innodb_dblwr_writes": 320.0,
    },
    settings={"innodb_page_size": "16384", "innodb_doublewrite": "ON", "log_bin": "ON"},
)


def file(path: str | None, name: str, charged: int | None, **more: object) -> FileSums:
    """Return what went to one file: ``requested_bytes`` is what was charged, unless said."""
    number = abs(hash(path)) % 10_000 if path is None else sum(map(ord, path))
    fields: dict[str, object] = {
        "path": path,
        "class": name,
        "dev": "254:1",
        "ino": number,
        "requests": 10,
        "requested_bytes": charged or 0,
        "write_ns": 10,
        "charged_bytes": charged,
        "mapped_bytes": None if charged is None else 0,
        "syncs": 1,
        "sync_ns": 1,
        "sum_n": 0,
        "sum_nn": 0,
        "sum_nt": 0,
        "sum_tt": 0,
    }
    return msgspec.convert(fields | more, FileSums)


def line(*files: FileSums, pid: int = 77, **more: object) -> StorageLine:
    """Return a final line."""
    charged = sum(one.charged_bytes or 0 for one in files)
    io = ProcessIo(charged + 1000, 50, charged + 8192, 4096)
    fields: dict[str, object] = {
        "schema": SCHEMA,
        "pid": pid,
        "seconds": 60.0,
        "final": True,
        "files": files,
        "io": io,
    }
    return StorageLine(**(fields | more))  # type: ignore[arg-type]


def measured(*lines: StorageLine, name: str = "mariadbd", **more: object) -> Measured:
    """Return a measurement of a host with one disk, to which 1 GiB went."""
    io = {one.pid: ProcessIo(100, 1, 5000, 0) for one in lines}
    before = HostWrites(io, {(1, 1): 500}, {"254:1": DiskRow("vda1", MIB, 5, 7)})
    after = HostWrites(
        io, {(1, 1): 4 * MIB, (9, 9): MIB}, {"254:1": DiskRow("vda1", 1025 * MIB, 9000, 1007)}
    )
    total = class_bytes(lines[0])
    half = {key: count // 2 for key, count in total.items()}
    fields: dict[str, object] = {
        "name": name,
        "pid": 77,
        "lines": lines,
        "series": ((0.0, {}), (30.0, half), (60.0, total)),
        "first": before,
        "last": after,
        "began": {},
        "time_ns": 1_790_000_000_000_000_000,
    }
    return Measured(**(fields | more))  # type: ignore[arg-type]


def mysql() -> Measured:
    """Return a server with its doublewrite buffer in ibdata1, a deleted file, and a mapping."""
    return measured(
        line(
            file("/data/ibdata1", "data", 340 * MIB, requests=400),
            file("/data/t/a.ibd", "data", 300 * MIB, requests=20_000),
            file("/data/ib_logfile0", "redo", 60 * MIB, requests=12_000, requested_bytes=22 * MIB),
            file("/data/bin.000001", "binlog", 40 * MIB, requests=12_100, requested_bytes=12 * MIB),
            file("/tmp/#sql1", "temporary", 8 * MIB, deleted=True, dev="0:40"),
            file(None, "other", 2 * MIB, mapped_bytes=2 * MIB),
        )
    )


def idle() -> Measured:
    """Return a server that wrote nothing."""
    quiet = ProcessIo(0, 0, 0, 0)
    return measured(line(io=quiet))


def unknown() -> Measured:
    """Return a server of which charged bytes are not known, and /proc/PID/io cannot be read."""
    return measured(
        line(
            file("/data/t/a.ibd", "data", None, requested_bytes=3 * MIB, direct_bytes=3 * MIB),
            io=None,
            charged_why_not="no tracepoint writeback_dirty_folio",
            lost={"keys-full": 3},
        ),
        name="mysqld",
    )


def hostile() -> Measured:
    """Return a server with hostile names, and two processes of which one ended."""
    one = file(HOSTILE, "data", 5 * MIB)
    weird = file("/x", "\x1b]0;evil\x07", 7 * MIB, dev="\x1b[2J:9")
    return measured(
        line(one, weird),
        line(one, pid=78, ended=True),
        name="post\x1b[0mgres",
        began={99: 3 * MIB},
        notes=("a\nb\x1b[1m",),
    )
