# SPDX-License-Identifier: Apache-2.0
"""Check what works on this host, and say how to fix what does not."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from stallscope.base.errors import Exit, StallscopeError
from stallscope.base.text import clean, one_line
from stallscope.collectors import preload, processes
from stallscope.collectors.calibration import layouts
from stallscope.collectors.doctor import (
    confinement,
    disk,
    features,
    host,
    inproc,
    pokes,
    target,
)
from stallscope.collectors.doctor.checks import Check, Place, Task
from stallscope.collectors.doctor.checks import run as run_tasks
from stallscope.collectors.processes import Server
from stallscope.commands import _common, _options, _sql, _storagedoctor
from stallscope.reporters.lines import Line, print_lines
from stallscope.reporters.progress import while_waiting
from stallscope.server.families import family

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope doctor
  sudo stallscope doctor -p mysqld
  sudo stallscope doctor -p mysqld --defaults-file /etc/stallscope/my.cnf
  sudo stallscope doctor --storage -p mariadbd
  stallscope doctor --json | jq -r '.checks[] | select(.status != "ok")'
"""

SCHEMA = "stallscope.doctor/1"
_PROBE_SECONDS = 70.0
_ACCESS_SECONDS = 60.0
_SQL_SECONDS = 15.0
_STYLES: dict[str, str] = {
    "ok": "green",
    "degraded": "yellow",
    "missing": "bold red",
    "unknown": "dim",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _options.add_target_arguments(parser)
    _sql.add_sql_arguments(parser)
    _options.add_pack_argument(parser)
    parser.add_argument("--dest", type=Path, metavar="DIR", help="the store to check")
    parser.add_argument(
        "--storage",
        action="store_true",
        help="check the disks, file systems and mounts of the server instead",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (stallscope.doctor/1)")


def run(args: argparse.Namespace) -> Exit:
    """Check and print; code 3 where something is degraded, 1 where no capture is possible."""
    with while_waiting("checking"):
        checks = [*(_storagedoctor.checks(args) if args.storage else _checks(args))]
    if args.json:
        rows = [msgspec.structs.asdict(check) for check in checks]
        print(msgspec.json.encode({"schema": SCHEMA, "checks": rows}).decode())
    else:
        print_lines(list(_lines(checks)), sys.stdout)
    statuses = {check.status for check in checks}
    if "missing" in statuses:
        return Exit.FAILED
    return Exit.PARTIAL if statuses - {"ok"} else Exit.DONE


def _checks(args: argparse.Namespace) -> Iterator[Check]:
    """Check the host, and the server where one is named."""
    named = _sql.asked_for(args)
    selector = _common.selector(args)
    servers: tuple[Server, ...] = ()
    lost: Check | None = None
    pids: tuple[int, ...] = ()
    if args.pid or selector:
        try:
            pids, servers = processes.resolve(args.pid, selector)
        except StallscopeError as error:
            what = " ".join(args.pid) or str(selector)
            lost = Check("access", "missing", f"no capture of {what}: {error}", "see `ps -e`")
    server = servers[0] if len(servers) == 1 else None
    place = Place(server=server, dest=args.dest)
    tasks = [
        Task("python", host.python),
        Task("tools", host.tools),
        Task("privileges", partial(host.privileges, place)),
        Task("kernel-lockdown", partial(host.lockdown, place)),
        Task("ptrace-scope", partial(host.yama, place)),
        Task("container", partial(host.container, place)),
        Task("features", features.features, _PROBE_SECONDS),
        Task(preload.LIBRARY, inproc.library),
        Task("inproc-folder", partial(inproc.folder, place)),
        Task("store", partial(disk.disk, place)),
        Task("poke", pokes.pokes, _PROBE_SECONDS),
    ]
    if servers:
        tasks += _of_server(args, place, pids, servers)
    if not args.no_sql and (named or (server is not None and _sql.is_asked(server))):
        # Imported here: it is large, and other servers do not need it.
        from stallscope.collectors.doctor.sql import sql

        tasks.append(Task("sql", partial(sql, partial(_sql.login, args, server)), _SQL_SECONDS))
    yield from run_tasks(tasks)
    if lost is not None:
        yield lost


def _of_server(
    args: argparse.Namespace, place: Place, pids: tuple[int, ...], servers: tuple[Server, ...]
) -> Iterator[Task]:
    access = partial(target.access, pids, servers, _options.pack_dirs(args))
    yield Task("server", partial(_name, pids, servers))
    yield Task("server-container", partial(target.namespaces, place))
    yield Task("server-confinement", partial(confinement.confinement, place))
    yield Task("inproc", partial(inproc.agent, place, pids))
    yield Task("access", access, _ACCESS_SECONDS)
    if _is_calibrated(place.server):
        yield Task("calibration", partial(target.calibration, pids[0]), _ACCESS_SECONDS)


def _name(pids: tuple[int, ...], servers: tuple[Server, ...]) -> Iterator[Check]:
    for server in servers:
        many = "1 process" if len(pids) == 1 else f"{len(pids)} processes"
        yield Check("server", "ok", f"{server.name}: {server}, {many}")


def _is_calibrated(server: Server | None) -> bool:
    return server is not None and family(server.main.exe, server.main.comm) in layouts.FAMILIES


def _lines(checks: list[Check]) -> Iterator[Line]:
    width = max(len(check.name) for check in checks)
    for check in checks:
        head = f"{check.status:<8} {clean(check.name):<{width}}  "
        for line in _wrap(check.what, head, width + 11):
            yield Line(line, _STYLES[check.status])
        below = [check.why, f"-> {check.fix}" if check.fix else None]
        below.append(f"keep it: {check.permanent}" if check.permanent else None)
        for text in filter(None, below):
            for line in _wrap(text, " " * (width + 11), width + 14):
                yield Line(line)


def _wrap(text: str, head: str, hang: int) -> list[str]:
    return textwrap.wrap(
        one_line(text),
        width=max(80, hang + 40),
        initial_indent=head,
        subsequent_indent=" " * hang,
        break_on_hyphens=False,
        break_long_words=False,  # commands to type can be copied
    )
