# SPDX-License-Identifier: Apache-2.0
"""Stalls that a server's answers show, and no stack, and their fixed twins."""

from __future__ import annotations

from contextlib import nullcontext

from tests.support.servers import MEMORY, MariaDB, MySQL97, Postgres
from tests.support.servers.galera import GaleraNode
from tests.support.servers.groupmember import GroupMember
from tests.support.stalls.galera import cluster_that_works, flow_control, not_primary
from tests.support.stalls.group import (
    group_flow_control,
    group_that_works,
    group_without_majority,
)
from tests.support.stalls.handshakes import handshakes_aborted, handshakes_that_end
from tests.support.stalls.logins import (
    LOGGED_IN,
    POOL_OPTIONS,
    POOL_SIZE,
    WAITING,
    NamedHosts,
    busy_pool,
    tcp_clients,
)
from tests.support.stalls.replicas import (
    REPLICA_OPTIONS,
    SEMISYNC_OPTIONS,
    SEMISYNC_OPTIONS_MYSQL,
    applier_behind,
    applier_error,
    read_only,
    replica_that_works,
    semisync_off,
    semisync_without_replica,
)
from tests.support.stalls.stall import Expected, NamedStall, Stall
from tests.support.stalls.used_up import (
    POSTGRES_OPTIONS,
    USED_UP_OPTIONS,
    backends_used_up,
    backends_used_up_fixed,
    connections_used_up,
    connections_used_up_fixed,
)

__all__ = ["STALLS"]

LOGIN = Expected(("login-hang",))
USED_UP = Expected(("connections-used-up",))

