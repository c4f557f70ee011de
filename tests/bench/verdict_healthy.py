# SPDX-License-Identifier: Apache-2.0
"""Healthy servers under load: no burst has a finding of 0.5 or more."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.bench import progress
from tests.bench.snapshots import snap, verdict_of
from tests.bench.stats import Row, Section
from tests.support.servers import MariaDB, MySQL55, MySQL97, Unavailable
from tests.support.servers.child import Child
from tests.support.servers.mariadb114 import MariaDB114
from tests.support.servers.postgres import Postgres17
from tests.support.stalls.load import sysbench_load, sysbench_load_postgres

__all__ = ["section"]

THREADS = 16
TESTS = ("oltp_read_write", "oltp_point_select", "oltp_write_only")
LOADS = (10, 50, 100)
"""Percent of what the server does with as many threads as it gets."""
SECONDS = 5.0
_RATE = re.compile(r"\btps: ([0-9.]+)")


Options = tuple[str, ...]


class Made(NamedTuple):
    """A running server, and how to run a sysbench test on it."""

    name: str
    pid: int
    load: Callable[[str, Options], AbstractContextManager[Child]]


@contextmanager
def _mysql(kind: type[MariaDB | MariaDB114 | MySQL55 | MySQL97]) -> Iterator[Made]:
    with kind() as server:
        yield Made(
            server.name, server.pid, lambda test, more: sysbench_load(server, THREADS, test, *more)
        )


@contextmanager
def _postgres() -> Iterator[Made]:
    with Postgres17("fsync=on") as server:
        yield Made(
            server.name,
            server.pid,
            lambda test, more: sysbench_load_postgres(server, THREADS, test, *more),
        )


SERVERS: dict[str, Callable[[], AbstractContextManager[Made]]] = {
    "mariadb": lambda: _mysql(MariaDB),
    "mariadb114": lambda: _mysql(MariaDB114),
    "mysql55": lambda: _mysql(MySQL55),
    "mysql97": lambda: _mysql(MySQL97),
    "postgres17": _postgres,
}


def section(names: Sequence[str], bursts: int) -> Section:
    """Take bursts of each server that is named, or of all, at each load."""
    rows, left_out = [], []
    false = whole = 0
    for name in names or SERVERS:
        try:
            with SERVERS[name]() as made:
                for test in TESTS:
                    for load, said in _loads(made, test, bursts):
                        found = sum(said.values()) - said["nothing"]
                        false += found
                        whole += sum(said.values())
                        rows.append(_row(f"{name}, {test}, {load} %", said))
        except Unavailable as error:
            left_out.append(f"{name}: {error}")
    return Section(
        "healthy",
        f"Healthy servers, {THREADS} threads",
        tuple(rows),
        goals=((f"no finding of 0.5 or more in {whole} bursts: {false}", not false),),
        left_out=tuple(left_out),
        notes=("the load is a part of the transactions a second of the same threads unthrottled",),
    )


def _loads(made: Made, test: str, bursts: int) -> Iterator[tuple[int, Counter[str]]]:
    capacity = _capacity(made, test)
    for percent in LOADS:
        rate = None if percent == LOADS[-1] else int(capacity * percent / 100)
        with _running(made, test, rate):
            said: Counter[str] = Counter()
            for number in range(bursts):
                progress(f"verdict: healthy {made.name} {test} {percent} %, burst {number + 1}")
                verdict = verdict_of(snap(made.pid))
                found = "nothing" if verdict is None else verdict["signature"] or "unknown"
                if verdict is not None:
                    found += f" {verdict['confidence']}"
                said[found] += 1
            yield percent, said


def _running(made: Made, test: str, rate: int | None) -> AbstractContextManager[Child]:
    """Run the test with so many transactions a second; None: all that the server can do."""
    options = ("--report-interval=1",) if rate is None else (f"--rate={max(1, rate)}",)
    return made.load(test, options)


def _capacity(made: Made, test: str) -> float:
    with _running(made, test, None) as child:
        time.sleep(SECONDS)
        rates = [float(rate) for rate in _RATE.findall(Path(child.log).read_text())]
    return max(rates, default=1.0)


def _row(name: str, said: Counter[str]) -> Row:
    bursts = sum(said.values())
    others = ", ".join(f"{what} x {n}" for what, n in said.most_common() if what != "nothing")
    return Row(name, {"no finding": f"{said['nothing']} of {bursts}", "else": others or "-"})
