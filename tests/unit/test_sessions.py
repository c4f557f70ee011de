# SPDX-License-Identifier: Apache-2.0
"""What a server says of its connections, put into captures made by hand."""

from __future__ import annotations

import msgspec
import pytest

from stallscope.collectors.sql.metadata_locks import Held, waits_of
from stallscope.collectors.sql.replication import numbers as replication_numbers
from stallscope.model.capture import MEMORY, Capture, Label, Lock, LockKind, Process, Thread
from stallscope.model.sessions import LockWait, Session, Sessions, annotate, raw_statements, redact
from stallscope.server import innodbnumbers
from stallscope.server.statements import normalize


def capture(*threads: Thread, locks: tuple[Lock, ...] = ()) -> Capture:
    return Capture(backend="bpf", processes=(Process(pid=100),), threads=threads, locks=locks)


def thread(tid: int, lock: int | None = None, ns_tid: int | None = None) -> Thread:
    return Thread(tid=tid, ns_tid=ns_tid, frames=(), state="S", lock=lock, label=Label.VERIFIED)


def session(connection: int, os_tid: int | None, statement: str | None = None) -> Session:
    return Session(
        connection=connection,
        os_tid=os_tid,
        user="app",
        database="shop",
        command="Query" if statement else "Sleep",
        state="updating",
        statement=statement,
    )


def test_threads_are_described() -> None:
    listed = Sessions(
        sessions=(session(7, 101, "SELECT * FROM t WHERE a = 'secret'"), session(8, 102)), pid=100
    )
    found = annotate(capture(thread(101), thread(102), thread(103)), redact(listed, normalize))
    first, second, third = found.threads
    assert (first.connection, first.user, first.database) == (7, "app", "shop")
    assert (first.command, first.activity) == ("Query", "updating")
    assert first.query == "SELECT * FROM t WHERE a = ?"
    assert first.digest == normalize("SELECT * FROM t WHERE a = 5").digest
    assert (second.connection, second.query, second.digest) == (8, None, None)
    assert third == thread(103)
    assert (first.own, second.own, third.own) == (False, False, False)
    asking = annotate(found, redact(msgspec.structs.replace(listed, own=8), normalize))
    assert [item.own for item in asking.threads] == [False, True, False]
    assert "secret" not in repr(found)
    assert raw_statements(listed) == {7: "SELECT * FROM t WHERE a = 'secret'"}
    assert found.notes == ()


def test_the_servers_memory_comes_first() -> None:
    """It is of the moment of the stack. A lock in it without an owner can have one of the table."""
    listed = Sessions(
        sessions=tuple(session(i, 100 + i) for i in range(1, 6)),
        waits=waits((1, 5), (2, 5), (3, 5)),
        pid=100,
    )
    locks = (
        Lock(0, 0x10, LockKind.METADATA, owner_tid=104, symbol="a.t", source=MEMORY, waiters=1),
        Lock(0, 0x20, LockKind.METADATA, symbol="a.u", source=MEMORY, waiters=1),
        Lock(0, 0x30, LockKind.INTERNAL, source=MEMORY, waiters=1),
    )
    before = capture(
        thread(101, 0), thread(102, 1), thread(103, 2), thread(104), thread(105), locks=locks
    )
    found = annotate(before, listed)
    waiting = [found.lock_at(item.lock) for item in found.threads[:3]]
    assert [lock and (lock.source, lock.owner_tid) for lock in waiting] == [
        (MEMORY, 104),
        ("server", 105),
        (MEMORY, None),
    ]
    assert [lock.waiters for lock in found.locks] == [1, 0, 1, 1]


def test_ids_are_of_the_servers_namespace() -> None:
    listed = Sessions(sessions=(session(7, 12),), pid=100)
    found = annotate(
        capture(thread(12, ns_tid=99), thread(500, ns_tid=12)), redact(listed, normalize)
    )
    assert [t.connection for t in found.threads] == [None, 7]


