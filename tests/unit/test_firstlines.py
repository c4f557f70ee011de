# SPDX-License-Identifier: Apache-2.0
"""The first lines: who, the statement that ends the stall, how long it has lasted."""

from __future__ import annotations

import random

import msgspec
import pytest

from stallscope.analyzers.analysis import Age, Analysis, Ending
from stallscope.model.capture import LockKind, Note
from stallscope.reporters import firstlines
from tests.support.chance import SEED
from tests.unit.scenes import (
    COND,
    FUTEX,
    IDLE_SESSION,
    OPENING,
    SESSION,
    Analyze,
    Scenery,
    blocker_of,
)

S = 10**9
READER = (
    "futex, MDL_wait::timed_wait, MDL_context::acquire_lock, open_table_get_mdl_lock, open_table,"
    f" open_tables, {SESSION}"
)
ALTER = (
    "futex, MDL_wait::timed_wait, MDL_context::acquire_lock, MDL_context::upgrade_shared_lock,"
    f" mysql_alter_table, {SESSION}"
)
ROW_WAIT = f"{COND}, os_event_wait_low, srv_suspend_mysql_thread, row_search_for_mysql, {SESSION}"
SLEEP = f"nanosleep, Item_func_sleep::val_int, JOIN::exec, mysql_select, {SESSION}"


def text(analysis: Analysis, width: int = 80, more: str = "") -> list[str]:
    lines = [line.text for line in firstlines.render(analysis, width, more=more)]
    assert len(lines) <= firstlines.LINES
    assert max(map(len, lines)) <= width
    return lines


def statements(analysis: Analysis) -> list[tuple[str, bool]]:
    return [(ending.statement, ending.certain) for ending in analysis.endings]


def pileup(*, server: str = "/usr/sbin/mysqld") -> tuple[Scenery, int, int, list[int]]:
    """20 readers behind an ALTER TABLE that waits since 246 s; returns it, the one idle connection
    in a transaction, and others."""
    scenery = Scenery(exe=server)
    readers = scenery.add(READER, times=20)
    scenery.session(*readers, command="Query", query="SELECT a FROM orders", age_ns=30 * S)
    (alter,) = scenery.add(ALTER)
    scenery.session(
        alter,
        command="Query",
        user="app",
        host="10.0.0.8",
        query="ALTER TABLE `shop`.`orders` ADD b INT",
        age_ns=246 * S,
    )
    idle = list(scenery.add(IDLE_SESSION, times=3))
    scenery.session(*idle, command="Sleep", transaction=False, age_ns=2 * S)
    return scenery, alter, idle[0], idle[1:]


def in_transaction(scenery: Scenery, tid: int, seconds: int, query: str | None = None) -> None:
    scenery.session(
        tid,
        command="Sleep",
        transaction=True,
        transaction_ns=seconds * S,
        age_ns=9 * S,
        user="root",
        host="10.0.0.7",
        database="shop",
        query=query,
    )


def test_the_idle_transaction_and_the_ddl_behind_it(analyze: Analyze) -> None:
    scenery, alter, idle, _ = pileup()
    in_transaction(scenery, idle, 300, "SELECT SUM(total) FROM orders")
    analysis = analyze(scenery)
    assert analysis.age == Age(246 * S)
    assert statements(analysis) == [(f"KILL QUERY {alter};", True), (f"KILL {idle};", False)]
    lines = text(analysis, more="More: --full")
    assert lines[0] == "mysqld (pid 1): a stall for 246 s: 21 of 24 threads wait."
    assert lines[1] == "Statements wait for a metadata lock [metadata-lock]"
    who = f"Who: likely connection {idle}, root@10.0.0.7, shop, idle in transaction 300 s"
    assert lines[2:4] == [who, "     last: SELECT SUM(total) FROM orders"]
    assert f"  KILL {idle};" in lines
    whole = " ".join(" ".join(lines).split())
    assert "app@10.0.0.8: the ALTER TABLE that waits gives up" in whole
    assert "its transaction is rolled back; 21 threads go on" in whole
    tree = [
        f"likely connection {idle}: idle",
        "└─ metadata-lock: 1 wait",
        f"   └─ connection {alter}: ALTER TABLE `shop`.`orders` ADD b INT",
        "      └─ metadata-lock: 20 wait, 20 x SELECT a FROM orders",
    ]
    assert [line for line in lines if "─" in line or line == tree[0]] == tree
    assert lines[-1] == "More: --full"


