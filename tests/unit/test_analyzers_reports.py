# SPDX-License-Identifier: Apache-2.0
"""Verdicts on a server's own report: activities, kinds of locks, and how long waits have lasted."""

from __future__ import annotations

import msgspec
import pytest

from stallscope.analyzers import catalog, engine, importers
from stallscope.analyzers.analysis import Finding
from stallscope.model.capture import Capture, Frame, Lock, LockKind, Process, Thread

SECOND = 10**9


def report(threads: list[Thread], locks: tuple[Lock, ...] = ()) -> Capture:
    return Capture(backend="status", processes=(Process(1),), threads=tuple(threads), locks=locks)


def find(signatures: catalog.Catalog, capture: Capture) -> list[Finding]:
    return list(engine.analyze(capture, signatures).findings)


@pytest.mark.parametrize(
    ("activity", "signature"),
    [
        ("Waiting for table metadata lock", "metadata-lock"),
        ("Waiting for schema metadata lock", "metadata-lock"),
        ("Waiting for global read lock", "global-read-lock"),
        ("Waiting for table flush", "table-flush-wait"),
        ("Waiting for table level lock", "table-lock"),
        ("Locked", "table-lock"),
        ("Waiting for query cache lock", "query-cache"),
        ("Waiting for semi-sync ACK from replica", "semisync-wait"),
        ("Waiting for preceding transaction to commit", "replication-apply"),
    ],
)
def test_sessions_of_a_processlist(
    activity: str, signature: str, signatures: catalog.Catalog
) -> None:
    rest = [Thread(0, (), command="Sleep", waited_ns=300 * SECOND, connection=1)]
    busy = [
        Thread(0, (), command="Query", activity=activity, waited_ns=n * SECOND, connection=n)
        for n in range(2, 12)
    ]
    finding = find(signatures, report(rest + busy))[0]
    assert finding.signature == signature
    assert finding.threads == 10
    assert finding.confidence >= 0.5
    assert activity in finding.evidence[0]


def test_a_processlist_at_rest(signatures: catalog.Catalog) -> None:
    threads = [
        Thread(0, (), command=command, activity=activity, waited_ns=SECOND, connection=n)
        for n, (command, activity) in enumerate(
            [("Sleep", None), ("Query", "Sending data"), ("Binlog Dump", "Master has sent all")] * 5
        )
    ]
    assert find(signatures, report(threads)) == []


@pytest.mark.parametrize(
    "activity",
    [
        "Waiting on empty queue",
        "Waiting for source to send event",
        "Waiting for an event from Coordinator",
        "Replica has read all relay log; waiting for more updates",
        "Slave has read all relay log; waiting for the slave I/O thread to update it",
        "Waiting for work from SQL thread",
        "wsrep aborter idle",
    ],
)
def test_a_replica_at_rest(activity: str, signatures: catalog.Catalog) -> None:
    thread = Thread(0, (), command="Connect", activity=activity, waited_ns=SECOND, connection=1)
    assert engine.analyze(report([thread]), signatures).states == ("idle",)


@pytest.mark.parametrize(
    "text",
    [
        "+----+------------------------------+---------+\n"
        "| Id | State                        | Info    |\n"
        "+----+------------------------------+---------+\n"
        "|  3 | Waiting for table flush      | SELECT  |\n",
        " *************************** 1. row ***************************\n"
        "       Id: 3\n  Command: Query\n    State: Waiting for table flush\n     Info: SELECT\n",
    ],
    ids=["columns that were chosen", "indented rows"],
)
def test_processlists_as_people_paste_them(text: str) -> None:
    (capture,) = importers.load(text.encode(), "list.txt")
    (thread,) = capture.threads
    assert (thread.connection, thread.activity) == (3, "Waiting for table flush")
    assert thread.query == "SELECT"


def test_a_semaphore_wait_that_a_mail_has_wrapped() -> None:
    text = (
        "Dec 10 13:49:35 db mysqld[5]: --Thread 1164 has waited at row0vers.c line 107\n"
        "for 813.00 seconds the semaphore:\n"
        "Dec 10 13:49:35 db mysqld[5]: S-lock on RW-latch at 0x2aaa created in file\n"
        "trx0purge.c line 214\n"
        "Dec 10 13:49:35 db mysqld[5]: a writer (thread id 1140) has reserved it in\n"
        "mode  exclusive\n"
        "Dec 10 13:49:35 db mysqld[5]: Last time write locked in file\ntrx0purge.c line 1059\n"
    )
    (capture,) = importers.load(text.encode(), "mail.txt")
    (lock,) = capture.locks
    assert capture.threads[0].waited_ns == 813 * SECOND
    assert (lock.created, lock.mode, lock.owner_tid) == ("trx0purge.c:214", "exclusive", 1140)
    assert lock.locked_at == "trx0purge.c:1059"


