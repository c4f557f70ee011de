# SPDX-License-Identifier: Apache-2.0
"""Lines of waits with what threads did."""

from __future__ import annotations

from stallscope.model.waitlines import SCHEMA, Rest, ThreadRow, ThreadSample, WaitLine

__all__ = ["COND", "FSYNC", "IDLE", "MUTEX", "RUNNING", "line", "sample"]

NS = 10**9
IDLE = ThreadRow(380, "S", "ppoll", None, None, "do_sys_poll")
COND = ThreadRow(10, "S", "futex", "cond", None, "futex_wait_queue")
MUTEX = ThreadRow(12, "S", "futex", "mutex", "buf_pool->mutex", "futex_wait_queue")
FSYNC = ThreadRow(3, "D", "fsync", "fsync", "redo", "jbd2_log_wait_commit")
RUNNING = ThreadRow(2, "R")


def sample(time_ns: int, *rows: ThreadRow) -> ThreadSample:
    return ThreadSample(time_ns, sum(row.count for row in rows), rows)


def line(
    *samples: ThreadSample,
    rest: Rest | None = None,
    source: str = "bpf",
    call_added_ns: float | None = None,
) -> WaitLine:
    """Return a line of an interval in which nothing waited."""
    ts = samples[-1].time_ns / NS if samples else 1.0
    return WaitLine(
        SCHEMA,
        ts,
        1.0,
        {},
        (),
        {},
        source=source,
        rest=rest,
        history=samples,
        call_added_ns=call_added_ns,
    )
