# SPDX-License-Identifier: Apache-2.0
"""Known numbers of deadlocks on real servers: each is seen, or counted as missed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stallscope.agent import sources
from stallscope.agent.events import WaitsReceived
from stallscope.collectors import processes
from stallscope.collectors.processes import Selector
from stallscope.collectors.sql import credentials, deadlocks
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.deadlocks import DeadlockWatch
from stallscope.collectors.sql.optionfiles import Sources
from stallscope.server.deadlocks import Deadlock
from tests.live.test_server_uprobes import hits
from tests.live.test_server_uprobes import watching as probed
from tests.support.servers import PATIENCE, MariaDB, MySQL55, MySQL97, SqlServer, wait_until
from tests.support.stalls.deadlocks import Deadlocks
from tests.unit.agentfakes import FakeEnvironment, running

MANY = 20
PRINT_ALL = "--innodb-print-all-deadlocks=1"


@pytest.fixture(autouse=True)
def _at_each_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a report follow the other at once."""
    monkeypatch.setattr(deadlocks, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(deadlocks, "METRIC_SECONDS", 0.0)


def counted(server: SqlServer) -> float | None:
    """Return the status variable, which the agent reads with all others."""
    rows = server.query("SHOW GLOBAL STATUS LIKE 'Innodb\\_deadlocks'")
    return float(rows[0][1]) if rows else None


@contextmanager
def watching(server: SqlServer, *, counts: bool = True) -> Iterator[DeadlockWatch]:
    """Watch a server; ``counts``: ask for its counter, in the thread that polls."""
    found = processes.find_server(str(server.pid), Selector())
    connection = Connection(credentials.find(Sources(no_defaults=True), found)[0])
    counter = (lambda: counted(server)) if counts else (lambda: None)
    watch = DeadlockWatch(connection, server.pid, counter, PATIENCE)
    try:
        yield watch
    finally:
        watch.close()
        connection.close()


def _check(deadlock: Deadlock, connections: frozenset[int], *, victim: bool = True) -> None:
    assert {t.connection for t in deadlock.transactions} == connections
    for transaction in deadlock.transactions:
        assert transaction.query == "UPDATE t SET b = ? WHERE a = ?"
        assert transaction.waits is not None
        assert transaction.waits.table == "`deadlocks_`.`t`"
        assert transaction.waits.index == "PRIMARY"
    assert (deadlock.victim in (0, 1)) == victim
    assert "SECRET" not in repr(deadlock)


def _in_the_log(watch: DeadlockWatch, count: int) -> list[Deadlock]:
    """Poll until so many were seen; return them all."""
    seen: list[Deadlock] = []

    def all_seen() -> bool:
        seen.extend(watch.poll())
        return len(seen) >= count

    wait_until(all_seen, f"{count} deadlocks in the log")
    return seen


def _counted(watch: DeadlockWatch) -> int | None:
    """Return how many the server has counted by now; there is none to be seen."""
    assert watch.poll() == []
    return watch.counts().counted


@pytest.mark.parametrize(
    ("kind", "options", "victim"),
    [
        (MariaDB, (PRINT_ALL,), True),
        (MySQL97, (PRINT_ALL,), False),  # by default its log has no headings, and no victim
        (MySQL97, (PRINT_ALL, "--log-error-verbosity=3"), True),
    ],
)
def test_each_is_in_the_log(
    kind: type[SqlServer], options: tuple[str, ...], victim: bool, require: Callable[..., None]
) -> None:
    require(kind.name)
    with kind(*options) as server, watching(server) as watch:
        assert watch.begin() == []
        connections = Deadlocks(server).make(MANY)
        seen = _in_the_log(watch, MANY)
        wait_until(lambda: _counted(watch) == MANY, f"{MANY} are counted")
        assert watch.poll() == []
        assert watch.poll() == []
        counts = watch.counts()
    assert len({deadlock.id for deadlock in seen}) == len(seen) == MANY
    assert {deadlock.source for deadlock in seen} == {"log"}
    assert (counts.seen, counts.counted, counts.missed) == (MANY, MANY, 0)
    for deadlock in seen:
        _check(deadlock, connections, victim=victim)
        assert all(transaction.holds for transaction in deadlock.transactions)


@pytest.mark.parametrize("kind", [MariaDB, MySQL97])
def test_seen_and_missed_are_all(kind: type[SqlServer], require: Callable[..., None]) -> None:
    require(kind.name)
    with kind() as server, watching(server) as watch:
        assert watch.begin() == []
        maker = Deadlocks(server)
        seen: list[Deadlock] = []
        for count in (1, 7, 12):
            connections = maker.make(count)
            # MySQL wakes the victim first, and counts then.
            found = wait_until(watch.poll, "the counter moved")
            assert len(found) == 1
            _check(found[0], connections)
            seen += found
        assert watch.poll(cue=True) == []
        wait_until(lambda: _counted(watch) == MANY, f"{MANY} are counted")
        counts = watch.counts()
    assert (counts.seen, counts.counted, counts.missed) == (3, MANY, MANY - 3)
    assert counts.source == "status"
    assert "innodb_print_all_deadlocks is off" in (counts.why or "")


def test_a_server_that_does_not_count(mysql55: MySQL55) -> None:
    """MySQL 5.5.9 has neither the log nor a counter: a cue, such as a uprobe's, finds each."""
    with watching(mysql55) as watch:
        watch.begin()
        maker = Deadlocks(mysql55)
        for _ in range(MANY):
            connections = maker.make(1)
            (found,) = watch.poll(cue=True)
            _check(found, connections)
        assert watch.poll(cue=True) == []
        counts = watch.counts()
    assert (counts.seen, counts.counted, counts.missed) == (MANY, None, None)


class WatchesDeadlocks(FakeEnvironment):
    """An agent's surroundings, with a real watch among its sources."""

    def __init__(self, watch: DeadlockWatch) -> None:
        super().__init__()
        self.kept: list[Deadlock] = []
        self.deadlocks = sources.Deadlocks(watch, self.kept.append)

    def sources(self, *_: object) -> sources.Sources:
        return sources.Sources(
            (self.status, self.deadlocks), deadlock_seen=self.deadlocks.deadlock_seen
        )


@pytest.mark.needs("root", "bpf", "waits")
def test_the_probes_give_the_agent_the_cue(mysql55: MySQL55, tmp_path: Path) -> None:
    """A uprobe sees that MySQL 5.5 weighs two transactions: the agent then reads each deadlock."""
    with watching(mysql55, counts=False) as watch, probed(mysql55) as waits:
        watch.begin()
        environment = WatchesDeadlocks(watch)
        with running(environment, tmp_path) as agent:
            wait_until(lambda: agent.metrics.polls > 1, "the watch has begun")
            environment.kept.clear()
            maker = Deadlocks(mysql55)
            before = 0
            for number in range(1, 6):
                maker.make(1)
                line = waits.line(lambda line: hits(line, "trx_weight_ge") > before)  # noqa: B023
                before = hits(line, "trx_weight_ge")
                agent.events.put(WaitsReceived(line, b"{}", time.monotonic_ns()))
                wait_until(lambda: len(environment.kept) >= number, "it is kept")  # noqa: B023
        assert len({deadlock.id for deadlock in environment.kept}) == 5


def test_the_log_is_switched_on_later(mariadb: MariaDB) -> None:
    with watching(mariadb) as watch:
        watch.begin()
        assert watch.counts().source == "status"
        maker = Deadlocks(mariadb)
        mariadb.execute("SET GLOBAL innodb_print_all_deadlocks = ON")
        try:
            watch._settings_at -= 60  # a minute later
            watch.poll()
            assert watch.counts().source == "log"
            maker.make(3)
            assert len(_in_the_log(watch, 3)) == 3
        finally:
            mariadb.execute("SET GLOBAL innodb_print_all_deadlocks = OFF")


def test_what_was_there_before_is_not_counted(mariadb: MariaDB) -> None:
    Deadlocks(mariadb).make(2)
    with watching(mariadb) as first, watching(mariadb) as second:
        (one,) = first.begin()
        (two,) = second.begin()
        assert one.id == two.id  # a store keeps it once, whichever source found it
        assert first.counts().seen == 0
        assert first.counts().missed == 0
