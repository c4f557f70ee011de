# SPDX-License-Identifier: Apache-2.0
"""Reports made of captures by hand: a convoy, an incident, a comparison, and hostile ones."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec

from stallscope.analyzers import catalog, engine
from stallscope.model import capturefile
from stallscope.model.capture import BurstEnd, Capture, Frame, LockKind, Note, Thread
from stallscope.model.capture import Sample as Sampled
from stallscope.model.incident import CaptureEntry, Fired, Incident, TargetEntry
from stallscope.model.samples import Sample
from stallscope.reporters.html import assets
from stallscope.reporters.html.pack import Entry
from stallscope.reporters.html.page import Builder
from stallscope.store import Store
from tests.unit.captures import convoy, stack
from tests.unit.scenes import IDLE_SESSION, SESSION, Scenery

__all__ = [
    "START_NS",
    "burst",
    "busy",
    "hostile",
    "locked",
    "rendered",
    "saved",
    "store_incident",
    "value",
    "waits_line",
]

START_NS = 1_795_261_984_250_000_000
_ROW_WAIT = (
    "pthread_cond_wait, os_event_wait_low, lock_wait_suspend_thread, row_search_mvcc, " + SESSION
)
_STATEMENT = "SELECT c FROM sbtest1 WHERE id = ?"


def busy(waiters: int = 20, *, time_ns: int = START_NS) -> Capture:
    """Return a convoy at LOCK_open and idle threads, with sessions and statements."""
    capture = convoy(waiters)
    idle = stack("poll", "vio_io_wait", "my_net_read", "do_command", "handle_one_connection")
    threads = [
        msgspec.structs.replace(
            thread,
            connection=thread.tid - 90,
            user="app",
            database="shop",
            command="Query",
            activity="Opening tables",
            query=_STATEMENT,
            waited_ns=thread.tid * 10**6,
        )
        for thread in capture.threads[:-1]
    ]
    threads += [Thread(tid=2000 + i, frames=idle, name="mysqld", state="S") for i in range(5)]
    return msgspec.structs.replace(capture, threads=tuple(threads), time_ns=time_ns, trigger=None)


def burst(*moments: Capture, ran: str = "", apart_ns: int = 30 * 10**6) -> Capture:
    """Return a burst of these captures; ``ran``: functions that were on a CPU between them."""
    begin = moments[0].time_ns or START_NS
    samples = (Sampled(0, 100, frames=stack(*ran.split(", ")), count=6),) if ran else ()
    timed = [
        msgspec.structs.replace(
            capture,
            moment=number,
            time_ns=begin + number * apart_ns,
            samples=samples if number else (),
            sample_period_ns=10**6 if samples and number else 0,
            sample_window_ns=apart_ns if samples and number else 0,
        )
        for number, capture in enumerate(moments)
    ]
    end = BurstEnd(wanted=len(timed), taken=len(timed))
    return msgspec.structs.replace(timed[0], later=tuple(timed[1:]), burst=end)


def saved(capture: Capture, path: Path) -> Path:
    """Write the capture."""
    capturefile.write(capture, path)
    return path


def locked(waiters: int = 20) -> Capture:
    """Return connections that wait for a row of one that is idle in a transaction."""
    scenery = Scenery(exe="/usr/sbin/mysqld")
    lock = scenery.lock(owner=900, kind=LockKind.ROW, symbol="index PRIMARY of shop.orders")
    tids = scenery.add(_ROW_WAIT, times=waiters, lock=lock)
    scenery.session(*tids, command="Query", user="app", host="10.0.0.8", age_ns=12 * 10**9,
                    query="UPDATE orders SET total = ? WHERE id = ?")  # fmt: skip
    scenery.add(IDLE_SESSION, tid=900)
    scenery.session(900, command="Sleep", user="root", host="10.0.0.7", database="shop",
                    transaction=True, transaction_ns=246 * 10**9, query="SELECT ?")  # fmt: skip
    return scenery.capture()


def value(page: bytes) -> dict[str, Any]:
    """Return the value in a page."""
    found = re.search(rb'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    data = json.loads(found[1])
    assert isinstance(data, dict)
    return data


def rendered(capture: Capture, label: str = "stall.jsonl.zst") -> bytes:
    """Return the page of one capture, which no file need be able to hold."""
    builder = Builder()
    builder.add(engine.analyze(capture, catalog.load()), Entry(label))
    return builder.render(assets.load())


def waits_line(count: int = 3) -> bytes:
    """Return a line of the wait programs: waits for a mutex and for fsync."""
    kinds = {
        "mutex": {"count": 31 * count, "total_ms": 1240.5, "max_ms": 812.4, "over": 3,
                  "threshold_ms": 10.0, "in_flight": 20,
                  "histogram": [[1024, 2047, 3], [16384, 32767, 17], [536870912, 1073741823, 3]]},
        "fsync": {"count": 7, "total_ms": 640.0, "max_ms": 401.5, "over": 2, "threshold_ms": 10.0,
                  "in_flight": 0, "histogram": [[131072, 262143, 5], [268435456, 536870911, 2]]},
    }  # fmt: skip
    keys = [{"kind": "mutex", "name": "LOCK_open", "count": 31, "total_ms": 1240.5,
             "max_ms": 812.4, "owner_tid": 100, "in_flight": 20,
             "waiters": [{"count": 20, "frames": ["pthread_mutex_lock", "open_table"]}]},
            {"kind": "fsync", "name": "/var/lib/mysql/ib_logfile0", "count": 7, "total_ms": 640.0,
             "max_ms": 401.5}]  # fmt: skip
    return msgspec.json.encode(
        {"type": "waits", "schema": "stallscope.waits/1", "ts": START_NS / 1e9, "seconds": 1.0,
         "kinds": kinds, "keys": keys, "lost": {}}
    )  # fmt: skip


def store_incident(dest: Path, captures: list[Capture], *, why: str | None = None) -> Path:
    """Keep an incident of these captures, with a minute of samples; return its folder."""
    fired = Fired(
        trigger="threads-running",
        why=why or "Threads_running is 187, over 40; in 2 samples in a row",
        time_ns=START_NS - 2 * 10**9,
        value=187.0,
        threshold=40.0,
    )
    target = TargetEntry(pid=4711, name="mysqld", server="mysql", version="5.5.9", host="db1")
    incident = Incident(
        id="20261121T145012.345Z-mysqld-4711",
        start_ns=START_NS - 2 * 10**9,
        end_ns=START_NS + 30 * 10**9,
        target=target,
        triggers=(fired,),
    )
    with Store.open(dest).begin(incident) as folder:
        for number, capture in enumerate(captures):
            time_ns = capture.time_ns or START_NS
            entry = CaptureEntry("", time_ns, "burst" if number else "trigger", "threads-running")
            folder.add_capture(capturefile.dumps(capture), entry)
        folder.append_samples(samples())
        folder.append_waits([waits_line()])
        folder.finish(folder.incident)
        return folder.path


def samples() -> list[Sample]:
    """Return what two collectors saw in a minute in which a stall begins."""
    out = []
    for second in range(-30, 31):
        stalled = second >= -2
        out.append(
            Sample(
                source="status",
                time_ns=START_NS + second * 10**9,
                clock_ns=10**12 + second * 10**9,
                values={
                    "Threads_running": 180.0 if stalled else 4.0 + math.sin(second),
                    "Questions": 10_000.0 + (100 * (second + 30) if not stalled else 2_800),
                    "Uptime": 5_000.0 + second,
                },
            )
        )
        out.append(
            Sample(
                source="process",
                time_ns=START_NS + second * 10**9,
                clock_ns=10**12 + second * 10**9,
                values={"process.cpu_share": 0.2 if stalled else 1.5},
            )
        )
    return out


def hostile(text: str) -> Capture:
    """Return a convoy in which every text of the target is ``text``."""
    capture = busy(6)
    module = msgspec.structs.replace(capture.modules[0], path=f"/{text}")

    def evil(frame: Frame) -> Frame:
        if frame.symbol in ("__lll_lock_wait", "pthread_mutex_lock", "poll"):
            return frame
        return msgspec.structs.replace(frame, symbol=text, module=module, source=text)

    threads = tuple(
        msgspec.structs.replace(
            thread,
            frames=tuple(map(evil, thread.frames)),
            kernel_frames=tuple(map(evil, thread.kernel_frames)),
            name=text,
            user=text,
            database=text,
            command=text,
            activity=text,
            query=text,
            unwind=text,
        )
        for thread in capture.threads
    )
    return msgspec.structs.replace(
        capture,
        threads=threads,
        modules=(module,),
        locks=(msgspec.structs.replace(capture.locks[0], symbol=text, kind=LockKind.MUTEX),),
        processes=(
            msgspec.structs.replace(
                capture.processes[0], comm=text, exe=f"/{text}", strings={"server_version": text}
            ),
        ),
        notes=(Note(text, text),),
        host={"name": text, "kernel": text, "arch": text},
        backend_reason=text,
    )
