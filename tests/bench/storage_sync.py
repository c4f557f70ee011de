# SPDX-License-Identifier: Apache-2.0
"""Whether `storage sync` predicts commits a second: from one setting's measurement, compared with
runs at the other settings."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from stallscope.collectors.cputimes import cpu_seconds
from tests.bench import progress
from tests.bench.stats import BenchError, Row, Section, figure
from tests.support.servers import MariaDB, MySQL55, MySQL97, SqlServer, cache_folder
from tests.support.servers.child import Child
from tests.support.slowsyncs import slow_syncs
from tests.support.stalls.load import sysbench

__all__ = ["CLIENTS", "DELAYS", "Options", "sections"]

TEST = "oltp_update_non_index"
"""One row a transaction, in autocommit mode: commits are all there is."""
SECONDS = 6
"""That a prediction is made from."""
WINDOW = 3.0
"""Seconds that commits are counted at another setting."""
ROUNDS = 3
"""Of a prediction and one window of each setting: the speed of a machine changes with time."""
SETTLED = 1.0
"""Seconds of load before a measurement."""
CLIENTS = (1, 8, 32)
DELAYS = (0.0, 5.0)
FROM = (1, 1)
RESTING = 0.03
"""Of one CPU."""
REST_SECONDS = 120.0
OTHERS = ((1, 0), (2, 0), (0, 1), (0, 0))
WITHIN = 0.3
GOAL = 0.9
DATA = Path("/var/tmp")

SERVERS: dict[str, tuple[type[SqlServer], tuple[str, ...]]] = {
    "mysql55": (MySQL55, ("--innodb-log-file-size=128M",)),
    "mariadb": (MariaDB, ("--innodb-log-file-size=256M",)),
    "mysql97": (MySQL97, ("--innodb-redo-log-capacity=256M",)),
}
COMMON = ("--log-bin=binlog", "--server-id=1", "--innodb-buffer-pool-size=256M")


class Options(msgspec.Struct, frozen=True):
    """What is measured."""

    clients: Sequence[int] = CLIENTS
    delays: Sequence[float] = DELAYS
    """Milliseconds that each sync takes longer."""
    measured: tuple[int, int] = FROM
    """The setting that predictions are made from."""
    rounds: int = ROUNDS


class Cell(msgspec.Struct, frozen=True):
    """One prediction of each round, and what they were compared with."""

    server: str
    delay: float
    clients: int
    setting: tuple[int, int]
    predicted: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...]
    measured: tuple[float, ...]

    @property
    def errors(self) -> list[float]:
        """Return that of each prediction, compared with the median of the measured rates."""
        measured = statistics.median(self.measured)
        return [one / measured - 1 for one in self.predicted]

    @property
    def within(self) -> int:
        return sum(abs(error) <= WITHIN for error in self.errors)

    @property
    def inside(self) -> int:
        """Return how many of the intervals have the median of the measured rates."""
        measured = statistics.median(self.measured)
        return sum(low <= measured <= high for low, high in self.intervals)


def sections(
    server: str, quick: bool, only: Sequence[str], options: Options | None = None
) -> Iterator[Section]:
    """Yield a table for each server, and one of all."""
    del server
    options = options or Options()
    if quick:
        options = msgspec.structs.replace(options, clients=(8,), delays=(5.0,), rounds=1)
    names = [name for name in SERVERS if not only or name in only]
    if not names:
        raise BenchError(f"--only: one of {', '.join(SERVERS)}")
    cells: list[Cell] = []
    for name in names:
        notes: list[str] = []
        of_server: list[Cell] = []
        for delay in options.delays:
            of_server += _of_server(name, delay, options, notes)
        cells += of_server
        yield _table(name, of_server, options, notes)
    total = sum(len(cell.predicted) for cell in cells)
    good = sum(cell.within for cell in cells)
    inside = sum(cell.inside for cell in cells)
    text = f"{good} of {total} predictions within {WITHIN:.0%} (goal: {GOAL:.0%} of them)"
    rows = [
        _summary(f"{clients} clients", [cell for cell in cells if cell.clients == clients])
        for clients in options.clients
    ]
    rows += [
        _summary(
            f"syncs {'of the disk' if not delay else f'{delay:g} ms slower'}",
            [cell for cell in cells if cell.delay == delay],
        )
        for delay in options.delays
    ]
    rows += [
        _summary(f"{setting[0]}/{setting[1]}", [cell for cell in cells if cell.setting == setting])
        for setting in (FROM, *OTHERS)
        if setting != options.measured
    ]
    rows.append(_summary("all", cells))
    yield Section(
        "storage-sync",
        "Predictions of commits a second, all cells",
        tuple(rows),
        notes=(f"{inside} of {total} intervals that were printed have the measured rate",),
        goals=((text, good >= GOAL * total),),
    )


def _summary(name: str, cells: Sequence[Cell]) -> Row:
    errors = [100 * abs(error) for cell in cells for error in cell.errors]
    return Row(
        name,
        {
            "predictions": str(len(errors)),
            "within 30 %": str(sum(error <= 100 * WITHIN for error in errors)),
            "error": figure(errors, "%") if errors else "-",
        },
    )


def _of_server(name: str, delay: float, options: Options, notes: list[str]) -> list[Cell]:
    kind, own = SERVERS[name]
    with ExitStack() as stack:
        parent: Path | None = None
        if delay:
            parent = stack.enter_context(slow_syncs(delay, DATA))
        elif name != "mysql97":
            parent = DATA
        else:
            cache_folder()  # on a disk, too
        server = stack.enter_context(kind(*COMMON, *own, parent=parent))
        server.execute("CREATE DATABASE sbtest", *_set((0, 0)))
        subprocess.run([*sysbench(server, TEST), "prepare"], check=True, capture_output=True)
        cells = []
        for clients in options.clients:
            cells += _of_clients(server, name, delay, clients, options, notes)
        return cells


def _of_clients(
    server: SqlServer, name: str, delay: float, clients: int, options: Options, notes: list[str]
) -> list[Cell]:
    settings = [setting for setting in (FROM, *OTHERS) if setting != options.measured]
    rounds: list[list[tuple[dict[str, Any], float]]] = []
    for number in range(options.rounds):
        progress(f"{name}, {clients} clients, syncs {delay:g} ms slower, round {number + 1}")
        predicted = _predict(server, clients, options)
        if number == 0:
            _explain(name, delay, clients, predicted, notes)
        if predicted["why_not"]:
            raise BenchError(f"{name}: no prediction: {predicted['why_not']}")
        rounds.append(
            [
                (predicted["predictions"][setting], _measure(server, clients, setting))
                for setting in settings
            ]
        )
    return [
        Cell(
            name,
            delay,
            clients,
            setting,
            tuple(one["commits_per_s"] for one, _ in found),
            tuple((one["low"], one["high"]) for one, _ in found),
            tuple(rate for _, rate in found),
        )
        for setting, found in zip(settings, zip(*rounds, strict=True), strict=True)
    ]


def _set(setting: tuple[int, int]) -> tuple[str, str]:
    return (
        f"SET GLOBAL innodb_flush_log_at_trx_commit={setting[0]}",
        f"SET GLOBAL sync_binlog={setting[1]}",
    )


def _load(server: SqlServer, clients: int, seconds: float) -> Child:
    options = (f"--threads={clients}", f"--time={seconds:.0f}", "--rand-type=uniform")
    return Child([*sysbench(server, TEST, *options), "run"], server.folder / "sysbench.log")


def _predict(server: SqlServer, clients: int, options: Options) -> dict[str, Any]:
    """Run the command as users do, while the load runs at the one setting."""
    _rest(server)
    server.execute(*_set(options.measured))
    load = _load(server, clients, 600)
    try:
        _settle(server)
        command = [sys.executable, "-P", "-m", "stallscope", "storage", "sync", "--json"]
        command += ["-p", str(server.pid), "--socket", str(server.socket)]
        command += ["--defaults-file", str(_option_file(server))]
        command += ["--seconds", str(SECONDS)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    finally:
        load.end()
    if done.returncode not in (0, 3):
        raise BenchError(f"storage sync ended with {done.returncode}: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found["predictions"] = {
        (one["flush_log_at_trx_commit"], one["sync_binlog"]): one for one in found["predictions"]
    }
    return found


def _option_file(server: SqlServer) -> Path:
    path = server.folder / "client.cnf"
    path.write_text(f"[client]\nuser=root\nsocket={server.socket}\nssl=0\n")
    path.chmod(0o600)
    return path


def _rest(server: SqlServer) -> None:
    """Wait until the server has purged and written what a faster setting has left it to do: that is
    CPU time of commits that are over."""
    deadline = time.monotonic() + REST_SECONDS
    while time.monotonic() < deadline:
        used = _cpu(server)
        time.sleep(1.0)
        if _cpu(server) - used < RESTING:
            return
    raise BenchError(f"{server.name}: it still works {REST_SECONDS:.0f} s after the load")


def _cpu(server: SqlServer) -> float:
    return sum(cpu_seconds((server.pid,)) or (0.0,))


def _settle(server: SqlServer) -> None:
    begun = server.status("Questions")
    deadline = time.monotonic() + 30
    while server.status("Questions") < begun + 50:
        if time.monotonic() > deadline:
            raise BenchError(f"{server.name}: sysbench does not run")
        time.sleep(0.05)
    time.sleep(SETTLED)


def _measure(server: SqlServer, clients: int, setting: tuple[int, int]) -> float:
    """Return commits a second at a setting, without the probe."""
    server.execute(*_set(setting))
    load = _load(server, clients, 600)
    try:
        _settle(server)
        first, begun = server.status("Binlog_cache_use"), time.monotonic()
        time.sleep(WINDOW)
        last, seconds = server.status("Binlog_cache_use"), time.monotonic() - begun
    finally:
        load.end()
    return (last - first) / seconds


def _explain(
    name: str, delay: float, clients: int, predicted: dict[str, Any], notes: list[str]
) -> None:
    costs = ", ".join(
        f"{one['class']} {one['mean_ms']:.3g} ms x {one['syncs_per_commit']:.2f}"
        for one in predicted["classes"]
        if one["class"] in ("redo", "binlog") and one["syncs_per_commit"]
    )
    model = predicted.get("model") or {}
    notes.append(
        f"{clients} clients, syncs {delay:g} ms slower: {predicted['commits_per_s']:.0f} commits/s"
        f" at {predicted['setting']['flush_log_at_trx_commit']}"
        f"/{predicted['setting']['sync_binlog']}, {predicted['clients']} clients seen; {costs};"
        f" model: {json.dumps(model)}"
    )


def _table(name: str, cells: Sequence[Cell], options: Options, notes: Sequence[str]) -> Section:
    rows = []
    for cell in cells:
        place = f"{cell.clients} clients, +{cell.delay:g} ms, {cell.setting[0]}/{cell.setting[1]}"
        missed = len(cell.predicted) - cell.within
        rows.append(
            Row(
                place,
                {
                    "predicted": figure(cell.predicted, "/s"),
                    "measured": figure(cell.measured, "/s"),
                    "error": figure([100 * error for error in cell.errors], "%"),
                    "missed": f"{missed} of {len(cell.predicted)}" if missed else "",
                },
            )
        )
    start = f"{options.measured[0]}/{options.measured[1]}"
    return Section(
        f"storage-sync-{name}",
        f"{name}: commits a second, predicted from {start}"
        " (innodb_flush_log_at_trx_commit/sync_binlog)",
        tuple(rows),
        notes=tuple(notes),
    )
