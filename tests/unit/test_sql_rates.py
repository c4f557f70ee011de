# SPDX-License-Identifier: Apache-2.0
"""Which statements the agent sends, and how often: docs/sql.md names each, and its rates."""

from __future__ import annotations

import ast
import itertools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stallscope.agent import sources
from stallscope.agent.schedule import Schedule
from stallscope.collectors import collector as collector_module
from stallscope.collectors import processes
from stallscope.collectors.processes import Server
from stallscope.collectors.sql import collecting, deadlocks, heartbeat, processlist, status
from stallscope.collectors.sql import connection as connection_module
from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.login import Login
from stallscope.collectors.sql.versions import ServerFacts, parse
from stallscope.collectors.triggers import triggerfile
from stallscope.collectors.triggers.settings import AgentSettings, TriggerSettings

__all__: list[str] = []

CHECKOUT = Path(__file__).parent.parent.parent
PAGE = CHECKOUT / "docs" / "sql.md"
POLL = 1.0
SECONDS = 600
JITTER = 0.02
"""Polls come so much early or late."""
EXPENSIVE = re.compile(
    r"PROCESSLIST|INNODB_TRX|LOCK_WAITS|data_lock|metadata_locks|METADATA_LOCK_INFO|INNODB STATUS"
    r"|INNODB_METRICS|REPLICA STATUS|SLAVES? STATUS|performance_schema.threads",
    re.IGNORECASE,
)
"""Statements that take locks of clients, or cost the server more than the status."""


class Documented(msgspec.Struct, frozen=True):
    """A row of the page's table."""

    statement: str
    pattern: re.Pattern[str]
    at_rest: float | None
    """Least seconds between two; None: never, or not at intervals."""
    otherwise: float | None


def _documented() -> list[Documented]:
    text = PAGE.read_text()
    rows = re.findall(
        r"^\| `((?:DO|KILL|SELECT|SET|SHOW)[^`]*)` \| [^|]* \| ([^|]*) \| ([^|]*) \|",
        text,
        re.MULTILINE,
    )
    return [
        Documented(statement, _pattern(statement), _seconds(rest), _seconds(otherwise))
        for statement, rest, otherwise in rows
    ]


def _pattern(statement: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part.strip()) for part in statement.split("…")))


def _seconds(cell: str) -> float | None:
    found = re.search(r"(\d+) s\b", cell)
    if found is not None:
        return float(found[1])
    return POLL if re.search(r"\bpoll\b", cell) else None


DOCUMENTED = _documented()


def entry_of(statement: str) -> Documented | None:
    """Return the row that names a statement; the row that says most of it where several do."""
    text = re.sub(r"\s*\\n\s*|\s+", " ", statement).strip()
    found = [row for row in DOCUMENTED if row.pattern.fullmatch(text)]
    return max(found, key=lambda row: len(row.statement), default=None)