def test_few_rows_have_all_statements(analyze: Analyze) -> None:
    scenery, alter, idle, _ = pileup()
    in_transaction(scenery, idle, 300, "SELECT SUM(total) FROM orders")
    analysis = analyze(scenery)
    full = [line for line in text(analysis) if line]
    assert brief(analysis, 80, 40) == full[: len(brief(analysis, 80, 40))]
    assert "      back; 21 threads go on" in brief(analysis, 80, 40)
    for rows in (5, 9):
        shown = brief(analysis, 80, rows)
        assert len(shown) <= rows
        assert shown[:2] == full[:2]
        assert shown[-2:] == [
            f"To end it, paste: KILL QUERY {alter}; (the ALTER TABLE that waits gives up with an…)",
            f"              or: KILL {idle}; (likely: its connection ends, and its transaction …)",
        ]
    assert len(brief(analysis, 80, 2)) == 3, "a statement is never left out"
    assert f"KILL {idle};" in " ".join(" ".join(brief(analysis, 20, 5)).split()), "nor is it cut"


def brief(analysis: Analysis, width: int, rows: int) -> list[str]:
    return [line.text for line in firstlines.brief(analysis, width, rows)]


def test_of_several_transactions_the_oldest_before_the_wait(analyze: Analyze) -> None:
    scenery, _, first, (second, third) = pileup()
    in_transaction(scenery, first, 300)
    in_transaction(scenery, second, 900)
    in_transaction(scenery, third, 3)  # it began after the wait: it holds nothing of it
    verdict = analyze(scenery).findings[0]
    assert (blocker_of(verdict).tid, blocker_of(verdict).source) == (second, "ages")
    assert not blocker_of(verdict).certain


def test_the_one_that_used_the_table_comes_before_older_ones(analyze: Analyze) -> None:
    scenery, _, first, (second, _) = pileup()
    in_transaction(scenery, first, 300, "UPDATE Orders SET total = ?")
    in_transaction(scenery, second, 900, "SELECT * FROM orders_of_old")
    verdict = analyze(scenery).findings[0]
    assert blocker_of(verdict).tid == first
    assert any("its last statement names orders" in says for says in verdict.evidence)


def test_without_a_transaction_that_is_old_enough_only_the_ddl_is_named(analyze: Analyze) -> None:
    scenery, alter, first, (second, _) = pileup()
    in_transaction(scenery, first, 3)
    in_transaction(scenery, second, 4)
    analysis = analyze(scenery)
    assert statements(analysis) == [(f"KILL QUERY {alter};", True)]


@pytest.mark.parametrize(
    ("said", "statement"),
    [
        ({"command": "Query", "transaction": False}, "KILL QUERY {};"),
        ({"command": "Query", "transaction": True, "autocommit": True}, "KILL QUERY {};"),
        ({"command": "Query", "transaction": True, "autocommit": False}, "KILL {};"),
        ({"command": "Query", "transaction": True}, "KILL {};"),
        ({"command": "Query"}, "KILL {};"),
    ],
)
def test_a_statement_is_ended_alone_where_nothing_is_kept_after_it(
    analyze: Analyze, said: dict[str, object], statement: str
) -> None:
    scenery, _, _, _ = pileup()
    (runs,) = scenery.add(SLEEP)
    scenery.session(runs, **said)
    assert (statement.format(runs), False) in statements(analyze(scenery))


