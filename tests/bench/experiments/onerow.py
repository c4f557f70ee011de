# SPDX-License-Identifier: Apache-2.0
"""One row that everyone updates: what deadlock detection costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from tests.bench import progress
from tests.bench.experiments.measures import better, rates, short, snapped
from tests.bench.experiments.model import Case, Drawing, Experiment, Found, Sizes, Verdict
from tests.bench.linechart import Chart, Line
from tests.bench.stats import Figure, Row, Section
from tests.support.servers import MySQL55, MySQL97, SqlServer
from tests.support.stalls import deadlock_check_storm

__all__ = ["ONE_ROW"]

CLIENTS = (10, 50, 100, 140)
FEW = 8
SEED = {10: 14_000, 50: 3_000, 100: 639, 140: 266}
DETECT = "SET GLOBAL innodb_deadlock_detect = {}"


def _sweep(
    server: SqlServer, clients: Sequence[int], sizes: Sizes, at_most: Callable[[], Verdict] | None
) -> tuple[dict[int, Figure], Verdict | None]:
    """Return updates a second by clients, and what is said under the most of them."""
    found, verdict = {}, None
    for count in clients:
        progress(f"{server.name}: {count} clients update one row")
        with deadlock_check_storm(server, count):
            found[count] = rates(lambda: server.status("Com_update"), sizes, "/s")
            if at_most is not None and count == clients[-1]:
                verdict = at_most()
    return found, verdict


def measure(sizes: Sizes) -> Found:
    clients = CLIENTS if not sizes.quick else CLIENTS[:2]
    most = clients[-1]
    with ExitStack() as stack:
        old = stack.enter_context(MySQL55())
        checked, verdict = _sweep(old, (FEW, *clients), sizes, lambda: snapped(old.pid, sizes))
    assert verdict is not None
    with MySQL97() as new:
        new.execute(DETECT.format("ON"))
        detecting, _ = _sweep(new, clients, sizes, None)
        new.execute(DETECT.format("OFF"))
        blind, _ = _sweep(new, clients, sizes, None)
    named = {
        "5.5.9": checked,
        "9.7, detection on": detecting,
        "9.7, detection off": blind,
    }
    rows = tuple(
        Row(
            f"{count} clients",
            {
                "the seed": f"{SEED[count]:,}/s" if count in SEED else "-",
                **{name: found.get(count, "-") for name, found in named.items()},
            },
        )
        for count in (FEW, *clients)
    )
    lost = checked[clients[0]].median / checked[most].median
    chart = Chart(
        "Updates of one row: the longer its queue, the longer each check",
        "clients",
        "updates/s",
        [
            Line("the seed, 2009", [(count, float(rate)) for count, rate in SEED.items()]),
            *(
                Line(name, [(count, found[count].median) for count in sorted(found)])
                for name, found in named.items()
            ),
        ],
        dots=True,
    )
    return Found(
        ours=f"{' → '.join(short(checked[count].median) for count in clients)}/s at"
        f" {', '.join(str(count) for count in clients)} clients (5.5.9)",
        after=f"{short(checked[FEW].median)}/s with {FEW} clients at a time;"
        f" 9.7 at {most}: {short(detecting[most].median)} → {short(blind[most].median)}/s"
        f" ({better(blind[most].median, detecting[most].median)}) with detection off",
        shows="yes" if lost >= 5 else "partly" if lost >= 2 else "no",
        verdicts=(verdict,),
        tables=(Section("one-row-update", "Updates a second of one row, by clients", rows),),
        drawings=(
            Drawing(
                "one-row-update",
                f"5.5.9 falls from {short(checked[clients[0]].median)} updates a second at"
                f" {clients[0]} clients to {short(checked[most].median)} at {most}",
                lines=chart,
            ),
        ),
        why="The seed's machine had more CPUs, and the clients were elsewhere: here the clients"
        " share two CPUs with the server. 9.7 no longer checks under a global mutex: a thread of"
        " its own searches the graph of waits, so that switching detection off changes little.",
    )


ONE_ROW = Experiment(
    "one-row-update",
    "One row, many clients",
    Case(
        "14,000/s at 10 clients; 3,000 at 50; 639 at 100; 266 at 140; 10,000 at 100 without"
        " detection",
        "Mituzas 2009, deadlock detection",
    ),
    "`UPDATE t1 SET b = b + 1 WHERE a = 1` from 8 to 140 connections of `mariadb-slap`. MySQL 5.5"
    " searches the queue of all waiters for a deadlock under `kernel_mutex`, for each one that is"
    " added.",
    "fewer clients at the row at a time (a pool); `innodb_deadlock_detect=OFF` from 5.7.15 on",
    measure,
    ("mysql55", "mysql97"),
)