class Clock:
    """In place of the module ``time``."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return round(self.now * 1e9)

    time_ns = monotonic_ns

    def __getattr__(self, name: str) -> Any:
        import time

        return getattr(time, name)


class Recording:
    """A connection and its session: it records what is sent, and answers as a server at rest."""

    beat = "DO 1"
    clock: Clock
    version_text = "8.4.3"
    sent: list[tuple[float, str]]

    def __init__(self, login: Login, **shared: object) -> None:
        self.login = login
        self.number = 1
        self.version = parse(self.version_text)
        self.facts = ServerFacts(self.version, 1)
        self.has_process = True
        self.has_threads_table = not self.version_text.startswith("5.5")
        self.deadlocks = 0

    def ask(self, ask: Callable[[Any], Any], seconds: float, *, name: str = "") -> Any:
        return ask(self)

    def answered_since(self, since: float) -> bool:
        return True

    def waiting_since(self) -> None:
        return None

    def close(self) -> None: ...

    def run(self, sql: str) -> None:
        self._answer(sql)

    def select(self, sql: str, arguments: Sequence[object] = (), *, max_rows: int = 0) -> Any:
        return self._answer(sql)

    def each(
        self, sql: str, take: Callable[[Any], object], arguments: Sequence[object] = ()
    ) -> None:
        for row in self._answer(sql):
            take(row)

    def records(
        self, sql: str, arguments: Sequence[object] = (), *, max_rows: int = 0
    ) -> list[dict[str, Any]]:
        self._answer(sql)
        if sql.startswith("SHOW REPLICA") and self.version_text.startswith("5."):
            raise StatementError("syntax", 1064)
        if "INNODB_METRICS" not in sql:
            return []
        if self.version_text.startswith("5.5"):
            raise StatementError("no such table", 1109)
        return [{"name": "lock_deadlocks", "status": "enabled", "count": 0}]

    def _answer(self, sql: str) -> list[tuple[Any, ...]]:
        self.sent.append((self.clock.now, sql))
        if sql.startswith("SHOW GLOBAL VARIABLES WHERE"):
            return [("max_connections", "151"), ("read_only", "OFF")]
        if sql.startswith("SELECT @@GLOBAL."):
            return [(151, 0)]
        if "SESSION STATUS" in sql:
            return [("Threads_running", "1"), ("Uptime", "9")]
        if sql.startswith("SHOW GLOBAL STATUS"):
            self.clock.now += self.took
        if sql == "SHOW PROCESSLIST":
            self.clock.now += self.listed
        if sql.startswith("SHOW GLOBAL STATUS"):
            counts = [("Threads_running", "1"), ("Questions", "7"), ("Uptime", "9")]
            if self.version.mariadb:
                counts.append(("Innodb_deadlocks", str(type(self).counted)))
            return counts
        if "INNODB_TRX" in sql:
            return [("1", "LOCK WAIT", 4, 1, 1, 0), ("2", "RUNNING", 5, 0, 1, 0)]
        return []

    counted = 0
    took = 0.0
    """Seconds that the server needs for the status."""
    listed = 0.0
    """The same for the processlist."""


VERSIONS = ("5.5.9", "5.7.44", "8.4.3", "9.7.4", "10.11.8-MariaDB", "11.8.2-MariaDB")


@pytest.fixture
def agent_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    clock = Clock()
    for module in (collector_module, collecting, deadlocks, heartbeat, processlist, status):
        monkeypatch.setattr(module, "time", clock)

    def make(version: str, settings: AgentSettings | None = None) -> Any:
        sent: list[tuple[float, str]] = []
        kind = type("Sent", (Recording,), {"clock": clock, "version_text": version, "sent": sent})
        monkeypatch.setattr(connection_module, "Connection", kind)
        info = processes.read(os.getpid())
        assert info is not None
        server = Server(msgspec.structs.replace(info, exe="/usr/sbin/mysqld"), (info.pid,))
        found = sources.of_server(
            server,
            settings or triggerfile.defaults(),
            lambda server: Login(user="nobody"),
            poll_interval=POLL,
            keep_deadlock=lambda deadlock: None,
            use_layout=lambda text: None,
        )
        return SimpleNamespace(sources=found, clock=clock, sent=sent, kind=kind)

    return make


def polled(agent: Any, seconds: float, *, at_rest: bool) -> list[tuple[float, str]]:
    """Poll for so long, as the loop does; return what was sent meanwhile."""
    begun, schedule = len(agent.sent), Schedule()
    start = agent.clock.now
    for number in range(int(seconds / POLL)):
        agent.clock.now = start + number * POLL + JITTER * (number % 3 - 1)
        agent.sources.set_rest(at_rest)
        for one in schedule.due(agent.sources.collectors, agent.clock.now, at_rest=at_rest):
            schedule.asked(one.name, agent.clock.now)
            if one.thread in ("sql", "heartbeat", "deadlocks"):
                one.collect()
    sent: list[tuple[float, str]] = agent.sent[begun:]
    return sent


def gaps(sent: list[tuple[float, str]]) -> dict[str, float]:
    """Return the least seconds between two of the same statement."""
    at: dict[str, list[float]] = defaultdict(list)
    for clock, statement in sent:
        at[statement].append(clock)
    return {
        statement: min((b - a for a, b in itertools.pairwise(clocks)), default=SECONDS)
        for statement, clocks in at.items()
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("at_rest", [True, False])
def test_each_statement_is_documented_and_no_more_frequent(
    agent_of: Callable[..., Any], version: str, at_rest: bool
) -> None:
    agent = agent_of(version)
    polled(agent, 40, at_rest=False)  # the start, in which there is no rest
    for statement, gap in gaps(polled(agent, SECONDS, at_rest=at_rest)).items():
        row = entry_of(statement)
        assert row is not None, f"docs/sql.md has no row for {statement}"
        least = row.at_rest if at_rest else row.otherwise
        assert least is not None, f"docs/sql.md says that this is not sent: {statement}"
        assert gap >= least - 0.1 - 2 * JITTER, f"each {gap:.2f} s, not {least:g} s: {statement}"


@pytest.mark.parametrize("version", VERSIONS)
def test_at_rest_one_statement_a_poll_asks_for_the_status_and_few_take_locks_of_clients(
    agent_of: Callable[..., Any], version: str
) -> None:
    agent = agent_of(version)
    polled(agent, 40, at_rest=False)
    sent = polled(agent, SECONDS, at_rest=True)
    asked = [statement for _, statement in sent if "GLOBAL STATUS" in statement]
    assert len(asked) == SECONDS / POLL
    whole = [statement for statement in asked if "Opened_tables" in statement]
    assert len(whole) == pytest.approx(SECONDS / 30, abs=1)
    few = min(asked, key=len)
    assert few.count("'") / 2 <= 28, few
    others = [statement for _, statement in sent if "GLOBAL STATUS" not in statement]
    assert len(others) <= 2 * SECONDS / 5 + SECONDS / 10 + 8 * (SECONDS / 30 + 1), others[-20:]
    expensive = {one: gap for one, gap in gaps(sent).items() if EXPENSIVE.search(one)}
    assert expensive
    assert min(expensive.values()) >= 29.8, expensive


def test_a_status_of_thousands_of_connections_is_asked_less_often(
    agent_of: Callable[..., Any],
) -> None:
    agent = agent_of("8.4.3")
    agent.kind.took = 0.005
    polled(agent, 40, at_rest=False)
    sent = polled(agent, 120, at_rest=True)
    asked = [at for at, statement in sent if "GLOBAL STATUS" in statement]
    assert len(asked) == pytest.approx(120 / 3, abs=2)
    assert sum("SESSION STATUS" in statement for _, statement in sent) >= 119
    for _, statement in sent:
        assert entry_of(statement) is not None, statement
    busy = polled(agent, 10, at_rest=False)
    assert sum("GLOBAL STATUS" in statement for _, statement in busy) == 10
    assert not [statement for _, statement in busy if "SESSION STATUS" in statement]


@pytest.mark.parametrize("version", VERSIONS)
def test_otherwise_the_processlist_is_read_at_each_poll(
    agent_of: Callable[..., Any], version: str
) -> None:
    sent = polled(agent_of(version), 60, at_rest=False)
    listed = [s for _, s in sent if "GROUP BY 1, 2" in s or s == "SHOW PROCESSLIST"]
    assert len(listed) == 60
    assert sum(s == "DO 1" for _, s in sent) == 60
    # One mutex of MySQL 5.5 guards all transactions: nobody asked for them there.
    assert sum("INNODB_TRX" in s for _, s in sent) == (0 if version == "5.5.9" else 12)


@pytest.mark.parametrize("at_rest", [True, False])
def test_mysql55_is_asked_for_nothing_under_its_kernel_mutex(
    agent_of: Callable[..., Any], at_rest: bool
) -> None:
    agent = agent_of("5.5.9")
    sent = polled(agent, SECONDS, at_rest=at_rest)
    assert not [s for _, s in sent if re.search(r"INNODB_TRX|LOCK_WAITS|INNODB STATUS", s)]
    agent.sources.deadlock_seen()
    sent = polled(agent, 60, at_rest=at_rest)
    assert [s for _, s in sent if "INNODB STATUS" in s] == [deadlocks.STATUS]


def test_what_the_server_does_not_have_is_asked_once(agent_of: Callable[..., Any]) -> None:
    sent = [s for _, s in polled(agent_of("5.5.9"), SECONDS, at_rest=False)]
    assert sum(s == "SHOW REPLICA STATUS" for s in sent) == 1
    assert sum(s == "SHOW SLAVE STATUS" for s in sent) == SECONDS / 5
    assert sum("INNODB_METRICS" in s for s in sent) == 1


def test_deadlocks_in_series_are_read_once_in_a_minute(agent_of: Callable[..., Any]) -> None:
    agent = agent_of("10.11.8-MariaDB")
    polled(agent, 100, at_rest=False)
    asked = []
    for number in range(300):
        agent.kind.counted = 10 * number
        agent.sources.deadlock_seen()
        asked += [at for at, s in polled(agent, 1, at_rest=False) if s == deadlocks.STATUS]
        agent.clock.now += POLL
    assert 3 <= len(asked) <= 6, asked
    assert min(b - a for a, b in itertools.pairwise(asked)) >= deadlocks.REPORT_SECONDS


def test_a_processlist_of_thousands_of_connections_is_shown_less_often(
    agent_of: Callable[..., Any],
) -> None:
    agent = agent_of("5.5.9")
    agent.kind.listed = 0.1
    sent = polled(agent, 60, at_rest=False)
    assert 12 <= sum(s == "SHOW PROCESSLIST" for _, s in sent) <= 20


def test_a_processlist_that_waited_does_not_make_the_next_one_late(
    agent_of: Callable[..., Any],
) -> None:
    agent = agent_of("5.5.9")
    agent.kind.listed = 2.0  # from its start: the host is busy
    polled(agent, 2, at_rest=False)
    agent.kind.listed = 0.001
    polled(agent, 10, at_rest=False)
    agent.kind.listed = 2.0
    polled(agent, 3, at_rest=False)
    agent.kind.listed = 0.001
    assert all(
        "SHOW PROCESSLIST" in [s for _, s in polled(agent, 1, at_rest=False)] for _ in range(2)
    )


def test_a_deadlock_that_the_status_shows_is_read_soon(agent_of: Callable[..., Any]) -> None:
    agent = agent_of("10.11.8-MariaDB")
    polled(agent, 40, at_rest=False)
    quiet = polled(agent, 100, at_rest=True)
    assert not [s for _, s in quiet if s == deadlocks.STATUS]
    assert not [s for _, s in quiet if "INNODB_METRICS" in s]
    agent.kind.counted = 1
    sent = polled(agent, 10, at_rest=True)
    assert len([s for _, s in sent if s == deadlocks.STATUS]) == 1


@pytest.mark.parametrize(
    ("variable", "each_poll"),
    [
        ("processlist.running - 1", False),
        ('state("Waiting for * lock")', False),
        ("processlist.longest_s", True),
        ("processlist.sleeping", True),
        ("max(processlist.running, 60)", True),
        ('baseline(state("Opening table*"))', True),
    ],
)
def test_what_no_sign_announces_is_read_at_rest_too(
    agent_of: Callable[..., Any], variable: str, each_poll: bool
) -> None:
    trigger = TriggerSettings("mine", variable=variable, threshold=100)
    agent = agent_of("8.4.3", AgentSettings(triggers=(trigger,)))
    polled(agent, 40, at_rest=False)
    sent = polled(agent, 60, at_rest=True)
    assert len([s for _, s in sent if "GROUP BY 1, 2" in s]) == (60 if each_poll else 2)


def test_a_trigger_keeps_its_interval_at_rest(agent_of: Callable[..., Any]) -> None:
    trigger = TriggerSettings("mine", variable="lock_waits.waiting", threshold=9, interval=2.0)
    agent = agent_of("8.4.3", AgentSettings(triggers=(trigger,)))
    polled(agent, 40, at_rest=False)
    sent = polled(agent, 60, at_rest=True)
    assert len([s for _, s in sent if "INNODB_TRX" in s]) == 30


def _statements() -> Iterator[tuple[str, str]]:
    """Yield every statement in the code of the collectors, and where it is."""
    for path in sorted((CHECKOUT / "collectors" / "sql").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            if re.match(r"(SELECT|SHOW (?!\{)|SET SESSION|DO |KILL|UPDATE|CALL)", node.value):
                yield f"{path.name}:{node.lineno}", node.value.replace("{}", "…")


def test_each_statement_of_the_code_is_documented() -> None:
    found = list(_statements())
    assert len(found) > 25
    missing = [f"{where}: {statement}" for where, statement in found if not entry_of(statement)]
    assert not missing, "docs/sql.md has no row for these:\n" + "\n".join(missing)


def test_each_documented_statement_is_in_the_code() -> None:
    used = {row.statement for _, statement in _statements() if (row := entry_of(statement))}
    assert used == {row.statement for row in DOCUMENTED}
