# SPDX-License-Identifier: Apache-2.0
"""MySQL's group replication: who is in the group, and what its flow control counts."""

from __future__ import annotations

from collections.abc import Sequence

from stallscope.collectors.sql.collecting import SqlCollector, number
from stallscope.collectors.sql.failures import NO_SUCH_TABLE, StatementError
from stallscope.collectors.sql.protocol import Row, SqlSession

__all__ = ["GroupReplication", "read"]

MAX_MEMBERS = 16
"""A group has at most nine."""
MEMBERS = """\
SELECT MEMBER_STATE, MEMBER_ID = @@GLOBAL.server_uuid
FROM performance_schema.replication_group_members WHERE MEMBER_ID <> ''"""
QUEUES = """\
SELECT COUNT_TRANSACTIONS_REMOTE_IN_APPLIER_QUEUE, COUNT_TRANSACTIONS_IN_QUEUE
FROM performance_schema.replication_group_member_stats s
JOIN performance_schema.replication_group_members m ON m.MEMBER_ID = s.MEMBER_ID
WHERE m.MEMBER_STATE IN ('ONLINE', 'RECOVERING')"""
LIMITS = """\
SELECT @@GLOBAL.group_replication_flow_control_mode,
@@GLOBAL.group_replication_flow_control_applier_threshold,
@@GLOBAL.group_replication_flow_control_certifier_threshold"""
_QUOTA = "QUOTA"
_MISSING = NO_SUCH_TABLE | {1054, 1142, 1193}
"""Errors: no such table, column or variable, or no right to it: MySQL before 8.0."""


class GroupReplication(SqlCollector):
    """``group.members``, 0 where there is no group; of one also ``.online``, ``.unreachable``,
    ``.own_online`` (1 where this server is ONLINE), ``.applier_queue`` and ``.certifier_queue``
    (transactions, of the member that has most). And ``.flow_control``: the longest queue as a part
    of the threshold beyond which writers are slowed down; 0 without a group."""

    name = "group"

    def read(self, session: SqlSession) -> dict[str, float]:
        return read(session)


def read(session: SqlSession) -> dict[str, float]:
    """Return the same numbers, once. Raises: SqlError."""
    members = [] if session.version.mariadb else _members(session)
    found = {"group.members": float(len(members))}
    if not members:
        return {**found, "group.flow_control": 0.0}
    states = [str(state) for state, _ in members]
    own = [state for (state, is_own) in members if number(is_own)]
    found["group.online"] = float(states.count("ONLINE"))
    found["group.unreachable"] = float(states.count("UNREACHABLE"))
    if own:
        found["group.own_online"] = float(own[0] == "ONLINE")
    return found | _queues(session)


def _members(session: SqlSession) -> Sequence[Row]:
    try:
        return session.select(MEMBERS, max_rows=MAX_MEMBERS)
    except StatementError as error:
        if error.number in NO_SUCH_TABLE:  # before 5.7
            return []
        raise


def _queues(session: SqlSession) -> dict[str, float]:
    """Return the longest queues of the members; nothing where the server does not show them. Those
    of a member that was lost are what they were then, and slow nobody."""
    try:
        rows = session.select(QUEUES, max_rows=MAX_MEMBERS)
        (limits,) = session.select(LIMITS)
    except StatementError as error:
        if error.number in _MISSING:
            return {}
        raise
    applier, certifier = (
        max((number(row[column]) or 0.0 for row in rows), default=0.0) for column in (0, 1)
    )
    slows = str(limits[0]) == _QUOTA
    parts = [
        queue / limit
        for queue, limit in zip((applier, certifier), map(number, limits[1:]), strict=True)
        if limit
    ]
    return {
        "group.applier_queue": applier,
        "group.certifier_queue": certifier,
        "group.flow_control": max(parts, default=0.0) if slows else 0.0,
    }