def test_postgres_has_functions_and_processes(analyze: Analyze) -> None:
    scenery = Scenery(exe="/usr/lib/postgresql/15/bin/postgres")
    heavy = "epoll_wait, WaitEventSetWait, WaitLatch, ProcSleep, LockAcquireExtended"
    waiters = scenery.add(f"{heavy}, XactLockTableWait, ExecUpdate, PortalRun", times=6)
    (idle,) = scenery.add("epoll_wait, WaitEventSetWait, secure_read, PostgresMain", tid=4711)
    analysis = analyze(scenery)
    assert analysis.server == "postgres"
    assert analysis.findings[0].threads == len(waiters)
    assert statements(analysis) == [(f"SELECT pg_terminate_backend({idle});", False)]


def test_a_lock_of_a_session_needs_its_end(analyze: Analyze) -> None:
    scenery = Scenery(exe="/usr/sbin/mysqld")
    wait = "futex, MDL_wait::timed_wait, MDL_context::acquire_lock, Item_func_get_lock::val_int"
    lock = scenery.lock(owner=900, kind=LockKind.METADATA, symbol="my lock")
    scenery.add(f"{wait}, {SESSION}", times=5, lock=lock)
    (holder,) = scenery.add(IDLE_SESSION, tid=900)
    scenery.session(holder, command="Sleep", transaction=False)
    analysis = analyze(scenery)
    assert statements(analysis) == [(f"KILL {holder};", True)]
    assert analysis.endings[0].effect == "its connection ends, and its locks are released"


def test_a_thread_without_a_connection_is_asked_for(analyze: Analyze) -> None:
    scenery = Scenery(exe="/usr/sbin/mariadbd")
    lock = scenery.lock(owner=900, kind=LockKind.ROW, symbol="index PRIMARY of shop.orders")
    scenery.add(ROW_WAIT, times=20, lock=lock)
    scenery.add(f"{IDLE_SESSION}, handle_one_connection", tid=900)
    analysis = analyze(scenery)
    assert all(ending.asks for ending in analysis.endings)
    question = (
        "SELECT CONCAT('KILL ', id, ';') FROM information_schema.processlist WHERE tid = 900;"
    )
    few = brief(analysis, 60, 5)
    for shown in (text(analysis), few):
        assert question in " ".join(" ".join(shown).split())
    assert few[0].startswith("mariadbd (pid 1): ")


def test_where_no_statement_helps_it_says_so_and_what_does(analyze: Analyze) -> None:
    scenery = Scenery(exe="/usr/sbin/mysqld")
    (owner,) = scenery.add(f"read_frm, my_read_file, {SESSION}", state="R", on_cpu=True)
    lock = scenery.lock(owner=owner, symbol="LOCK_open")
    scenery.add(OPENING, times=10, lock=lock)
    analysis = analyze(scenery)
    lines = text(analysis)
    assert not analysis.endings
    assert "No statement is known that ends it." in lines
    assert any(line.startswith("  - ") for line in lines)


@pytest.mark.parametrize(
    ("frame", "server", "expected"),
    [
        ("MYSQL_BIN_LOG::wait_for_sufficient_commits", "mariadbd", "binlog_commit_wait_count"),
        ("Stage_manager::Stage::wait_count_or_timeout", "mysqld", "binlog_group_commit_sync_delay"),
        ("MYSQL_BIN_LOG::flush_cache_to_file", "mysqld", ""),
    ],
)
def test_a_setting_is_named_where_the_stack_shows_that_it_delays(
    analyze: Analyze, frame: str, server: str, expected: str
) -> None:
    scenery = Scenery(exe=f"/usr/sbin/{server}")
    scenery.add(
        f"{COND}, Stage_manager::enroll_for, MYSQL_BIN_LOG::change_stage,"
        f" MYSQL_BIN_LOG::ordered_commit, MYSQL_BIN_LOG::commit, {SESSION}",
        times=12,
    )
    scenery.add(
        f"{COND}, {frame}, MYSQL_BIN_LOG::trx_group_commit_leader, MYSQL_BIN_LOG::ordered_commit,"
        f" {SESSION}"
    )
    found = [ending.statement for ending in analyze(scenery).endings]
    assert len(found) == bool(expected)
    assert expected in "".join(found)


