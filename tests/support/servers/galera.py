# SPDX-License-Identifier: Apache-2.0
"""Nodes of a Galera cluster on this machine: the installed mariadbd with Debian's provider."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar

from tests.support.cache import MEMORY, cache_folder, why_missing
from tests.support.servers.mariadb import MariaDB
from tests.support.servers.ports import free_ports
from tests.support.servers.sql import SqlServer
from tests.support.servers.waiting import wait_until

__all__ = ["GaleraNode", "joined", "status"]

NODES = 3
PORTS = 2
"""Of each node: for the others, and for the transfer of missing changes."""
INSTALLED = Path("/usr/lib/galera/libgalera_smm.so")


class GaleraNode(MariaDB):
    """One node. ``ports`` are those of all nodes, its own first; ``joins``: the state of the
    cluster that it joins, id and number of the last change; None: it begins one.

    All begin with the same data, so that none has to get another's.
    """

    name: ClassVar[str] = "galera"

    def __init__(
        self,
        *options: str,
        ports: Sequence[int] | None = None,
        joins: tuple[str, str] | None = None,
    ) -> None:
        self.joins = joins
        self.ports = tuple(ports or free_ports(NODES * PORTS))
        own, transfer = self.ports[:PORTS]
        others = ",".join(f"127.0.0.1:{port}" for port in self.ports[PORTS::PORTS])
        provider = {
            "gmcast.listen_addr": f"tcp://127.0.0.1:{own}",
            "ist.recv_addr": f"127.0.0.1:{transfer}",
            "gcs.fc_limit": "2",
            "gcache.size": "16M",
        }
        super().__init__(
            "--wsrep-on=ON",
            f"--wsrep-provider={_provider()}",
            f"--wsrep-cluster-address=gcomm://{others if joins else ''}",
            f"--wsrep-provider-options={';'.join(f'{k}={v}' for k, v in provider.items())}",
            f"--wsrep-node-address=127.0.0.1:{own}",
            "--wsrep-sst-method=skip",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            *options,
            parent=MEMORY,
        )

    def _create_data(self) -> None:
        super()._create_data()
        if self.joins is not None:
            state = self.data / "grastate.dat"
            uuid, number = self.joins
            state.write_text(
                f"# GALERA saved state\nversion: 2.1\nuuid: {uuid}\nseqno: {number}\n"
                "safe_to_bootstrap: 0\n"
            )
            self.give_to_server(state)

    @classmethod
    def missing(cls) -> str | None:
        if reason := super().missing():
            return reason
        return None if _provider().is_file() else why_missing(cls.name)


@contextmanager
def joined(node: GaleraNode) -> Iterator[tuple[GaleraNode, ...]]:
    """Start the other nodes of the cluster; yield them when all are in it."""
    with ExitStack() as started:
        others = []
        for number in range(1, NODES):
            at = number * PORTS
            ports = (*node.ports[at:], *node.ports[:at])
            state = (status(node, "wsrep_cluster_state_uuid"), status(node, "wsrep_last_committed"))
            others.append(started.enter_context(GaleraNode(ports=ports, joins=state)))
            wait_until(
                lambda: all(_is_in(one, 1 + len(others)) for one in (node, *others)),
                f"{1 + len(others)} nodes are synchronized",
            )
        yield tuple(others)


def status(node: SqlServer, name: str) -> str:
    """Return the value of a status variable."""
    return str(node.query(f"SHOW GLOBAL STATUS LIKE '{name}'")[0][1])


def _is_in(node: GaleraNode, size: int) -> bool:
    return status(node, "wsrep_cluster_size") == str(size) and status(node, "wsrep_ready") == "ON"


def _provider() -> Path:
    if INSTALLED.is_file():
        return INSTALLED
    return cache_folder() / "galera" / "libgalera_smm.so"
