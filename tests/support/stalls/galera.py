# SPDX-License-Identifier: Apache-2.0
"""A Galera cluster that flow control has paused, and a node that has lost the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.clients import idle_connections
from tests.support.servers.galera import GaleraNode, joined, status
from tests.support.servers.sql import SqlServer
from tests.support.servers.waiting import wait_until
from tests.support.stalls.pool import client_pool

__all__ = ["PAUSE", "TABLE", "WRITES", "cluster_that_works", "flow_control", "not_primary"]

WRITERS = 5
TABLE = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.orders (id INT PRIMARY KEY, total INT) ENGINE=InnoDB",
)
WRITES = [
    [f"INSERT INTO orders VALUES ({row}, 0) ON DUPLICATE KEY UPDATE total = total + 1"]
    for row in range(WRITERS)
]
"""Each is a change: a row that stays as it is replicates nothing."""
PAUSE = 0.05


@contextmanager
def flow_control(node: GaleraNode) -> Iterator[None]:
    """Write on a node, while a client of another one has locked the table: its applier, which does
    not end who holds locks of the user, falls behind and pauses the cluster."""
    with joined(node) as (_, slow):
        node.execute(*TABLE)
        with client_pool(node, "shop", WRITES, PAUSE), idle_connections(slow, 1) as (client,):
            wait_until(lambda: _has_table(slow), "the table is on the other node")
            with client.cursor() as cursor:
                cursor.execute("SELECT GET_LOCK('batch', 0)")
                cursor.execute("LOCK TABLES shop.orders READ")
            wait_until(lambda: status(node, "wsrep_flow_control_active") == "true", "the pause")
            yield


@contextmanager
def cluster_that_works(node: GaleraNode) -> Iterator[None]:
    """Write on a node, and nobody is in the way of the others' appliers."""
    with joined(node):
        node.execute(*TABLE)
        with client_pool(node, "shop", WRITES, PAUSE):
            yield


@contextmanager
def not_primary(node: GaleraNode) -> Iterator[None]:
    """End the other nodes at once: this one does not know whether they live, and refuses."""
    with joined(node) as others:
        for other in others:
            other.stop()
        wait_until(lambda: status(node, "wsrep_ready") == "OFF", "the node has lost the others")
        yield


def _has_table(node: SqlServer) -> bool:
    return node.query("SHOW TABLES FROM shop") != ()
