# SPDX-License-Identifier: Apache-2.0
"""Make one real stall in a server of its own, and keep it until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.demo import end_once
from tests.support.servers import (
    ChildEnded,
    Late,
    MariaDB,
    MySQL55,
    MySQL97,
    SqlServer,
    Unavailable,
)
from tests.support.stalls import (
    FILE_EXTEND_OPTIONS,
    INDEX_LOCK_OPTIONS,
    REDO_SYNC_OPTIONS,
    TABLE_STORM_OPTIONS,
    Device,
    deadlock_check_storm,
    device_missing,
    file_extend,
    global_read_lock,
    index_lock,
    loop_device,
    metadata_lock_pileup,
    redo_sync,
    row_lock_convoy,
    table_open_storm,
    template_of_tables,
)

INDEX_LOCK_FIXED = ("--innodb-buffer-pool-size=512M", "--innodb-log-file-size=256M")


class Stall(NamedTuple):
    """A stall, and the server that shows it."""

    server: Callable[[], SqlServer]
    make: Callable[[SqlServer], AbstractContextManager[object]]
    story: str

    @contextmanager
    def started(self) -> Iterator[tuple[SqlServer, AbstractContextManager[object]]]:
        """Start the server; yield it and what makes the stall in it."""
        with self.server() as server:
            yield server, self.make(server)


class DiskStall(NamedTuple):
    """A stall of a server whose data is on a device that can be made to stop answering."""

    server: Callable[[Path], SqlServer]
    make: Callable[[SqlServer, Device], AbstractContextManager[object]]
    story: str

    @contextmanager
    def started(self) -> Iterator[tuple[SqlServer, AbstractContextManager[object]]]:
        """Start the server on such a device; yield it and what makes the stall in it."""
        if reason := device_missing():
            raise Unavailable(reason)
        with loop_device() as device, self.server(device.folder) as server:
            yield server, self.make(server, device)


STALLS: dict[str, Stall | DiskStall] = {
    "metadata-lock": Stall(
        MariaDB,
        metadata_lock_pileup,
        "20 SELECTs queue behind an ALTER TABLE, which waits for a transaction that sits idle",
    ),
    "metadata-lock-select": Stall(
        MariaDB,
        lambda server: metadata_lock_pileup(server, long_select=True),
        "20 SELECTs queue behind an ALTER TABLE, which waits for a SELECT that takes long;"
        " 5 more connections are idle",
    ),
    "metadata-lock-mysql97": Stall(
        # Its data cannot be elsewhere, and what an ALTER TABLE syncs may take a disk seconds.
        lambda: MySQL97("--innodb-flush-method=nosync"),
        metadata_lock_pileup,
        "20 SELECTs queue behind an ALTER TABLE, in a MySQL 9.7 with a root of its own",
    ),
    "global-read-lock": Stall(
        MariaDB, global_read_lock, "20 writers wait for FLUSH TABLES WITH READ LOCK"
    ),
    "row-lock": Stall(
        MySQL55,
        row_lock_convoy,
        "40 connections wait for a row that an idle transaction locked, in a MySQL 5.5.9",
    ),
    "row-lock-mariadb": Stall(
        MariaDB,
        row_lock_convoy,
        "40 connections wait for a row that an idle transaction locked, in MariaDB",
    ),
    "deadlock-check": Stall(
        MySQL55,
        lambda server: deadlock_check_storm(server, 190),
        "190 connections update one row; each new waiter is checked against all others",
    ),
    "deadlock-check-fixed": Stall(
        MySQL55,
        lambda server: deadlock_check_storm(server, 4),
        "no stall: the same updates from a pool of 4 connections",
    ),
    "table-open-lock": Stall(
        lambda: MySQL55(*TABLE_STORM_OPTIONS, template=template_of_tables()),
        table_open_storm,
        "64 connections open 2000 tables through a table cache of 64",
    ),
    "index-lock": Stall(
        lambda: MySQL55(*INDEX_LOCK_OPTIONS),
        index_lock,
        "40 connections insert rows of 7 KB into an index larger than the buffer pool",
    ),
    "index-lock-fixed": Stall(
        lambda: MySQL55(*INDEX_LOCK_OPTIONS, *INDEX_LOCK_FIXED),
        lambda server: index_lock(server, 4),
        "no stall: the same inserts from a pool of 4 connections, and a buffer pool of 512 MB;"
        " it writes some 30 MB a second",
    ),
    "file-extend": DiskStall(
        lambda folder: MySQL55(*FILE_EXTEND_OPTIONS, parent=folder),
        file_extend,
        "20 connections insert into a table whose file is extended on a disk that does not answer",
    ),
    "redo-sync": DiskStall(
        lambda folder: MySQL55(*REDO_SYNC_OPTIONS, parent=folder),
        redo_sync,
        "20 commits wait for the redo log on a disk that does not answer",
    ),
}


def say(text: str) -> None:
    print(f"stall: {text}", flush=True)


def keep(stall: Stall | DiskStall) -> None:
    """Make the stall, say where it is, and wait for a signal."""
    with stall.started() as (server, made):
        say(f"started {server.name} {server.version()}, pid {server.pid}, in {server.folder}")
        with made:
            say(stall.story)
            say(f"look at it: scripts/stallscope snap -p {server.pid}")
            say(f"talk to it: mariadb --socket={server.socket} --user=root")
            if isinstance(stall, DiskStall):
                # The server's folder is on the device, whose image is on the one that is frozen.
                below = server.folder.parent.with_name("below")
                say(f"let the disk answer again: fsfreeze --unfreeze {below}")
            say("it goes on until Ctrl-C")
            signal.pause()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/stall",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {name:22}{stall.story}" for name, stall in STALLS.items()),
    )
    parser.add_argument("name", metavar="NAME", choices=STALLS, help="one of those below")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_once)
    try:
        keep(STALLS[arguments.name])
    except (ChildEnded, Late, Unavailable) as error:
        print(f"stall: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
