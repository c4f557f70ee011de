# SPDX-License-Identifier: Apache-2.0
"""``stallscope storage cache``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from stallscope.base.errors import Exit, StallscopeError, UsageError
from stallscope.commands import _common, _options, _sql
from stallscope.model.storagecache import UNCACHEABLE, CacheLine, Keep, LogFiles, parse_keep

if TYPE_CHECKING:
    from stallscope.collectors.processes import Server
    from stallscope.reporters.storagecache import Facts

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope storage cache -p mysqld
  stallscope storage cache -p mysqld --json | jq -c '.classes[]'
  stallscope storage cache -p mysqld --uncache binlog            what could be freed
  stallscope storage cache -p mysqld --uncache binlog --keep 2 --yes --seconds 10
"""

_TOP = 15
_MAX_WATCHED = 3600
_MAX_FILES = 10_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _options.add_target_arguments(parser)
    _sql.add_deadline_argument(_sql.add_sql_arguments(parser))
    drop = parser.add_argument_group("dropping")
    drop.add_argument(
        "--uncache",
        type=_classes,
        default=(),
        metavar="CLASS,...",
        help="show what old files of these classes hold that could be freed: binlog, relay, redo",
    )
    drop.add_argument("--yes", action="store_true", help="free it")
    drop.add_argument(
        "--keep",
        type=_keep,
        metavar="N|SIZE|TIME",
        help="keep of each log its newest N files, its newest bytes (500M, 2G), or what was written"
        " in the last TIME (30s, 10min, 2h)",
    )
    drop.add_argument(
        "--allow-redo",
        action="store_true",
        help="let old files of InnoDB's redo log go too: later writes to them may have to read",
    )
    drop.add_argument(
        "--seconds",
        type=_common.time_between(0.1, _MAX_WATCHED),
        metavar="N",
        help="watch what the server reads from disks for so long, before and after",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--json", action="store_true", help="print JSON (stallscope.storage-cache/1)"
    )
    output.add_argument(
        "--top",
        type=_common.count,
        default=_TOP,
        metavar="N",
        help=f"show the N files with the most cached bytes (default {_TOP}); 0: all",
    )
    output.add_argument(
        "--max-files",
        type=_common.count,
        metavar="N",
        help="count at most N files (default 100000)",
    )


def _classes(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    wrong = [word for word in found if word not in UNCACHEABLE]
    if wrong or not found:
        what = repr(wrong[0][:40]) if wrong else "nothing"
        raise argparse.ArgumentTypeError(
            f"{what} is no class that can be dropped: {', '.join(UNCACHEABLE)}, with commas"
        )
    return found


def _keep(text: str) -> Keep:
    try:
        return parse_keep(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(args: argparse.Namespace) -> Exit:
    """Ask the probe, and print what the cache holds."""
    from stallscope.collectors import processes, storagecache
    from stallscope.reporters import lines
    from stallscope.reporters import storagecache as report

    _check(args)
    pids, servers = processes.resolve(args.pid, _common.selector(args))
    files, notes = _asked(args, _sql.one_of(servers))
    request = storagecache.Request(
        pids=pids,
        files=files,
        datadir=servers[0].datadir if len(servers) == 1 else None,
        uncache=args.uncache,
        allow_redo=args.allow_redo,
        keep=args.keep,
        drop=args.yes,
        watch_seconds=args.seconds or 0.0,
        max_files=args.max_files or None,
    )
    line = storagecache.read(request)
    names = ", ".join(f"{server.name} (pid {server.main.pid})" for server in servers)
    facts = _facts(names, files, notes, args)
    if args.json:
        print(report.dumps(line, facts))
    else:
        width = lines.width_of(sys.stdout)
        lines.print_lines(report.render(line, facts, width=width, top=args.top), sys.stdout)
    return Exit.PARTIAL if _is_partial(line) else Exit.DONE


def _check(args: argparse.Namespace) -> None:
    if not args.uncache:
        given = [
            name
            for name, value in (
                ("--yes", args.yes),
                ("--keep", args.keep),
                ("--allow-redo", args.allow_redo),
            )
            if value
        ]
        if given:
            raise UsageError(f"{', '.join(given)}: of what? give --uncache")
    if args.seconds is not None and not args.yes:
        raise UsageError("--seconds watches what --yes causes: give --uncache and --yes")


def _asked(args: argparse.Namespace, server: Server | None) -> tuple[LogFiles, tuple[str, ...]]:
    """Return what the server says of its files, and notes. A login that the user asked for must
    not fail."""
    is_asked = _sql.asked_for(args)
    if args.no_sql or server is None or server.name == "postgres":
        return LogFiles(), ()
    from stallscope.collectors.sql.connection import Connection
    from stallscope.collectors.sql.logfiles import read_log_files

    try:
        login, notes = _sql.mysql_login(args, server)
        connection = Connection(login)
        try:
            return connection.ask(read_log_files, args.sql_deadline), notes
        finally:
            connection.close()
    except StallscopeError as error:
        if is_asked:
            raise
        why = f"no SQL ({error}): folders are those of its open files; the buffer pool is unknown"
        return LogFiles(), (why,)


def _facts(server: str, files: LogFiles, notes: tuple[str, ...], args: argparse.Namespace) -> Facts:
    from stallscope.collectors.host.memory import Memory
    from stallscope.reporters.storagecache import Facts

    memory = Memory().read(0)

    def of(name: str) -> int | None:
        value = memory.get(f"memory.{name}")
        return None if value is None else int(value)

    return Facts(
        server=server,
        ram_bytes=of("total_bytes"),
        page_cache_bytes=of("page_cache_bytes"),
        swap_used_bytes=of("swap_used_bytes"),
        buffer_pool_bytes=files.buffer_pool_bytes,
        notes=notes,
        uncache=args.uncache,
        keep=args.keep,
    )


def _is_partial(line: CacheLine) -> bool:
    return (
        line.limit_reached
        or line.late
        or bool(line.unreadable or line.long_paths)
        or any(one.error is not None and not one.memory for one in line.files)
    )
