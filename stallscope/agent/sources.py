# SPDX-License-Identifier: Apache-2.0
"""The collectors of one server process; a restarted server gets new ones."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from stallscope.agent.calibrator import Calibrator
from stallscope.agent.uncaching import Uncaching
from stallscope.collectors.collector import Collector, sample
from stallscope.collectors.host import Backends, host_collectors
from stallscope.collectors.host.measured import recent
from stallscope.collectors.processes import Server
from stallscope.collectors.triggers.command import CommandCollector
from stallscope.collectors.triggers.engine import (
    needs_processlist,
    sources_named,
    status_variables,
)
from stallscope.collectors.triggers.settings import AgentSettings
from stallscope.model.samples import Sample
from stallscope.model.sessions import Sessions
from stallscope.reporters.statusmetrics import VARIABLES
from stallscope.server.deadlocks import Deadlock
from stallscope.server.families import family

if TYPE_CHECKING:
    from stallscope.collectors.host.collecting import HostCollector
    from stallscope.collectors.sql.asking import ServerConnection
    from stallscope.collectors.sql.connection import Connection
    from stallscope.collectors.sql.deadlocks import DeadlockWatch
    from stallscope.collectors.sql.login import Login
    from stallscope.collectors.sql.servers import ServerLogin
    from stallscope.collectors.sql.sessiontexts import Texts

__all__ = ["SESSIONS_SECONDS", "SQL_BASICS", "SQL_THREAD", "Sources", "constants", "of_server"]

SQL_THREAD = "sql"
SQL_BASICS = frozenset({"heartbeat", "status", "processlist"})
"""Collectors that work on every server whose account has its rights."""
COMPRESSION_REST_SECONDS = 300.0
"""No trigger reads it: a scraper draws it over days."""
INFREQUENT_SECONDS = 5.0
"""The polling interval of values that no trigger reads, for the timeline of incidents."""
DEADLOCK_SECONDS = 5.0
"""At rest, from one poll for deadlocks to the next where there is one, or a log is read."""
BLIND_DEADLOCK_SECONDS = 30.0
"""The same where the server must be asked whether there is one."""
CLOSE_SECONDS = 1.0
"""The longest time that the end waits for the heartbeat's connection, after the other's."""
IDLE_SECONDS = 60.0
"""After so long without a question the child that asks a PostgreSQL ends: at rest only that of the
heartbeat is there."""
SESSIONS_SECONDS = 1.0
"""The longest time that a capture waits for the server's sessions."""

ALWAYS = (
    "Aborted_clients",
    "Aborted_connects",
    "Com_commit",
    "Connection_errors_max_connections",
    "Connections",
    "Innodb_buffer_pool_pages_dirty",
    "Innodb_buffer_pool_read_requests",
    "Innodb_buffer_pool_reads",
    "Innodb_buffer_pool_wait_free",
    "Innodb_data_fsyncs",
    "Innodb_data_pending_fsyncs",
    "Innodb_data_pending_reads",
    "Innodb_data_pending_writes",
    "Innodb_data_written",
    "Innodb_log_waits",
    "Innodb_os_log_written",
    "Innodb_row_lock_current_waits",
    "Innodb_row_lock_waits",
    "Innodb_rows_read",
    "Opened_tables",
    "Questions",
    "Rpl_semi_sync_master_clients",
    "Rpl_semi_sync_master_wait_sessions",
    "Rpl_semi_sync_source_clients",
    "Rpl_semi_sync_source_wait_sessions",
    "Slow_queries",
    "Threads_connected",
    "Threads_created",
    "Threads_running",
    "wsrep_cluster_size",
    "wsrep_flow_control_paused_ns",
    "wsrep_local_recv_queue",
    "wsrep_ready",
)
"""Status variables that are recorded in addition to those that triggers name."""


class Sources(msgspec.Struct):
    """The collectors and queries of one server process."""

    collectors: tuple[Collector, ...]
    sessions: Callable[[], Sessions] | None = None
    """Queries the sessions; called in the SQL thread. None: there is no SQL connection."""
    why_no_sessions: str = "SQL is not used for this server"
    texts: Callable[[], Texts] | None = None
    """Queries the server's texts about a stall; called in the SQL thread."""
    set_rest: Callable[[bool], None] = lambda at_rest: None
    """To be called before each poll."""
    deadlock_seen: Callable[[], None] = lambda: None
    """To be called when the wait programs see that a deadlock's victim was chosen."""
    version: Callable[[], str] = lambda: ""
    """Returns the server's version, "" where nobody has logged in."""
    close: Callable[[], None] = lambda: None


def constants() -> dict[str, float]:
    """Return values that no sample has."""
    return {"host.cpus": float(os.cpu_count() or 1)}


