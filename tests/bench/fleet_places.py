# SPDX-License-Identifier: Apache-2.0
"""Where benchmarks of a fleet ship to: a cluster of ClickHouse servers, chDB, and a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from stallscope.fleet.address import parse
from stallscope.fleet.destination import Destination, Engine
from stallscope.fleet.engines import clickhousetables, duckdbcompaction, opening
from stallscope.fleet.tables import TABLES
from tests.bench.stats import BenchError
from tests.support.fleet.chdbengine import ChdbServer, chdb_missing
from tests.support.fleet.cluster import CLUSTER, Cluster, cluster_missing

__all__ = [
    "ChdbPlace",
    "ClusterPlace",
    "Compared",
    "FolderPlace",
    "Place",
    "chdb_place",
    "cluster_place",
    "compared",
    "folder_place",
]

REPLICATED = ("incidents", "stacks", "waits", "agents")
SETTLE_S = 300.0
FOURTHS = ("0123", "4567", "89ab", "cdef")
"""First letters of uids: an answer with all of them would be too large."""


class Place(Protocol):
    """A place that takes batches and answers questions."""

    name: str
    url: str

    def destination(self) -> Destination: ...

    def engine(self) -> Engine: ...

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return of each table its rows as they are stored, and its bytes on disk."""

    def settle(self) -> None:
        """Wait until all that was taken can be read from each server."""


class _Addressed:
    """A place that its address says all of."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url

    def destination(self) -> Destination:
        """Return what sends to it."""
        return opening.destination(parse(self.url))

    def engine(self) -> Engine:
        """Return it as engine."""
        return opening.engine(parse(self.url))


class FolderPlace(_Addressed):
    """A folder, read by DuckDB."""

    def __init__(self, folder: Path) -> None:
        super().__init__("folder", f"file://{folder}")
        self.folder = folder

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return the bytes of each table's files; how many rows they hold is not known."""
        found = {}
        for table in TABLES:
            files = [path for path in (self.folder / table).rglob("*") if path.is_file()]
            if files:
                found[table] = (0, sum(path.stat().st_size for path in files))
        return found

    def settle(self) -> None:
        """Nothing is late: what was taken is there."""

    def files(self) -> int:
        """Return how many files there are."""
        return sum(1 for path in self.folder.rglob("*") if path.is_file())

    def compact(self) -> None:
        """Make one file of each table and day."""
        done = duckdbcompaction.compact(self.folder)
        if done.notes:
            raise BenchError(f"compaction left out {done.notes[0]}")


class ClusterPlace(_Addressed):
    """Two shards of two replicas, with their ZooKeeper."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__("ClickHouse", cluster.url)
        self.cluster = cluster

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return what one replica of each shard has of each table."""
        found: dict[str, tuple[int, int]] = {}
        for shard in self.cluster.shards:
            for table, (rows, size, _) in _parts(shard[0]).items():
                before = found.get(table, (0, 0))
                found[table] = (before[0] + rows, before[1] + size)
        return found

    def settle(self) -> None:
        """Wait until each replica has fetched what the others took: a question is answered by any
        of them."""
        for node in self.cluster.nodes:
            for table in REPLICATED:
                node.query(f"SYSTEM SYNC REPLICA stallscope.{table}_local", seconds=SETTLE_S)

    def parts(self) -> int:
        """Return how many active parts all servers have."""
        return sum(parts for node in self.cluster.nodes for _, _, parts in _parts(node).values())

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time of each server so far, and of ZooKeeper."""
        found = {
            f"s{shard}r{replica}": _cpu_seconds(node.pid)
            for shard, nodes in enumerate(self.cluster.shards)
            for replica, node in enumerate(nodes)
        }
        zookeeper = self.cluster.zookeeper
        if zookeeper is not None:
            found["zookeeper"] = _cpu_seconds(zookeeper.pid)
        return found

    def rss_bytes(self) -> int:
        """Return the resident memory of the server that has most."""
        return max(_rss_bytes(node.pid) for node in self.cluster.nodes)


class ChdbPlace(_Addressed):
    """Today's ClickHouse, one node: the library in a child process, behind HTTP."""

    def __init__(self, server: ChdbServer) -> None:
        super().__init__("chDB", server.url)

    def settle(self) -> None:
        """Nothing is late: there is one node."""

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return what it has of each table."""
        with closing(self.engine()) as engine:
            rows = engine.rows(
                "SELECT table, sum(rows) AS n, sum(bytes_on_disk) AS size FROM system.parts"
                " WHERE active AND database = 'stallscope' GROUP BY table"
            )
        return {str(row["table"]): (int(row["n"]), int(row["size"])) for row in rows}


def _parts(node: object) -> dict[str, tuple[int, int, int]]:
    query = getattr(node, "query")  # noqa: B009  # of tests/support/fleet/clickhouse.py
    said = query(
        "SELECT table, sum(rows), sum(bytes_on_disk), count() FROM system.parts"
        " WHERE active AND database = 'stallscope' GROUP BY table"
    )
    found = {}
    for line in said.splitlines():
        table, *numbers = line.split("\t")
        found[table.removesuffix("_local")] = (int(numbers[0]), int(numbers[1]), int(numbers[2]))
    return found


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def folder_place(work: Path) -> Iterator[FolderPlace]:
    """Yield a new folder in ``work``."""
    folder = work / "fleet"
    folder.mkdir()
    yield FolderPlace(folder)


@contextmanager
def chdb_place(work: Path) -> Iterator[ChdbPlace]:
    """Yield a new chDB with tables. Raises: BenchError where there is none here."""
    if why := chdb_missing():
        raise BenchError(why)
    with ChdbServer(work / "chdb") as server:
        clickhousetables.init([server.address])
        yield ChdbPlace(server)


@contextmanager
def cluster_place(work: Path) -> Iterator[ClusterPlace]:
    """Yield a new cluster with tables. Raises: BenchError where none can be made here."""
    if why := cluster_missing():
        raise BenchError(why)
    with Cluster(work / "cluster") as cluster:
        clickhousetables.init([parse(cluster.url)], CLUSTER)
        yield ClusterPlace(cluster)


class Compared(NamedTuple):
    """What an engine answers, beside what was shipped. ``old``: rows of an earlier revision."""

    shipped: int
    lost: int
    doubled: int
    old: int
    strange: int

    @property
    def good(self) -> bool:
        """Return whether all is there once."""
        return not (self.lost or self.doubled or self.old or self.strange)


def compared(place: Place, keys: Mapping[str, int]) -> Compared:
    """Compare the incidents of a place with the revisions that were shipped, by uid."""
    place.settle()
    seen: set[str] = set()
    doubled = old = strange = 0
    with closing(place.engine()) as engine:
        for letters in FOURTHS:
            wanted = ", ".join(engine.dialect.text(letter) for letter in letters)
            where = f"substring(uid, 1, 1) IN ({wanted})"
            source = engine.dialect.table("incidents", ("uid", "rev"), where)
            for row in engine.rows(f"SELECT uid, rev FROM {source} AS t"):
                uid, rev = str(row["uid"]), int(row["rev"])
                doubled += uid in seen
                seen.add(uid)
                if uid not in keys:
                    strange += 1
                elif keys[uid] != rev:
                    old += 1
    lost = sum(uid not in seen for uid in keys)
    return Compared(len(keys), lost, doubled, old, strange)
