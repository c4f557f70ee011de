# SPDX-License-Identifier: Apache-2.0
"""The samples of an incident as a few numbers: before it, the most while it lasted, and after."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence

from stallscope.fleet import clip
from stallscope.fleet.tables import SamplePart
from stallscope.model.incident import Fired
from stallscope.model.samples import Sample, is_counter, rates

__all__ = ["MAX_NAMES", "condense"]

MAX_NAMES = 40
MAX_FIRED = 100
MAX_SAMPLES = 100_000
_MINUTE_NS = 60 * 10**9
_WORD = re.compile(r"[\w.-]+")
_KEPT = (
    *("Threads_running", "processlist.running", "heartbeat.ms", "backends.active"),
    *("backends.waiting", "backends.blocked_s", "Questions", "Threads_connected"),
    *("process.cpu_share", "host.run_queue", "disk.datadir.util", "disk.datadir.queue"),
    *("psi.io.some_avg10", "psi.cpu.some_avg10", "psi.memory.some_avg10", "process.rss_bytes"),
    *("Innodb_row_lock_current_waits", "Innodb_row_lock_waits", "Innodb_deadlocks"),
    *("Innodb_rows_read", "Innodb_data_fsyncs", "Innodb_os_log_fsyncs", "Innodb_data_reads"),
    *("Innodb_buffer_pool_wait_free", "Innodb_buffer_pool_pages_dirty", "Innodb_log_waits"),
    *("Innodb_history_list_length", "Innodb_checkpoint_age", "Table_locks_waited"),
    *("Opened_tables", "Threads_created", "Aborted_connects", "Bytes_sent"),
)
"""What says most about a stall; and those that the triggers name."""


def condense(
    samples: Sequence[Sample],
    start_ns: int,
    end_ns: int | None,
    fired: Sequence[Fired] = (),
) -> tuple[SamplePart, ...]:
    """Return at most ``MAX_NAMES`` numbers, those that triggers name first.

    ``start_ns``: the breach; ``end_ns``: when the last breach was over, None while it goes on.
    """
    read = [one for one in samples[-MAX_SAMPLES:] if one.error is None]
    read.sort(key=lambda one: one.clock_ns)
    sources: dict[str, str] = {}
    for one in read:
        for name in one.values:
            sources.setdefault(name, one.source)
    words = (word for each in fired[:MAX_FIRED] for word in _WORD.findall(each.why[:1000]))
    asked = [word.rstrip(".") for word in words]
    names = [name for name in dict.fromkeys((*asked, *_KEPT)) if name in sources]
    parts: list[SamplePart] = []
    for name in names[:MAX_NAMES]:
        part = _part(name, [one for one in read if name in one.values], start_ns, end_ns)
        if part is not None:
            parts.append(part)
    return tuple(parts)


def _part(
    name: str, samples: Sequence[Sample], start_ns: int, end_ns: int | None
) -> SamplePart | None:
    values: list[float | None] = [_finite(one.values[name]) for one in samples]
    if samples and is_counter(samples[0].source, name):
        values = rates(values, [one.clock_ns for one in samples])
    known = [
        (one.time_ns, value)
        for one, value in zip(samples, values, strict=True)
        if value is not None
    ]
    last_ns = math.inf if end_ns is None else end_ns
    during = [value for at, value in known if start_ns <= at <= last_ns]
    if not during:
        return None
    return SamplePart(
        name=clip.text(name, 100),
        before=_median([v for at, v in known if start_ns - _MINUTE_NS <= at < start_ns]),
        most=clip.number(max(during)),
        after=_median([v for at, v in known if at > last_ns]),
    )


def _finite(value: float) -> float | None:
    return clip.number_or_none(value)


def _median(values: Sequence[float]) -> float | None:
    return clip.number_or_none(statistics.median(values)) if values else None
