# SPDX-License-Identifier: Apache-2.0
"""One sample of a server's status variables over SQL, for analyzers/workload.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stallscope.collectors.sql.collecting import number
from stallscope.collectors.sql.compression import read_compression
from stallscope.collectors.sql.failures import StatementError
from stallscope.collectors.sql.protocol import SqlSession
from stallscope.server.innodbnumbers import latest_deadlock, with_share
from stallscope.server.statements import Statement, normalizer
from stallscope.server.status import ABSENT, Progress, StatusSample

__all__ = ["sample"]

STATUS = "SHOW GLOBAL STATUS"
VARIABLES = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_log_file_size',"
    " 'innodb_log_files_in_group', 'innodb_redo_log_capacity', 'innodb_print_all_deadlocks',"
    " 'innodb_defragment', 'sql_mode')"
)
INNODB = "SHOW ENGINE INNODB STATUS"
METRICS = (
    "SELECT * FROM information_schema.INNODB_METRICS"
    " WHERE NAME IN ('lock_deadlocks', 'icp_attempts', 'icp_match', 'icp_no_match',"
    " 'icp_out_of_range')"
)
CONSUMER = (
    "SELECT ENABLED FROM performance_schema.setup_consumers WHERE NAME = 'events_stages_current'"
)
STAGES = (
    "SELECT t.PROCESSLIST_ID, s.EVENT_NAME, s.WORK_COMPLETED, s.WORK_ESTIMATED, t.PROCESSLIST_INFO"
    " FROM performance_schema.events_stages_current s"
    " JOIN performance_schema.threads t ON t.THREAD_ID = s.THREAD_ID"
    " WHERE s.WORK_ESTIMATED > 0 AND t.PROCESSLIST_ID IS NOT NULL"
)
PROCESSES = (
    "SELECT ID, STATE, PROGRESS, STAGE, MAX_STAGE, INFO FROM information_schema.PROCESSLIST"
    " WHERE PROGRESS > 0"
)
_MAX_PROGRESS = 100
_UNKNOWN_THERE = frozenset({1049, 1054, 1109, 1146})
"""No such database, column or table: this server does not report it."""


def sample(session: SqlSession) -> StatusSample:
    """Ask the server once. Raises: SqlError where it does not answer."""
    clock_s = time.monotonic()
    values: dict[str, float] = {}
    for name, text in session.select(STATUS):
        value = number(text)
        if value is not None:
            values[str(name)] = value
    variables = {str(name): str(value) for name, value in session.select(VARIABLES)}
    missing: dict[str, str] = {}
    deadlock = None
    try:
        rows = session.select(INNODB)
        text = str(rows[0][-1]) if rows else ""
        values |= with_share(text, variables)
        deadlock = latest_deadlock(text)
    except StatementError as error:
        missing["innodb"] = str(error)
    _metrics(session, values, missing)
    _compressed(session, values, missing)
    progress = _progress(session, normalizer(variables.get("sql_mode", "")), missing)
    return StatusSample(
        values,
        clock_s,
        variables,
        session.version.text,
        progress,
        missing,
        deadlock,
        session.number,
    )


def _why(error: StatementError) -> str:
    """Distinguish what a server does not have from what it refused to this account, or this
    time."""
    return ABSENT if error.number in _UNKNOWN_THERE else str(error)


def _metrics(session: SqlSession, values: dict[str, float], missing: dict[str, str]) -> None:
    """Take the counters that are enabled: a disabled one stays 0."""
    try:
        records = session.records(METRICS)
    except StatementError as error:
        missing["metrics"] = _why(error)
        return
    off = []
    for record in records:
        # MySQL has STATUS 'enabled'; MariaDB has ENABLED 1 from 10.5 on, STATUS before.
        if str(record.get("status", record.get("enabled"))) in ("enabled", "1"):
            values[f"metrics.{record['name']}"] = float(record["count"])
        else:
            name = str(record["name"])
            off.append(name)
            missing[f"metrics.{name}"] = f"disabled: SET GLOBAL innodb_monitor_enable = '{name}'"
    if off:
        missing["metrics"] = f"disabled: SET GLOBAL innodb_monitor_enable = '{off[0]}'"


def _compressed(session: SqlSession, values: dict[str, float], missing: dict[str, str]) -> None:
    """Take how often pages of compressed tables were compressed, of all page sizes."""
    try:
        values |= read_compression(session)
    except StatementError as error:
        missing["cmp"] = _why(error)


def _progress(
    session: SqlSession, normalize: Callable[[str], Statement], missing: dict[str, str]
) -> tuple[Progress, ...]:
    def made(identity: Any, stage: Any, percent: Any, query: Any) -> Progress:
        sql = normalize(str(query)).text if query else None
        return Progress(int(identity), str(stage or ""), percent, sql)

    found = []
    try:
        if session.version.mariadb:
            for identity, state, share, step, steps, query in session.select(PROCESSES):
                stage = f"{state} (stage {step} of {steps})"
                found.append(made(identity, stage, float(share), query))
            return tuple(found[:_MAX_PROGRESS])
        consumer = session.select(CONSUMER)
        if not consumer:
            missing["progress"] = "performance_schema is off, or has no stages"
            return ()
        if consumer != [("YES",)]:
            missing["progress"] = (
                "disabled: UPDATE performance_schema.setup_consumers SET ENABLED = 'YES'"
                " WHERE NAME LIKE 'events_stages_current'"
            )
            return ()
        for identity, stage, done, whole, query in session.select(STAGES):
            share = 100 * float(done or 0) / float(whole)
            found.append(made(identity, stage, min(100.0, share), query))
    except StatementError as error:
        missing["progress"] = _why(error)
    return tuple(found[:_MAX_PROGRESS])
