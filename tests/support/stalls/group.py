# SPDX-License-Identifier: Apache-2.0
"""A group of MySQL servers whose flow control slows writers, and one that has lost its majority."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers.clients import idle_connections
from tests.support.servers.groupmember import STATES, GroupMember, grouped
from tests.support.servers.waiting import wait_until
from tests.support.stalls.galera import PAUSE, TABLE, WRITES
from tests.support.stalls.pool import client_pool

__all__ = ["group_flow_control", "group_that_works", "group_without_majority"]

COMMIT = "waiting for handler commit"


@contextmanager
def group_flow_control(member: GroupMember) -> Iterator[None]:
    """Write on the primary, while a client of the other one has locked the table."""
    with grouped(member) as second:
        member.execute(*TABLE)
        wait_until(lambda: second.query("SHOW DATABASES LIKE 'shop'") != (), "the table is there")
        with client_pool(member, "shop", WRITES, PAUSE), idle_connections(second, 1) as (client,):
            with client.cursor() as cursor:
                cursor.execute("LOCK TABLES shop.orders READ")
            wait_until(lambda: member.in_state(COMMIT) == len(WRITES), "all commits wait")
            yield


@contextmanager
def group_that_works(member: GroupMember) -> Iterator[None]:
    """Write on the primary, and nobody is in the way of the other's applier."""
    with grouped(member):
        member.execute(*TABLE)
        with client_pool(member, "shop", WRITES, 1.0):
            yield


@contextmanager
def group_without_majority(member: GroupMember) -> Iterator[None]:
    """End the other member at once: this one waits until it knows what became of it."""
    with grouped(member) as second:
        second.stop()
        wait_until(lambda: ("UNREACHABLE",) in member.query(STATES), "the other is unreachable")
        yield
