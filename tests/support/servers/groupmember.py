# SPDX-License-Identifier: Apache-2.0
"""Members of a group of MySQL's group replication on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.support.cache import MEMORY
from tests.support.servers.mysql97 import MySQL97
from tests.support.servers.ports import free_ports
from tests.support.servers.waiting import wait_until

__all__ = ["STATES", "GroupMember", "grouped"]

PORTS = 2
"""Of each member: for clients, and for the group."""
GROUP = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
STATES = "SELECT MEMBER_STATE FROM performance_schema.replication_group_members"
ACCOUNT = (
    "CREATE USER repl@'%' IDENTIFIED BY 'repl'",
    "GRANT REPLICATION SLAVE, CONNECTION_ADMIN, BACKUP_ADMIN, GROUP_REPLICATION_STREAM"
    " ON *.* TO repl@'%'",
)
JOIN = (
    "CHANGE REPLICATION SOURCE TO SOURCE_USER = 'repl', SOURCE_PASSWORD = 'repl'"
    " FOR CHANNEL 'group_replication_recovery'",
    "START GROUP_REPLICATION",
)


class GroupMember(MySQL97):
    """One member. ``ports`` are those of both, its own first. Its writers are slowed down as soon
    as one transaction waits for a member's applier."""

    def __init__(self, *, ports: Sequence[int] = (), number: int = 1) -> None:
        self.ports = tuple(ports or free_ports(2 * PORTS))
        seeds = ",".join(f"127.0.0.1:{port}" for port in self.ports[1::PORTS])
        super().__init__(
            "--skip-networking=OFF",
            "--bind-address=127.0.0.1",
            f"--port={self.ports[0]}",
            f"--server-id={number}",
            "--report-host=127.0.0.1",
            "--gtid-mode=ON",
            "--enforce-gtid-consistency=ON",
            "--log-bin=binlog",
            "--plugin-load-add=group_replication.so",
            f"--loose-group-replication-group-name={GROUP}",
            "--loose-group-replication-start-on-boot=OFF",
            f"--loose-group-replication-local-address=127.0.0.1:{self.ports[1]}",
            f"--loose-group-replication-group-seeds={seeds}",
            "--loose-group-replication-flow-control-applier-threshold=1",
            "--loose-group-replication-recovery-get-public-key=ON",
            parent=MEMORY,
        )


@contextmanager
def grouped(first: GroupMember) -> Iterator[GroupMember]:
    """Make a group of two; yield the second one, which cannot be written."""
    first.execute(
        "SET GLOBAL group_replication_bootstrap_group = ON",
        "START GROUP_REPLICATION",
        "SET GLOBAL group_replication_bootstrap_group = OFF",
        *ACCOUNT,
    )
    ports = (*first.ports[PORTS:], *first.ports[:PORTS])
    with GroupMember(ports=ports, number=2) as second:
        second.execute(*JOIN)
        wait_until(lambda: first.query(STATES) == (("ONLINE",),) * 2, "both are in the group")
        yield second
