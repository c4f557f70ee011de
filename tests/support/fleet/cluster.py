# SPDX-License-Identifier: Apache-2.0
"""A cluster of ClickHouse servers on 127.0.0.1: shards of replicas, and a ZooKeeper."""

from __future__ import annotations

import http.client
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from tests.support.fleet.clickhouse import ClickHouse, ClickHouseSays, Ports, clickhouse_missing
from tests.support.fleet.zookeeper import ZooKeeper, zookeeper_missing
from tests.support.servers.ports import free_ports
from tests.support.servers.waiting import wait_until

__all__ = ["CLUSTER", "Cluster", "cluster_missing"]

CLUSTER = "fleet"
"""Its name in the servers' configuration."""


def cluster_missing() -> str | None:
    """Return why none can be started here, or None."""
    return clickhouse_missing() or zookeeper_missing()


class Cluster:
    """A context manager: ``shards[i][j]`` is replica ``j`` of shard ``i``.

    ``ddl``: ON CLUSTER works. ``zookeeper``: without it there is one replica of each shard.
    ``data``: where tables of some servers are, by shard and replica.
    """

    def __init__(
        self,
        folder: Path,
        *,
        shards: int = 2,
        replicas: int = 2,
        zookeeper: bool = True,
        ddl: bool = True,
        data: dict[tuple[int, int], Path] | None = None,
    ) -> None:
        assert zookeeper or replicas == 1, "replicas need ZooKeeper"
        self.folder = folder
        self._count = (shards, replicas)
        self._ddl = ddl
        self._data = data or {}
        self.zookeeper = ZooKeeper(folder / "zookeeper") if zookeeper else None
        self.shards: list[list[ClickHouse]] = []
        self._stack = ExitStack()

    @property
    def nodes(self) -> list[ClickHouse]:
        """Return all servers."""
        return [node for shard in self.shards for node in shard]

    @property
    def url(self) -> str:
        """Return the address that names all of its servers."""
        return f"clickhouse+http://default@{','.join(n.host for n in self.nodes)}/stallscope"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self.zookeeper is not None:
                stack.enter_context(self.zookeeper)
            self._make()
            for node in self.nodes:
                stack.callback(node.kill)
            self._begin()
            while self._ddl and self.zookeeper is not None and not self._all_listen():
                self._begin()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _begin(self) -> None:
        """Start all, the first before the others: two that make the folders of ON CLUSTER in
        ZooKeeper at once can leave one without the thread that executes it."""
        for node in self.nodes:
            node.kill()
        first, *others = self.nodes
        first.launch()
        first.wait()
        if self._ddl and self.zookeeper is not None:
            wait_until(lambda: _has_queue(first), "the first server can take ON CLUSTER")
        for node in others:
            node.launch()
        for node in others:
            node.wait()

    def _all_listen(self) -> bool:
        """Return whether all servers execute what is ON CLUSTER."""
        sql = f"CREATE DATABASE IF NOT EXISTS listening ON CLUSTER {CLUSTER}"
        setting = "distributed_ddl_task_timeout=10"
        with suppress(OSError, http.client.HTTPException, ClickHouseSays):
            self.nodes[-1].query(sql, f"default&{setting}")
            return True
        return False

    def kill_shard(self, index: int) -> None:
        """SIGKILL all servers of a shard."""
        for node in self.shards[index]:
            node.kill()

    def start_shard(self, index: int) -> None:
        """Start them again, and wait until they answer."""
        for node in self.shards[index]:
            node.launch()
        for node in self.shards[index]:
            node.wait()

    def wait_writable(self, database: str = "stallscope", seconds: float = 240.0) -> None:
        """Wait until no replica is read-only, as it is until ZooKeeper knows that it is back."""
        for node in self.nodes:
            wait_until(
                lambda node=node: _writable(node, database),  # type: ignore[misc]
                f"replicas of {node.host} can be written to",
                seconds,
            )

    def _make(self) -> None:
        shards, replicas = self._count
        free = free_ports(4 * shards * replicas)
        ports = [Ports(*free[at : at + 4]) for at in range(0, len(free), 4)]
        servers = self._servers(ports)
        for shard in range(shards):
            self.shards.append([])
            for replica in range(replicas):
                own = (
                    f"<macros><shard>s{shard}</shard><replica>r{replica}</replica></macros>"
                    f"{servers}"
                )
                self.shards[shard].append(
                    ClickHouse(
                        self.folder / f"s{shard}r{replica}",
                        ports=ports[shard * replicas + replica],
                        data=self._data.get((shard, replica)),
                        more=own,
                    )
                )

    def _servers(self, ports: list[Ports]) -> str:
        shards, replicas = self._count
        inside = ""
        for shard in range(shards):
            one = "".join(
                f"<replica><host>127.0.0.1</host><port>{p.tcp}</port></replica>"
                for p in ports[shard * replicas : (shard + 1) * replicas]
            )
            inside += f"<shard><internal_replication>true</internal_replication>{one}</shard>"
        found = f"<remote_servers><{CLUSTER}>{inside}</{CLUSTER}></remote_servers>"
        if self.zookeeper is None:
            return found
        found += (
            f"<zookeeper><node><host>127.0.0.1</host><port>{self.zookeeper.port}</port></node>"
            "<session_timeout_ms>5000</session_timeout_ms></zookeeper>"
        )
        if self._ddl:
            found += "<distributed_ddl><path>/clickhouse/ddl</path></distributed_ddl>"
        return found


def _has_queue(node: ClickHouse) -> bool:
    sql = "SELECT count() FROM system.zookeeper WHERE path = '/clickhouse' AND name = 'ddl'"
    with suppress(OSError, ClickHouseSays):
        return node.query(sql) == "1"
    return False


def _writable(node: ClickHouse, database: str) -> bool:
    sql = f"SELECT count(), sum(is_readonly) FROM system.replicas WHERE database = '{database}'"
    with suppress(OSError, ClickHouseSays):
        count, readonly = node.query(sql).split("\t")
        return int(count) > 0 and readonly == "0"
    return False