def test_a_reason_is_a_note_and_nothing_else() -> None:
    before = capture(thread(101))
    found = annotate(
        before, redact(Sessions(sessions=(), reason="no answer since 1.0 s"), normalize)
    )
    assert [(n.code, n.message) for n in found.notes] == [("sessions", "no answer since 1.0 s")]
    assert msgspec.structs.replace(found, notes=()) == before
    assert not found.partial


@pytest.mark.parametrize("pid", [4711, None])
def test_connections_of_another_server(pid: int | None) -> None:
    listed = Sessions(sessions=tuple(session(i, 9000 + i) for i in range(5)), pid=pid)
    found = annotate(capture(thread(9000), thread(2)), redact(listed, normalize))
    assert [t.connection for t in found.threads] == [None, None]
    assert len(found.notes) == 1


def waits(*pairs: tuple[int, int], kind: LockKind = LockKind.METADATA) -> tuple[LockWait, ...]:
    return tuple(LockWait(kind, waiter, owner, "shop.orders", "X") for waiter, owner in pairs)


def test_locks_of_the_server_are_added() -> None:
    cond = Lock(process=0, address=0x10, kind=LockKind.COND, waiters=1)
    listed = Sessions(
        sessions=tuple(session(i, 100 + i) for i in range(1, 5)),
        waits=waits((1, 2), (3, 2), (4, 1)),
        pid=100,
    )
    threads = (thread(101, lock=0), thread(102), thread(103), thread(104))
    found = annotate(capture(*threads, locks=(cond,)), redact(listed, normalize))
    assert found.locks[0] == cond
    reported = [(k.symbol, k.owner_tid, k.waiters, k.source, k.kind) for k in found.locks[1:]]
    assert reported == [
        ("shop.orders", 102, 2, "server", LockKind.METADATA),
        ("shop.orders", 101, 1, "server", LockKind.METADATA),
    ]
    assert [t.lock for t in found.threads] == [1, None, 1, 2]


def test_what_the_stack_shows_comes_first() -> None:
    """The stack is of an earlier moment: who held a CPU or stood at a mutex did not wait yet."""
    mutex = Lock(process=0, address=0x10, kind=LockKind.MUTEX, owner_tid=104)
    running = msgspec.structs.replace(thread(103), on_cpu=True, label=Label.RUNNING)
    listed = Sessions(
        sessions=tuple(session(i, 100 + i) for i in range(1, 5)),
        waits=waits((1, 2), (3, 2), (4, 4), (9, 2), (4, 9)),
        pid=100,
    )
    threads = (thread(101, lock=0), thread(102), running, thread(104))
    found = annotate(capture(*threads, locks=(mutex,)), redact(listed, normalize))
    assert found.locks == (mutex,)
    assert [t.lock for t in found.threads] == [0, None, None, None]


def held(connection: int, mode: str, *, granted: bool, kind: str = "TABLE") -> Held:
    return Held(kind, "shop\0orders", mode, granted, connection)


def test_metadata_waits() -> None:
    """Readers wait for the DDL that waits for the one that has read, and for no other reader."""
    locks = [
        held(1, "SHARED_READ", granted=True),
        held(2, "SHARED_UPGRADABLE", granted=True),
        held(2, "EXCLUSIVE", granted=False),
        held(3, "SHARED_READ", granted=False),
        held(4, "SHARED_WRITE", granted=False),
    ]
    found = waits_of(locks)
    assert [(w.waiter, w.owner, w.name) for w in found] == [
        (2, 1, "shop.orders"),
        (3, 2, "shop.orders"),
        (4, 2, "shop.orders"),
    ]


def test_metadata_scopes() -> None:
    locks = [
        held(1, "SHARED", granted=True, kind="GLOBAL"),
        held(5, "INTENTION_EXCLUSIVE", granted=True, kind="GLOBAL"),
        held(2, "INTENTION_EXCLUSIVE", granted=False, kind="GLOBAL"),
    ]
    assert [(w.waiter, w.owner) for w in waits_of(locks)] == [(2, 1)]


def test_metadata_locks_that_nobody_keeps_out() -> None:
    locks = [
        held(1, "SHARED_READ", granted=True),
        held(2, "SHARED_READ", granted=False),
        held(3, "NO_SUCH_MODE", granted=False),
    ]
    assert waits_of(locks) == []