class Deadlocks:
    """A collector that gives each new deadlock to ``keep``, and counts them.

    It has its own thread: storing one waits for the disk.
    """

    name = thread = "deadlocks"
    deadline = 5.0
    interval = 0.0

    def __init__(
        self,
        watch: DeadlockWatch,
        keep: Callable[[Deadlock], object],
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """``is_ready``: the status was read, which says whether the server counts deadlocks."""
        self._watch = watch
        self._keep = keep
        self._is_ready = is_ready
        self._begun = False
        self._cued = False

    @property
    def rest_interval(self) -> float:
        """Return the least seconds between two polls at rest."""
        if self._cued or self._watch.moved or not self._watch.asks:
            return DEADLOCK_SECONDS
        return BLIND_DEADLOCK_SECONDS

    def deadlock_seen(self) -> None:
        """Poll next time for sure: the wait programs saw that a victim was chosen."""
        self._cued = True

    def collect(self) -> Sample:
        """Poll once. Raises: StallscopeError where the server or the disk does not answer."""
        return sample(self.name, self._poll)

    def _poll(self, clock_ns: int) -> dict[str, float]:
        if not self._begun and not self._is_ready():
            return {}
        cued, self._cued = self._cued, False
        found = self._watch.poll(cue=cued) if self._begun else self._watch.begin()
        self._begun = True
        for deadlock in found:
            self._keep(deadlock)
        counts = self._watch.counts()
        values = {"deadlocks.seen": float(counts.seen)}
        if counts.missed is not None:
            values["deadlocks.missed"] = float(counts.missed)
        return values

    def close(self) -> None:
        """Close the server's log."""
        self._watch.close()


def of_server(
    server: Server,
    settings: AgentSettings,
    login: Callable[[Server], ServerLogin] | None,
    *,
    poll_interval: float,
    keep_deadlock: Callable[[Deadlock], object],
    use_layout: Callable[[str], None],
) -> Sources:
    """Return the sources of this server process; without ``login`` none over SQL. ``use_layout``
    takes where it keeps its connections."""
    main = server.main
    host = host_collectors(
        main.pid,
        start_time=main.start_time,
        datadir=server.datadir,
        ports=server.ports,
        sockets=server.sockets,
        server=server,
    )
    server_family = family(main.exe, main.comm)
    deadline = max(0.5, min(2.0, poll_interval))
    commands = [CommandCollector(command) for command in settings.commands]
    if server_family == "postgres":
        return _of_postgres(server, (*host, *commands), host, login, deadline)
    collectors: list[Collector] = [*host, *commands]

    def host_rests(at_rest: bool) -> None:
        for collector in host:
            collector.at_rest = at_rest

    if server_family not in ("mysql", "mariadb"):
        return Sources(tuple(collectors), set_rest=host_rests)
    ask = None if login is None else partial(_mysql_login, login, server)
    collectors.append(Calibrator(main.pid, ask, use_layout))
    if settings.storage.uncache:
        collectors.append(Uncaching(server, settings.storage, ask))
    if ask is None:
        return Sources(tuple(collectors), set_rest=host_rests)
    # Imported here: the agent of another server does not need PyMySQL.
    from stallscope.collectors.sql.collecting import REST_SECONDS
    from stallscope.collectors.sql.connection import Connection
    from stallscope.collectors.sql.deadlocks import COUNTER, DeadlockWatch
    from stallscope.collectors.sql.heartbeat import Heartbeat
    from stallscope.collectors.sql.processlist import Processlist
    from stallscope.collectors.sql.retries import LoginRetries
    from stallscope.collectors.sql.sessions import fetch
    from stallscope.collectors.sql.status import Pulse, Status
    from stallscope.collectors.sql.texts import fetch_texts

    found, retries = ask(), LoginRetries()
    beat = Connection(found, retries=retries)
    connection = Connection(found, retries=retries, lives=beat.answered_since)
    few = status_variables(settings) | {"Questions", "Threads_running", COUNTER}
    names = few | frozenset(ALWAYS) | frozenset(VARIABLES)
    status = Status(connection, deadline, names=names, few=few)
    listed_seconds = 0.0 if needs_processlist(settings) else REST_SECONDS
    collectors += [
        Heartbeat(beat, deadline),
        status,
        Pulse(connection, status),
        Processlist(connection, deadline, listed_seconds),
        *_infrequent(connection, settings),
    ]
    watch = DeadlockWatch(connection, main.pid, lambda: status.latest.get(COUNTER))
    deadlocks = Deadlocks(watch, keep_deadlock, lambda: bool(status.latest))

    def set_rest(at_rest: bool) -> None:
        host_rests(at_rest)
        status.at_rest = at_rest

    return Sources(
        (*collectors, deadlocks),
        set_rest=set_rest,
        deadlock_seen=deadlocks.deadlock_seen,
        sessions=lambda: _with_host(fetch(connection, SESSIONS_SECONDS), host),
        texts=lambda: fetch_texts(connection),
        version=lambda: _version(beat),
        close=lambda: _close(beat, connection),
    )


def _mysql_login(login: Callable[[Server], ServerLogin], server: Server) -> Login:
    from stallscope.collectors.sql.login import Login

    found = login(server)
    assert isinstance(found, Login)
    return found


def _of_postgres(
    server: Server,
    others: tuple[Collector, ...],
    host: tuple[HostCollector, ...],
    login: Callable[[Server], ServerLogin] | None,
    deadline: float,
) -> Sources:
    """Return the sources of a PostgreSQL; ``others``: collectors that ask nothing of it, of which
    those of the ``host`` rest."""
    resting = [*host]

    def set_rest(at_rest: bool) -> None:
        for collector in resting:
            collector.at_rest = at_rest

    pid = server.main.pid
    if login is None:
        resting.append(Backends(pid))
        return Sources((*others, resting[-1]), set_rest=set_rest)
    # Imported here: the agent of another server does not need it.
    from stallscope.collectors.sql.heartbeat import Heartbeat
    from stallscope.collectors.sql.postgres_backends import read_backends
    from stallscope.collectors.sql.postgres_login import PostgresLogin
    from stallscope.collectors.sql.postgres_session import PostgresConnection
    from stallscope.collectors.sql.postgres_sessions import fetch
    from stallscope.collectors.sql.postgres_settings import PostgresSettings
    from stallscope.collectors.sql.postgres_texts import fetch_texts
    from stallscope.collectors.sql.retries import LoginRetries

    found, retries = login(server), LoginRetries()
    assert isinstance(found, PostgresLogin)
    beat = PostgresConnection(found, retries=retries)
    connection = PostgresConnection(
        found, retries=retries, lives=beat.answered_since, idle_seconds=IDLE_SECONDS
    )
    resting.append(
        Backends(pid, lambda: connection.ask(read_backends, deadline, name="backends"), deadline)
    )
    return Sources(
        (*others, resting[-1], Heartbeat(beat, deadline), PostgresSettings(beat, deadline)),
        set_rest=set_rest,
        sessions=lambda: _with_host(fetch(connection, SESSIONS_SECONDS), host),
        texts=lambda: fetch_texts(connection),
        version=lambda: _version(beat),
        close=lambda: _close(beat, connection),
    )


def _with_host(sessions: Sessions, host: tuple[HostCollector, ...]) -> Sessions:
    """Return sessions with what the host did to the server at the same time."""
    found = recent(host)
    return msgspec.structs.replace(
        sessions,
        values={**found.values, **sessions.values},
        about={**found.names, **sessions.about},
    )


def _version(connection: ServerConnection[Any]) -> str:
    """Return it as an analysis has it of a capture: of PostgreSQL the major version."""
    facts = connection.facts
    if facts is None or not any(facts.version.numbers):
        return ""
    numbers = facts.version.numbers[:1] if facts.version.family == "postgres" else None
    return ".".join(map(str, numbers or facts.version.numbers))


def _close(beat: ServerConnection[Any], connection: ServerConnection[Any]) -> None:
    # At the same time: each can wait for an answer that is on its way.
    other = threading.Thread(target=beat.close, daemon=True)
    other.start()
    connection.close()
    other.join(CLOSE_SECONDS)


def _infrequent(connection: Connection, settings: AgentSettings) -> Iterator[Collector]:
    """Yield collectors that are expensive, or not possible on every server, at their triggers'
    intervals."""
    from stallscope.collectors.sql.collecting import REST_SECONDS, Infrequent
    from stallscope.collectors.sql.compression import Compression
    from stallscope.collectors.sql.group_replication import GroupReplication
    from stallscope.collectors.sql.innodb_status import InnodbStatus
    from stallscope.collectors.sql.lock_waits import LockWaits
    from stallscope.collectors.sql.metadata_locks import MetadataLocks
    from stallscope.collectors.sql.perf_threads import PerfThreads
    from stallscope.collectors.sql.replication import Replication
    from stallscope.collectors.sql.standing import Settings

    named = sources_named(settings)
    locks = [named[word] for word in ("lock_waits", "transactions") if word in named]
    always = (
        (LockWaits(connection, needed=bool(locks)), locks),
        (MetadataLocks(connection), [named[w] for w in ("metadata_locks",) if w in named]),
        (Replication(connection), [named[w] for w in ("replication",) if w in named]),
        (GroupReplication(connection), [named[w] for w in ("group",) if w in named]),
    )
    for collector, wanted in always:
        # What a trigger reads is asked for at rest too: it may be the only sign of waiting.
        rest = min(wanted, default=REST_SECONDS)
        yield Infrequent(collector, min([INFREQUENT_SECONDS, *wanted]), rest)
    yield Infrequent(Settings(connection), INFREQUENT_SECONDS)
    yield Infrequent(Compression(connection), REST_SECONDS, COMPRESSION_REST_SECONDS)
    if "perf_threads" in named:
        yield Infrequent(PerfThreads(connection), named["perf_threads"])
    if "innodb" in named:
        yield Infrequent(InnodbStatus(connection), named["innodb"])