@pytest.mark.parametrize("date", ["111226 14:48:08", "2014-03-05 11:02:33 7F00AA"])
def test_the_latest_deadlock_is_over(date: str, signatures: catalog.Catalog) -> None:
    rule = "------------------------\n"
    text = "120118 13:23:16 INNODB MONITOR OUTPUT\n"
    text += f"{rule}LATEST DETECTED DEADLOCK\n{rule}{date}\n"
    lock = 'RECORD LOCKS space id 7 page no 4 n bits 80 index "PRIMARY" of table "a"."b"'
    for number, trx in enumerate(("6FE138", "6FE12E"), 1):
        text += (
            f"*** ({number}) TRANSACTION:\nTRANSACTION {trx}, ACTIVE 0 sec inserting\n"
            f"LOCK WAIT 4 lock struct(s), heap size 1248, 3 row lock(s)\n"
            f"MySQL thread id {number}, OS thread handle 0x40e1394{number}, query id 5 me\n"
            f"INSERT INTO b VALUES (1)\n*** ({number}) HOLDS THE LOCK(S):\n"
            f"{lock} trx id {trx} lock_mode X\n"
            f"*** ({number}) WAITING FOR THIS LOCK TO BE GRANTED:\n"
            f"{lock} trx id {trx} lock_mode X insert intention waiting\n"
        )
    text += f"*** WE ROLL BACK TRANSACTION (2)\n{rule}TRANSACTIONS\n{rule}"
    text += "LIST OF TRANSACTIONS FOR EACH SESSION:\n---TRANSACTION 0, not started\n"
    (capture,) = importers.load(text.encode(), "status.txt")
    assert capture.threads == ()
    assert "innodb_deadlock" in capture.processes[0].strings
    assert find(signatures, capture) == []


def row_lock(owner: int | None) -> Lock:
    return Lock(
        process=0,
        address=0,
        kind=LockKind.ROW,
        symbol="PRIMARY of table `a`.`b`",
        owner_tid=owner,
        source="status",
    )


def test_rows_of_one_transaction(signatures: catalog.Catalog) -> None:
    holder = Thread(7, (), activity="ACTIVE", waited_ns=90 * SECOND)
    waiters = [Thread(100 + n, (), lock=0, waited_ns=40 * SECOND) for n in range(8)]
    (finding,) = find(signatures, report([holder, *waiters], (row_lock(7),)))
    assert (finding.signature, finding.threads) == ("innodb-row-lock", 8)
    assert finding.blocker is not None
    assert (finding.blocker.tid, finding.blocker.source) == (7, "status")


def latch(created: str, kind: LockKind, symbol: str | None = None) -> Lock:
    return Lock(process=0, address=64, kind=kind, symbol=symbol, created=created, source="status")


@pytest.mark.parametrize(
    ("place", "lock", "signature"),
    [
        ("btr0cur.cc:545", latch("dict0dict.cc:2420", LockKind.RWLOCK), "innodb-index-lock"),
        ("row0purge.cc:720", latch("dict0dict.cc:900", LockKind.RWLOCK), "innodb-dict-lock"),
        ("btr0pcur.c:437", latch("buf0buf.c:916", LockKind.RWLOCK), "innodb-page-latch"),
        (
            "buf0lru.cc:1320",
            latch("buf0buf.cc:1731", LockKind.INTERNAL),
            "innodb-buffer-pool-mutex",
        ),
        ("btr0sea.c:746", latch("btr0sea.c:139", LockKind.RWLOCK), "innodb-adaptive-hash"),
        ("sync0rw.cc:297", latch("sync0sync.cc:1472", LockKind.INTERNAL), "innodb-sync-array"),
        ("fsp0fsp.cc:3365", latch("fil0fil.cc:1383", LockKind.RWLOCK), "innodb-file-extend"),
        ("trx0trx.c:1609", latch("srv0srv.c:872", LockKind.INTERNAL), "innodb-trx-sys"),
        ("trx0sys.cc:565", latch("x.cc:1", LockKind.INTERNAL, "TRX_SYS"), "innodb-trx-sys"),
        ("lock0wait.cc:74", latch("x.cc:1", LockKind.INTERNAL, "LOCK_SYS_WAIT"), "innodb-lock-sys"),
        ("any0any.cc:1", latch("new0new.cc:1", LockKind.INTERNAL), "innodb-semaphore-hang"),
    ],
)
def test_semaphores(place: str, lock: Lock, signature: str, signatures: catalog.Catalog) -> None:
    frames = (Frame(symbol=None, source=place),)
    waiters = [Thread(100 + n, frames, lock=0, waited_ns=250 * SECOND) for n in range(8)]
    finding = find(signatures, report(waiters, (lock,)))[0]
    assert finding.signature == signature
    assert finding.confidence >= 0.5
    brief = [msgspec.structs.replace(thread, waited_ns=0) for thread in waiters[:2]]
    busy = [Thread(200 + n, (), activity="ACTIVE") for n in range(8)]
    assert all(f.confidence < 0.5 for f in find(signatures, report([*brief, *busy], (lock,))))
