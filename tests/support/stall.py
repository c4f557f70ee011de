# SPDX-License-Identifier: Apache-2.0
"""Make one real stall in a server of its own, and keep it until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys

from tests.support.demo import end_once
from tests.support.servers import ChildEnded, Late, Unavailable
from tests.support.stalls import (
    answer_stalls,
    disk_stalls,
    host_stalls,
    innodb_stalls,
    other_stalls,
    seed_stalls,
)
from tests.support.stalls.stall import DiskStall, NamedStall

STALLS: dict[str, NamedStall] = {
    **seed_stalls.STALLS,
    **innodb_stalls.STALLS,
    **disk_stalls.STALLS,
    **other_stalls.STALLS,
    **answer_stalls.STALLS,
    **host_stalls.STALLS,
}
"""Each group of stalls has a module of its own."""


def say(text: str) -> None:
    print(f"stall: {text}", flush=True)


def keep(stall: NamedStall) -> None:
    """Make the stall, say where it is, and wait for a signal."""
    with stall.started() as (server, made):
        say(f"started {server.name} {server.version()}, pid {server.pid}, in {server.folder}")
        with made:
            say(stall.story)
            say(f"look at it: scripts/stallscope snap -p {server.pid}")
            say(f"talk to it: {server.client_command()}")
            if isinstance(stall, DiskStall) and server.frozen.is_dir():
                say(f"let the disk answer again: fsfreeze --unfreeze {server.frozen}")
            say("it goes on until Ctrl-C")
            signal.pause()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/stall",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {name:38}{stall.story}" for name, stall in STALLS.items()),
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
