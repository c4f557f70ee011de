# SPDX-License-Identifier: Apache-2.0
"""What a server's answers and counters show is a finding, and stands where it belongs."""

from __future__ import annotations

import msgspec
import pytest

from stallscope.analyzers.analysis import Analysis
from stallscope.collectors.sql import refusals
from stallscope.collectors.sql.failures import ConnectError, LateError, StatementError
from stallscope.collectors.sql.writable import Writable
from stallscope.model import sampled
from stallscope.model.capture import Capture
from stallscope.model.sessions import Sessions, annotate
from stallscope.reporters import firstlines
from tests.unit.scenes import IDLE_SESSION, OPENING, Analyze, Scenery

SEMISYNC = (
    "pthread_cond_timedwait, Repl_semi_sync_master::commit_trx, mysql_execute_command,"
    " mysql_parse, dispatch_command, do_command, handle_one_connection"
)
LEADER = (
    "pthread_cond_timedwait, ReplSemiSyncMaster::commitTrx, repl_semi_report_binlog_sync,"
    " MYSQL_BIN_LOG::ordered_commit, mysql_execute_command, dispatch_command, do_command,"
    " handle_one_connection"
)
FOLLOWER = (
    "pthread_cond_wait, Stage_manager::enroll_for, MYSQL_BIN_LOG::change_stage,"
    " MYSQL_BIN_LOG::ordered_commit, mysql_execute_command, dispatch_command, do_command,"
    " handle_one_connection"
)
NO_ROOM = (
    "pthread_cond_timedwait, mariadb_sleep_for_space, wait_for_free_space, my_write,"
    " mi_write, ha_myisam::write_row, mysql_execute_command, mysql_parse, dispatch_command,"
    " do_command, handle_one_connection"
)


def server(*stacks: str, count: int = 5, idle: int = 20) -> Capture:
    scenery = Scenery(exe="/usr/sbin/mysqld")
    scenery.add(IDLE_SESSION, times=idle)
    for stack in stacks:
        lock = scenery.lock(symbol="LOCK_open") if stack == OPENING else None
        scenery.add(stack, times=count, lock=lock)
    return scenery.capture()


def names(analysis: Analysis) -> list[str | None]:
    return [finding.signature for finding in analysis.findings]


def said(analysis: Analysis) -> str:
    return " ".join(line.text for line in firstlines.render(analysis, 80))


@pytest.mark.parametrize(
    ("values", "signature", "headline"),
    [
        (
            {"login.code": 1040, "login.connections_refused": 1},
            "connections-used-up",
            "its own login was refused: all 20 connections are used",
        ),
        (
            {"login.code": 1203, "login.connections_refused": 1},
            "connections-used-up",
            "its own login was refused: its account has no connection left",
        ),
        (
            {"Threads_connected": 151, "settings.client_connections": 151},
            "connections-used-up",
            "all 151 connections are used",
        ),
        ({"login.code": 3032}, "login-refused", "the server is in offline mode"),
        ({"login.code": 1129}, "login-refused", "has blocked this host"),
        ({"processlist.unauthenticated": 12}, "login-hang", "12 clients hang in their login"),
        ({"login.unanswered_s": 1.2}, "login-hang", "its own login has had no answer for 1.2 s"),
        ({"accept.queued": 40}, "accept-queue", "40 clients queue at its socket"),
        ({"settings.wsrep_on": 1, "wsrep_ready": 0}, "galera-not-primary", "refuses statements"),
        ({"wsrep_flow_control_active": 1}, "galera-flow-control", "has paused the cluster"),
        (
            {"Rpl_semi_sync_source_wait_sessions": 1, "Rpl_semi_sync_source_clients": 0},
            "semisync-no-replica",
            "1 commit waits for a replica's acknowledgement",
        ),
        (
            {"group.members": 3, "group.unreachable": 2, "group.own_online": 1},
            "group-no-majority",
            "2 of 3 members are unreachable",
        ),
        (
            {"group.members": 3, "group.unreachable": 0, "group.own_online": 0},
            "group-no-majority",
            "this member of the group is not online",
        ),
        (
            {"group.flow_control": 1.2, "group.applier_queue": 30000},
            "group-flow-control",
            "flow control of the group slows commits down",
        ),
        (
            {"replication.stopped": 1, "replication.channels": 2, "replication.a.sql_errno": 1062},
            "replica-stopped",
            "replication is stopped in 1 of 2 channels",
        ),
        ({"replication.lag_s": 90, "replication.stopped": 0}, "replica-lag", "is 90 s behind"),
        (
            {"settings.super_read_only": 1, "settings.read_only": 1, "replication.channels": 0},
            "read-only",
            "the server is read-only (super_read_only)",
        ),
        ({"settings.offline_mode": 1}, "read-only", "in offline mode"),
        ({"settings.default_transaction_read_only": 1}, "read-only", "are read-only"),
    ],
)
def test_it_is_named_in_the_first_line(
    analyze: Analyze, values: dict[str, float], signature: str, headline: str
) -> None:
    analysis = analyze(sampled.add(server(), values))
    assert names(analysis) == [signature]
    assert headline in said(analysis).partition(f"[{signature}]")[0]
    assert headline in firstlines.headline(analysis)
    assert analysis.endings or analysis.findings[0].remedies


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"Threads_connected": 150, "settings.client_connections": 151},
        {"Threads_connected": 151},
        {"processlist.unauthenticated": 3},
        {"login.unanswered_s": 0.4},
        {"accept.queued": 1},
        {"wsrep_ready": 0},
        {"settings.wsrep_on": 0, "wsrep_ready": 0},
        {"Rpl_semi_sync_master_wait_sessions": 1},
        {"Rpl_semi_sync_master_wait_sessions": 1, "Rpl_semi_sync_master_clients": 1},
        {"replication.lag_s": 9, "replication.stopped": 0, "replication.channels": 1},
        {"settings.read_only": 1, "replication.channels": 1},
        {"settings.read_only": 1},
        {"group.members": 0},
        {"group.members": 3, "group.unreachable": 1, "group.own_online": 1},
        {"group.flow_control": 0.9, "group.applier_queue": 20000},
    ],
)
def test_what_is_unknown_or_ordinary_is_no_finding(
    analyze: Analyze, values: dict[str, float]
) -> None:
    assert names(analyze(sampled.add(server(), values))) == []