STALLS: dict[str, NamedStall] = {
    "connections-used-up-mariadb": Stall(
        lambda: MariaDB(*USED_UP_OPTIONS, parent=MEMORY),
        connections_used_up,
        "clients idle on all connections that the server has, and more are refused",
        USED_UP,
    ),
    "connections-used-up-mariadb-fixed": Stall(
        lambda: MariaDB(*USED_UP_OPTIONS, parent=MEMORY),
        connections_used_up_fixed,
        "no stall: 30 clients idle, and 10 connections are free",
    ),
    "connections-used-up-mysql97": Stall(
        lambda: MySQL97(*USED_UP_OPTIONS, parent=MEMORY),
        connections_used_up,
        "clients idle on all connections that the server has, and more are refused",
        USED_UP,
    ),
    "connections-used-up-mysql97-fixed": Stall(
        lambda: MySQL97(*USED_UP_OPTIONS, parent=MEMORY),
        connections_used_up_fixed,
        "no stall: 30 clients idle, and 10 connections are free",
    ),
    "connections-used-up-postgres": Stall(
        lambda: Postgres(*POSTGRES_OPTIONS, parent=MEMORY),
        backends_used_up,
        "clients idle on all connections that PostgreSQL has, those of superusers included",
        USED_UP,
    ),
    "connections-used-up-postgres-fixed": Stall(
        lambda: Postgres(*POSTGRES_OPTIONS, parent=MEMORY),
        backends_used_up_fixed,
        "no stall: 13 clients idle, and 7 connections are free for others than superusers",
    ),
    "login-dns": Stall(
        NamedHosts,
        lambda server: tcp_clients(server, WAITING),
        "12 clients log in by TCP, and the server waits for their host's name from DNS",
        LOGIN,
    ),
    "login-dns-fixed": Stall(
        lambda: NamedHosts("--skip-name-resolve"),
        lambda server: tcp_clients(server, LOGGED_IN),
        "no stall: 12 clients log in by TCP, and the server does not ask DNS",
    ),
    "login-pool": Stall(
        lambda: MariaDB(*POOL_OPTIONS, parent=MEMORY),
        lambda server: busy_pool(server, POOL_SIZE, answers=False),
        "statements keep all threads of the pool busy, and a login gets no answer",
        LOGIN,
    ),
    "login-pool-fixed": Stall(
        lambda: MariaDB(*POOL_OPTIONS, parent=MEMORY),
        lambda server: busy_pool(server, POOL_SIZE // 2, answers=True),
        "no stall: statements keep half of the threads of the pool busy",
    ),
    "semisync-no-replica": Stall(
        lambda: MariaDB(*SEMISYNC_OPTIONS, parent=MEMORY),
        semisync_without_replica,
        "5 commits wait to be acknowledged by a replica, and none is connected",
        Expected(("semisync-no-replica",)),
    ),
    "semisync-no-replica-fixed": Stall(
        lambda: MariaDB(*SEMISYNC_OPTIONS, parent=MEMORY),
        semisync_off,
        "no stall: 5 connections commit, and semi-synchronous replication is off",
    ),
    "semisync-no-replica-mysql97": Stall(
        lambda: MySQL97(*SEMISYNC_OPTIONS_MYSQL, parent=MEMORY),
        lambda server: semisync_without_replica(server, "source"),
        "5 commits wait to be acknowledged by a replica, and none is connected, in MySQL 9.7",
        Expected(("semisync-no-replica",)),
    ),
    "semisync-no-replica-mysql97-fixed": Stall(
        lambda: MySQL97(*SEMISYNC_OPTIONS_MYSQL, parent=MEMORY),
        semisync_off,
        "no stall: 5 connections commit, and semi-synchronous replication is off",
    ),
    "replica-stopped": Stall(
        lambda: MariaDB(*REPLICA_OPTIONS, parent=MEMORY),
        applier_error,
        "the applier of a replica ended with an error: its row is there already",
        Expected(("replica-stopped",)),
    ),
    "replica-stopped-fixed": Stall(
        lambda: MariaDB(*REPLICA_OPTIONS, parent=MEMORY),
        replica_that_works,
        "no stall: a replica applies the changes of its source",
    ),
    "replica-lag": Stall(
        lambda: MariaDB(*REPLICA_OPTIONS, parent=MEMORY),
        applier_behind,
        "the applier of a replica waits for a row that an idle transaction of a reader locked",
        Expected(("innodb-row-lock",)),
    ),
    "replica-lag-fixed": Stall(
        lambda: MariaDB(*REPLICA_OPTIONS, parent=MEMORY),
        replica_that_works,
        "no stall: a replica applies the changes of its source",
    ),
    "read-only": Stall(
        lambda: MariaDB(parent=MEMORY),
        read_only,
        "the server refuses writes, and replicates from nobody",
        Expected(("read-only",)),
    ),
    "read-only-fixed": Stall(
        lambda: MariaDB(parent=MEMORY),
        lambda server: nullcontext(),
        "no stall: the server takes writes",
    ),
    "galera-flow-control": Stall(
        GaleraNode,
        flow_control,
        "writers wait on a node of a Galera cluster: the applier of another waits for a table",
        Expected(("galera-flow-control",)),
    ),
    "galera-flow-control-fixed": Stall(
        GaleraNode,
        cluster_that_works,
        "no stall: writers on a node of a Galera cluster, and nobody locks the table",
    ),
    "galera-not-primary": Stall(
        GaleraNode,
        not_primary,
        "a node of a Galera cluster has lost both others, and refuses statements",
        Expected(("galera-not-primary",)),
    ),
    "galera-not-primary-fixed": Stall(
        GaleraNode,
        cluster_that_works,
        "no stall: all three nodes are there",
    ),
    "handshakes-aborted": Stall(
        lambda: MariaDB(parent=MEMORY),
        handshakes_aborted,
        "ten clients a second connect, and go before they have logged in; one capture is calm",
    ),
    "handshakes-aborted-fixed": Stall(
        lambda: MariaDB(parent=MEMORY),
        handshakes_that_end,
        "no stall: 5 clients log in and stay",
    ),
    "group-flow-control": Stall(
        GroupMember,
        group_flow_control,
        "writers of a MySQL group wait for their quota: the other's applier waits for a table",
        Expected(("group-flow-control",)),
    ),
    "group-flow-control-fixed": Stall(
        GroupMember,
        group_that_works,
        "no stall: writers of a MySQL group, and nobody locks the table",
    ),
    "group-no-majority": Stall(
        GroupMember,
        group_without_majority,
        "a MySQL group of two has lost one: the other does not know whether it lives",
        Expected(("group-no-majority",)),
    ),
    "group-no-majority-fixed": Stall(
        GroupMember,
        group_that_works,
        "no stall: both members of the group are there",
    ),
}
