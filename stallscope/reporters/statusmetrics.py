# SPDX-License-Identifier: Apache-2.0
"""A server's own numbers, and those of its device and link, as Prometheus metrics.

Counters are the server's: they begin at 0 when it starts. What it does not have is no series.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from stallscope.model.samples import Sample
from stallscope.reporters.exposition import Families, Labels

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["VARIABLES", "StatusMetrics"]

_SOURCES = ("status", "compression", "disks", "links")


class _Value(NamedTuple):
    """A number of a sample as one series."""

    name: str
    labels: Labels = ()
    scale: float = 1.0


class _Family(NamedTuple):
    metric: str
    kind: Literal["counter", "gauge"]
    text: str
    values: tuple[_Value, ...]


def _by(label: str, **names: str) -> tuple[_Value, ...]:
    return tuple(_Value(name, ((label, value),)) for value, name in names.items())


_FAMILIES = (
    _Family(
        "aria_pagecache_blocks",
        "gauge",
        "Blocks of Aria's page cache; dirty ones are counted as used too.",
        _by(
            "state",
            used="Aria_pagecache_blocks_used",
            unused="Aria_pagecache_blocks_unused",
            dirty="Aria_pagecache_blocks_not_flushed",
        ),
    ),
    _Family(
        "aria_pagecache_requests",
        "counter",
        "Requests for pages of Aria's page cache.",
        _by(
            "kind",
            read="Aria_pagecache_read_requests",
            write="Aria_pagecache_write_requests",
        ),
    ),
    _Family(
        "aria_pagecache_io",
        "counter",
        "Pages of Aria read from and written to disk.",
        _by("kind", read="Aria_pagecache_reads", write="Aria_pagecache_writes"),
    ),
    _Family(
        "aria_log_syncs", "counter", "Syncs of Aria's log.",
        (_Value("Aria_transaction_log_syncs"),),
    ),
    _Family(
        "online_ddl_log_rows", "gauge", "Rows logged for an online ALTER TABLE.",
        (_Value("Innodb_onlineddl_rowlog_rows"),),
    ),
    _Family(
        "online_ddl_log_used_ratio", "gauge", "Log of an online ALTER TABLE in use; 1 is all.",
        (_Value("Innodb_onlineddl_rowlog_pct_used", scale=0.0001),),
    ),
    _Family(
        "online_ddl_progress_ratio", "gauge", "Progress of an online ALTER TABLE; 1 is all.",
        (_Value("Innodb_onlineddl_pct_progress", scale=0.0001),),
    ),
    _Family(
        "index_condition_pushdown",
        "counter",
        "Index entries whose condition was checked in the engine, and those that matched.",
        _by("result", attempt="Handler_icp_attempts", match="Handler_icp_match"),
    ),
    _Family(
        "table_compression_pages",
        "counter",
        "Pages of compressed tables (ROW_FORMAT=COMPRESSED) by what InnoDB did with them.",
        _by(
            "result",
            tried="cmp.compress_ops",
            failed="cmp.compress_failures",
            decompressed="cmp.uncompress_ops",
        ),
    ),
    _Family(
        "page_compression_pages",
        "counter",
        "Pages by what page compression did with them.",
        _by(
            "result",
            compressed="Innodb_num_pages_page_compressed",
            decompressed="Innodb_num_pages_page_decompressed",
            failed="Innodb_num_pages_page_compression_error",
        ),
    ),
    _Family(
        "page_compression_saved_bytes", "counter", "Bytes that page compression did not write.",
        (_Value("Innodb_page_compression_saved"),),
    ),
    _Family(
        "defragmentations",
        "counter",
        "Batches of defragmentation, by result.",
        _by(
            "result",
            done="Innodb_defragment_count",
            failed="Innodb_defragment_failures",
            not_compressible="Innodb_defragment_compression_failures",
        ),
    ),
    _Family("deadlocks", "counter", "Deadlocks of InnoDB.", (_Value("Innodb_deadlocks"),)),
    _Family(
        "network_bytes",
        "counter",
        "Bytes of all connections of the server.",
        _by("direction", sent="Bytes_sent", received="Bytes_received"),
    ),
    _Family(
        "link_speed_bytes", "gauge", "Speed of the server's network link, a second.",
        (_Value("link.speed_bytes"),),
    ),
    _Family(
        "device_in_flight", "gauge", "Requests in flight at the data directory's device.",
        (_Value("disk.datadir.in_flight"),),
    ),
    _Family(
        "device_queue", "gauge", "Requests in flight at that device on average, between polls.",
        (_Value("disk.datadir.queue"),),
    ),
    _Family(
        "device_busy_ratio", "gauge", "Time in which that device was busy, between polls.",
        (_Value("disk.datadir.util"),),
    ),
    _Family(
        "device_request_seconds",
        "gauge",
        "Time of a request to that device on average, between polls.",
        tuple(
            _Value(f"disk.datadir.{kind}_await_ms", (("kind", kind),), 0.001)
            for kind in ("read", "write", "flush")
        ),
    ),
)  # fmt: skip
_NO_VARIABLES = ("cmp.", "disk.", "link.")
VARIABLES = tuple(
    value.name
    for family in _FAMILIES
    for value in family.values
    if not value.name.startswith(_NO_VARIABLES)
)
"""Status variables that are metrics."""


class StatusMetrics:
    """The latest numbers of one server."""

    def __init__(self) -> None:
        self._latest: dict[str, dict[str, float]] = {}

    def take(self, sample: Sample) -> None:
        """Keep the numbers of a sample; one that failed ends those of its source."""
        if sample.source not in _SOURCES:
            return
        known = {} if sample.error is not None else self._latest.get(sample.source, {})
        if sample.source != "status":
            known = {}
        # At rest the status has only what triggers read.
        self._latest[sample.source] = {**known, **sample.values}

    def clear(self) -> None:
        """Forget the numbers of a server that has ended."""
        self._latest.clear()

    def families(self, make: Families) -> Iterator[Metric]:
        """Yield the metrics, as they are now."""
        now = {name: value for values in self._latest.values() for name, value in values.items()}
        for family in _FAMILIES:
            found: dict[Labels, float] = {
                value.labels: now[value.name] * value.scale
                for value in family.values
                if value.name in now
            }
            way = make.counter if family.kind == "counter" else make.gauge
            yield from way(family.metric, family.text, found)