def test_a_stall_that_stacks_name_is_the_cause(analyze: Analyze) -> None:
    values = {"login.code": 1040.0, "login.connections_refused": 1.0}
    analysis = analyze(sampled.add(server(OPENING, count=15), values))
    assert names(analysis)[:2] == ["table-open-lock", "connections-used-up"]
    assert "also: its own login was refused" in said(analysis)


def test_a_full_disk_is_the_cause_of_what_stacks_name(analyze: Analyze) -> None:
    capture = server(OPENING, count=15)
    full = sampled.add(capture, {"space.data.full": 1.0}, {"space.data": "/data"})
    analysis = analyze(full)
    assert names(analysis) == ["disk-full", "table-open-lock"]
    assert "the disk under the data directory is full: 0 kB are free on /data" in said(analysis)
    assert not analysis.endings, "no statement makes room"
    throttled = analyze(sampled.add(capture, {"cgroup.cpu.throttled_share": 1.0}))
    assert names(throttled) == ["table-open-lock", "cpu-quota"]


def test_stacks_alone_show_that_room_is_waited_for(analyze: Analyze) -> None:
    """As with a quota, which the numbers of a file system do not have."""
    analysis = analyze(server(NO_ROOM))
    assert names(analysis) == ["disk-full"]
    assert analysis.findings[0].threads == 5
    assert names(analyze(sampled.add(server(NO_ROOM), {"space.binlog.full": 1.0}))) == ["disk-full"]


def test_threads_that_wait_for_the_same_are_its_own(analyze: Analyze) -> None:
    values = {"Rpl_semi_sync_master_wait_sessions": 5.0, "Rpl_semi_sync_master_clients": 0.0}
    analysis = analyze(sampled.add(server(SEMISYNC), values))
    assert names(analysis) == ["semisync-no-replica"]
    assert analysis.findings[0].threads == 5
    assert [end.statement for end in analysis.endings] == []  # of a release that is not known


def test_victims_of_the_same_wait_come_behind_it(analyze: Analyze) -> None:
    """With AFTER_SYNC one commit waits for the replica, and the others for that commit."""
    values = {"Rpl_semi_sync_source_wait_sessions": 1.0, "Rpl_semi_sync_source_clients": 0.0}
    scenery = Scenery(exe="/usr/sbin/mysqld")
    scenery.add(IDLE_SESSION, times=20)
    scenery.add(LEADER)
    scenery.add(FOLLOWER, times=6)
    analysis = analyze(sampled.add(scenery.capture(), values))
    assert names(analysis) == ["semisync-no-replica", "binlog-group-commit"]
    assert analysis.findings[1].victim_of == "semisync-no-replica"
    assert [link.signature for link in analysis.findings[0].chain] == names(analysis)


def test_numbers_of_another_server_are_not_added() -> None:
    capture = server()
    listed = Sessions(sessions=(), pid=99, values={"login.code": 1040.0})
    assert sampled.of(annotate(capture, listed)) == {}
    same = msgspec.structs.replace(listed, pid=capture.processes[0].pid)
    assert sampled.of(annotate(capture, same)) == {"login.code": 1040.0}


def test_only_numbers_are_read_from_a_file() -> None:
    capture = sampled.add(server(), {"a": 1.0})
    first = capture.processes[0]
    strings = {**first.strings, "sampled.b": "nan", "sampled.c": "x", "other": "1"}
    first = msgspec.structs.replace(first, strings=strings)
    assert sampled.of(msgspec.structs.replace(capture, processes=(first,))) == {"a": 1.0}


def test_what_the_answer_to_a_login_is_as_numbers() -> None:
    full = ConnectError("full", number=1040, full=True)
    assert refusals.values(full) == {"login.code": 1040.0, "login.connections_refused": 1.0}
    full.is_old = True
    assert refusals.values(full) == {}
    assert refusals.values(full, old=True)["login.connections_refused"] == 1.0
    assert refusals.values(LateError("late", 1.5)) == {"login.unanswered_s": 1.5}
    assert refusals.values(LateError("late")) == refusals.values(StatementError("no", 1)) == {}
    assert refusals.values(ConnectError("gone")) == {}


def test_read_only_from_the_start_is_no_change() -> None:
    seen = Writable()
    assert seen.since(refuses=True) == {}
    assert seen.since(refuses=False) == {"settings.became_read_only": 0.0}
    assert seen.since(refuses=True) == {"settings.became_read_only": 1.0}
