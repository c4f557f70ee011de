# SPDX-License-Identifier: Apache-2.0
"""Learn where this build of a server keeps its connections, for when SQL does not answer."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stallscope.base.errors import Exit
from stallscope.base.text import one_line
from stallscope.collectors import processes
from stallscope.commands import _calibration, _common, _options, _sql
from stallscope.reporters import progress

if TYPE_CHECKING:
    from stallscope.collectors.calibration.stored import Calibration

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope calibrate -p mysqld
  stallscope calibrate -p mariadbd --defaults-file /etc/stallscope/my.cnf
  stallscope calibrate -p 1234 --json | jq .unknown
"""


_FIELDS = {
    "id": "connection",
    "user": "user",
    "host": "host",
    "database": "database",
    "command": "command",
    "state": "state",
    "query": "statement",
    "start": "its age",
    "last": "last statement",
    "status": "open transaction",
    "trx": "its id",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _options.add_target_arguments(parser)
    _sql.add_sql_arguments(parser, optional=False)
    parser.add_argument("--json", action="store_true", help="print stallscope.calibration/1")


def run(args: argparse.Namespace) -> Exit:
    """Calibrate, keep, print."""
    pids, servers = processes.resolve(args.pid, _common.selector(args))
    server = _calibration.server_of(servers)
    with progress.while_waiting(f"calibrating {server.name} (pid {pids[0]})"):
        login, notes = _sql.mysql_login(args, server)
        calibration, path = _calibration.run(servers, login)
    if args.json:
        print(msgspec.json.encode(calibration).decode())
        return Exit.DONE
    for line in _lines(calibration, path):
        print(line)
    for note in notes:
        print(f"note: {one_line(note, 300)}")
    return Exit.DONE


def _lines(calibration: Calibration, path: Path) -> list[str]:
    fields = [name for key, name in _FIELDS.items() if f"thd.{key}" in calibration.layout]
    if "THD.mdl_context" in calibration.layout:
        fields.append("metadata locks")
    lines = [
        f"{calibration.program} {one_line(calibration.version, 60)}, build {calibration.build}",
        f"  read from memory from now on: {', '.join(fields)}",
    ]
    if calibration.unknown:
        lines.append(f"  not found, stays unknown: {', '.join(calibration.unknown)}")
    lines.append(f"  compared with what SQL says of {calibration.compared} connections")
    lines.append(f"  kept in {path}")
    return lines
