# SPDX-License-Identifier: Apache-2.0
"""Make one real stall in a server of its own, and keep it until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from demo import end_once
from servers import ChildEnded, Late, MariaDB, MySQL55, SqlServer, Unavailable
from stalls import (
    INDEX_LOCK_OPTIONS,
    TABLE_STORM_OPTIONS,
    deadlock_check_storm,
    global_read_lock,
    index_lock,
    metadata_lock_pileup,
    row_lock_convoy,
    table_open_storm,
    template_of_tables,
)


class Stall(NamedTuple):
    """A stall, and the server that shows it."""

    server: Callable[[], SqlServer]
    make: Callable[[SqlServer], AbstractContextManager[object]]
    story: str


STALLS = {
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
    "global-read-lock": Stall(
        MariaDB, global_read_lock, "20 writers wait for FLUSH TABLES WITH READ LOCK"
    ),
    "row-lock": Stall(
        MySQL55, row_lock_convoy, "40 connections wait for a row that an idle transaction locked"
    ),
    "deadlock-check": Stall(
        MySQL55,
        lambda server: deadlock_check_storm(server, 190),
        "190 connections update one row; each new waiter is checked against all others",
    ),
    "table-open-lock": Stall(
        lambda: MySQL55(*TABLE_STORM_OPTIONS, template=template_of_tables()),
        table_open_storm,
        "32 connections open 2000 tables through a table cache of 64",
    ),
    "index-lock": Stall(
        lambda: MySQL55(*INDEX_LOCK_OPTIONS),
        index_lock,
        "40 connections insert rows of 7 KB into an index larger than the buffer pool",
    ),
}


def say(text: str) -> None:
    print(f"stall: {text}", flush=True)


def keep(stall: Stall) -> None:
    """Make the stall, say where it is, and wait for a signal."""
    with stall.server() as server:
        say(f"started {server.name} {server.version()}, pid {server.pid}, in {server.folder}")
        with stall.make(server):
            say(stall.story)
            say(f"look at it: scripts/stallscope snap -p {server.pid}")
            say(f"talk to it: mariadb --socket={server.socket} --user=root")
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
