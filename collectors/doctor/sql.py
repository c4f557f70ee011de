# SPDX-License-Identifier: Apache-2.0
"""SQL: which account is used, whether its login works, and which rights it lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.collectors.doctor.checks import Check
from stallscope.collectors.ownclaims import claims
from stallscope.collectors.sql import servers
from stallscope.collectors.sql.failures import SqlError
from stallscope.collectors.sql.servers import ServerLogin
from stallscope.collectors.sql.versions import ServerFacts
from stallscope.model.sessions import Sessions

__all__ = ["sql"]

_SECONDS = 3.0
_LOST = "no connections, statements, or owners of row and metadata locks"


def sql(login: Callable[[], tuple[ServerLogin, tuple[str, ...]]]) -> Iterator[Check]:
    """Log in once, run the queries of a capture, and report what was refused."""
    try:
        found, notes = login()
    except StallscopeError as error:
        yield Check("sql-login", "degraded", one_line(str(error)), "correct the option file")
        return
    for note in notes:
        yield Check("sql-options", "degraded", one_line(note))
    asked = servers.connect(found)
    with closing(asked.connection) as connection:
        try:
            facts = connection.open(_SECONDS)
        except SqlError as error:
            what = one_line(f"{found}: {error}: {_LOST}")
            yield Check("sql", "degraded", what, _remedy(str(error), asked.rights))
            return
        who = found if facts.role is None else f"{facts.role!r} at {found.where}"
        yield Check("sql", "ok", one_line(f"{who}: connected, version {facts.version.text}"))
        sessions = asked.fetch(_SECONDS)
        refused = [*([sessions.reason] if sessions.reason else []), *sessions.notes]
        for text in refused:
            yield Check("sql-rights", "degraded", one_line(text), _statement(text, asked.rights))
        if not refused:
            what = (
                f"{len(sessions.sessions)} connections, and their waits for each other, are"
                " readable"
            )
            yield Check("sql-rights", "ok", what)
        yield own_connections(sessions, facts)


def own_connections(sessions: Sessions, facts: ServerFacts) -> Check:
    """Count stallscope's connections to the server: this one, those that the server knows by their
    program, and those that other processes have claimed."""
    known = sum(session.own for session in sessions.sessions)
    claimed = sum(pid == facts.listener_pid for pid, _ in claims())
    count = max(1, known, 1 + claimed)
    many = "1 connection, this one" if count == 1 else f"{count} connections, with this one"
    return Check(
        "own-connections",
        "ok",
        f"stallscope has {many}: it leaves them and their threads out of what it shows",
    )


def _remedy(error: str, rights: str) -> str:
    """Return what to do about a login that failed."""
    command = "pip install "
    if command in error:
        return one_line(error[error.index(command) :])
    return f"create the account: {rights}"


def _statement(text: str, rights: str) -> str:
    """Return the statement that an error message names."""
    for verb in ("GRANT ", "INSTALL SONAME ", "UPDATE ", "SET GLOBAL "):
        if verb in text:
            return one_line(text[text.index(verb) :])
    return rights