def test_calm_says_what_was_checked(analyze: Analyze) -> None:
    scenery = Scenery()
    scenery.add(IDLE_SESSION, times=5)
    capture = msgspec.structs.replace(
        scenery.capture(), notes=(Note("sessions", "the account has no rights"),)
    )
    lines = text(analyze(capture))
    assert "no stall found" in lines[0]
    assert any(line.startswith("Checked: ") for line in lines)
    assert any("the account has no rights" in line for line in lines)


def test_a_rival_that_is_near_is_shown(analyze: Analyze) -> None:
    scenery, _, _, _ = pileup()
    analysis = analyze(scenery)
    verdict = analysis.findings[0]
    rival = msgspec.structs.replace(
        verdict, signature="innodb-row-lock", title="Transactions wait for row locks", chain=()
    )
    near = msgspec.structs.replace(analysis, findings=(verdict, rival))
    assert any(line.startswith("or: ") for line in text(near))
    far = msgspec.structs.replace(rival, confidence=verdict.confidence - 0.3)
    assert not any(
        line.startswith("or: ")
        for line in text(msgspec.structs.replace(analysis, findings=(verdict, far)))
    )


def test_the_age_is_never_that_of_the_tool(analyze: Analyze) -> None:
    scenery, _, idle, _ = pileup()
    # A connection that has been idle for a year waits for nothing.
    scenery.session(idle, command="Sleep", transaction=True, age_ns=365 * 86_400 * S)
    assert analyze(scenery).age == Age(246 * S)
    unknown = Scenery()
    unknown.add(READER, times=5)
    assert analyze(unknown).age is None


def test_any_text_fits_and_is_inert(analyze: Analyze) -> None:
    scenery, alter, idle, _ = pileup()
    evil = "\x1b[31m" + "x" * 5000 + "\n\r\u202e"
    in_transaction(scenery, idle, 300, evil)
    scenery.session(idle, user=evil, host=evil, database=evil, command="Sleep", transaction=True)
    scenery.session(alter, query=f"ALTER {evil}", command=evil, activity=evil)
    analysis = analyze(scenery)
    analysis = msgspec.structs.replace(
        analysis,
        endings=tuple(Ending(f"KILL {i};", evil, connection=idle) for i in range(40)),
    )
    for width in (40, 80, 200):
        shown = "\n".join(text(analysis, width, more="More: --full"))
        assert not any(c < " " and c != "\n" for c in shown)
        assert all(line.isprintable() for line in brief(analysis, width, 5))


def test_random_scenes_fit(analyze: Analyze) -> None:
    draw = random.Random(SEED)
    for _ in range(40):
        scenery = Scenery(exe="/usr/sbin/mysqld")
        lock = scenery.lock(owner=100 + draw.randrange(30))
        for _ in range(draw.randrange(1, 40)):
            stack = draw.choice((READER, ALTER, ROW_WAIT, IDLE_SESSION, OPENING, SLEEP, FUTEX, ""))
            (tid,) = scenery.add(stack, lock=draw.choice((None, lock)))
            if draw.random() < 0.7:
                scenery.session(
                    tid,
                    command=draw.choice(("Query", "Sleep", None)),
                    query=draw.choice((None, "SELECT 1", "ALTER TABLE " + "t" * 300)),
                    transaction=draw.choice((None, True, False)),
                    transaction_ns=draw.choice((None, 0, 10**18)),
                    age_ns=draw.choice((None, 0, 10**18)),
                )
        analysis = analyze(scenery)
        width, rows = draw.choice((40, 80, 120)), draw.randrange(3, 12)
        text(analysis, width, more="More: --full")
        shown = brief(analysis, width, rows)
        assert max(map(len, shown)) <= width
        for ending in analysis.endings:
            assert ending.statement in " ".join(" ".join(shown).split())