def test_replication_numbers() -> None:
    rows: list[dict[str, object]] = [
        {
            "channel_name": "",
            "seconds_behind_source": 12,
            "replica_io_running": "Yes",
            "replica_sql_running": "No",
            "last_sql_errno": 1062,
            "last_io_errno": 0,
        },
        {
            "connection_name": "b\x1b",
            "seconds_behind_master": None,
            "slave_io_running": "Connecting",
        },
    ]
    assert replication_numbers(rows) == {
        "replication.channels": 2,
        "replication.stopped": 2,
        "replication.lag_s": 12,
        "replication.default.lag_s": 12,
        "replication.default.io_running": 1,
        "replication.default.sql_running": 0,
        "replication.default.sql_errno": 1062,
        "replication.b\\x1b.io_running": 0,
        "replication.b\\x1b.sql_running": 0,
    }
    assert replication_numbers([]) == {"replication.channels": 0, "replication.stopped": 0}
    delayed = {"seconds_behind_master": "3700", "sql_delay": "3600"}
    assert replication_numbers([delayed])["replication.lag_s"] == 100
    early = {"seconds_behind_master": 5, "sql_delay": 3600}
    assert replication_numbers([early])["replication.lag_s"] == 0


def test_log_sequence_numbers_of_two_halves() -> None:
    text = (
        "Log sequence number 1 500\nLog flushed up to   1 400\nLast checkpoint at  0 4294967000\n"
    )
    assert innodbnumbers.numbers(text) == {
        "innodb.log_sequence": (1 << 32) + 500,
        "innodb.log_flushed": (1 << 32) + 400,
        "innodb.checkpoint": 4294967000,
        "innodb.checkpoint_age": 796,
    }


def test_semaphore_waits() -> None:
    text = (
        "--Thread 140 has waited at btr0cur.cc line 586 for 12.5 seconds the semaphore:\n"
        "--Thread 141 has waited at btr0sea.ic line 90 for 3 seconds the semaphore:\n"
    )
    assert innodbnumbers.numbers(text) == {
        "innodb.semaphore_waits": 2,
        "innodb.semaphore_longest_s": 12.5,
    }


def test_the_server_knows_what_is_data() -> None:
    """Its own text counts, and is gone then; a connection without one is read by ourselves."""
    asked = 'SELECT "a" FROM t WHERE b = "secret"'
    listed = Sessions(
        (Session(7, statement=asked), Session(8, statement=asked)),
        digests={7: "SELECT `a` FROM `t` WHERE `b` = ?"},
    )
    found = redact(listed, normalize)
    assert [s.statement for s in found.sessions] == [
        "SELECT `a` FROM `t` WHERE `b` = ?",
        "SELECT ? FROM t WHERE b = ?",
    ]
    assert all(s.digest for s in found.sessions)
    assert found.digests == {}
    assert raw_statements(listed) == {7: asked, 8: asked}


@pytest.mark.parametrize(("parent", "fits"), [(90, True), (1, False), (91, False)])
def test_the_parent_of_one_backend_may_answer(parent: int, fits: bool) -> None:
    taken = Capture(
        backend="bpf",
        processes=(Process(pid=101, ppid=parent),),
        threads=(Thread(101, ()),),
    )
    listed = Sessions(sessions=(session(101, 101),), pid=parent if parent == 1 else 90)
    found = annotate(taken, listed)
    assert (found.threads[0].connection == 101) is fits


def test_memory_gets_the_names_that_sql_has() -> None:
    locks = (
        Lock(0, 7, kind=LockKind.TABLE, symbol="relation 5 of database 1", source="memory"),
        Lock(0, 8, kind=LockKind.TABLE, symbol="relation 6 of database 1", source="memory"),
    )
    listed = Sessions(
        sessions=(session(7, 101),), pid=100, objects={"relation 5 of database 1": "public.t"}
    )
    found = annotate(capture(Thread(101, ()), locks=locks), listed)
    assert [lock.symbol for lock in found.locks] == ["public.t", "relation 6 of database 1"]
