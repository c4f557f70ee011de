# SPDX-License-Identifier: Apache-2.0
"""The checks of ``stallscope doctor --storage``: the disks below a server."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from stallscope.base.errors import StallscopeError, UsageError
from stallscope.base.text import clean, one_line
from stallscope.collectors import processes
from stallscope.collectors.doctor.checks import Check
from stallscope.collectors.processes import NotRunningError, Server
from stallscope.commands import _common, _sql
from stallscope.server.families import family

if TYPE_CHECKING:
    from stallscope.analyzers.disks.advice import Finding

__all__ = ["checks"]

_SQL_SECONDS = 10.0


def checks(args: argparse.Namespace) -> Iterator[Check]:
    """Yield what was checked, what is wrong, and what is not known."""
    # Imported here: other checks do not need it.
    from stallscope.analyzers.disks.rules import advise
    from stallscope.collectors.disks.gather import Subject, gather

    server = _server(args)
    if server is None:
        facts = gather(Subject(None, "mariadb", ("mariadbd",), args.datadir or "/var/lib/mysql"))
        yield Check("server", "unknown", "no server runs: its option files are read")
    else:
        kind = family(server.main.exe, server.main.comm)
        yield Check("server", "ok", one_line(f"{server.name}: {server}"))
        variables, status, why = _asked(args, server)
        if why is not None:
            yield why
        facts = gather(
            Subject(server.main.pid, kind, server.main.argv, server.datadir, variables, status)
        )
    yield from map(_check, advise(facts))


def _server(args: argparse.Namespace) -> Server | None:
    selector = _common.selector(args)
    if len(args.pid) > 1:
        raise UsageError("--storage is about one server: give one -p")
    try:
        return processes.find_server(args.pid[0] if args.pid else None, selector)
    except NotRunningError:
        if args.pid or selector.socket is not None or selector.port is not None:
            raise
        return None


def _asked(
    args: argparse.Namespace, server: Server
) -> tuple[Mapping[str, str] | None, Mapping[str, float], Check | None]:
    """Return variables and status numbers by SQL, or a check that says why there are none."""
    _sql.asked_for(args)
    if args.no_sql:
        return None, {}, Check("sql", "unknown", "not asked: --no-sql")
    if family(server.main.exe, server.main.comm) not in ("mysql", "mariadb"):
        return None, {}, None
    from stallscope.collectors.sql import storagesettings
    from stallscope.collectors.sql.connection import Connection

    try:
        login, _ = _sql.mysql_login(args, server)
        connection = Connection(login)
        try:
            variables, status = connection.ask(storagesettings.read, _SQL_SECONDS)
        finally:
            connection.close()
    except StallscopeError as error:
        what = f"settings are those of the command line and the option files: {error}"
        return None, {}, Check("sql", "unknown", one_line(what), "see stallscope doctor -p PID")
    return variables, status, None


def _check(finding: Finding) -> Check:
    what = finding.what
    if finding.risk == "loss":
        what = f"can lose data: {what}"
    return Check(
        clean(finding.rule),
        finding.status,
        what,
        finding.fix,
        finding.why,
        finding.permanent,
        finding.risk,
        tuple(source for source in finding.sources if source),
    )
