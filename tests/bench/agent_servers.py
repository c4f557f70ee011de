# SPDX-License-Identifier: Apache-2.0
"""What one agent needs that watches several servers, at rest, and while it waits for them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.bench import progress
from tests.bench.agent_cost import cpu_ns, parts_mb
from tests.bench.stats import Figure, Row, Section, figure
from tests.support.agents import CHECKOUT, READY, AgentProcess
from tests.support.servers import MariaDB

__all__ = ["FULL", "QUICK", "Sizes", "section"]

SMALL = ("--innodb-buffer-pool-size=8M", "--key-buffer-size=1M")
SETTLE_SECONDS = 20.0
SETTLE_OF_EACH = 4.0
"""From when all are watched, and for each server: calibration is done once."""
WAIT_SETTLE_SECONDS = 5.0
MEMORY_SAMPLES = 5
"""Reading it costs time of the processes that are measured."""


@dataclass(frozen=True)
class Sizes:
    """How many servers, and for how long each is measured."""

    counts: Sequence[int] = (1, 5, 20)
    seconds: float = 60.0


FULL = Sizes()
QUICK = Sizes(seconds=20.0)


def section(sizes: Sizes) -> Section:
    """Measure one agent of 1, 5 and 20 servers, and one that waits for as many."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="stallscope-bench-") as folder, ExitStack() as stack:
        servers: list[MariaDB] = []
        for count in sizes.counts:
            while len(servers) < count:
                servers.append(stack.enter_context(MariaDB(*SMALL)))
            progress(f"one agent, {count} servers")
            sockets = [str(server.socket) for server in servers[:count]]
            rows.append(_row(f"{count} at rest", sockets, Path(folder), sizes.seconds, there=True))
        for count in sizes.counts:
            progress(f"one agent that waits for {count} servers")
            sockets = [f"{folder}/none-{number}.sock" for number in range(count)]
            name = f"{count} waited for"
            rows.append(_row(name, sockets, Path(folder), sizes.seconds, there=False))
    return Section(
        "servers",
        f"One agent of several MariaDB servers without load, over {sizes.seconds:g} s each",
        tuple(rows),
        notes=(
            "CPU: in percent of one core. Memory: Pss of the agent, and of the probes with their"
            " workers",
        ),
    )


def _row(name: str, sockets: Sequence[str], folder: Path, seconds: float, *, there: bool) -> Row:
    path = folder / "servers.toml"
    tables = "".join(
        f'[[server]]\nname = "s{number}"\nsocket = "{socket}"\n'
        for number, socket in enumerate(sockets)
    )
    path.write_text(f'[agent]\ndest = "{folder}/store"\n{tables}')
    said, settle = (READY, SETTLE_SECONDS) if there else ("waiting for", WAIT_SETTLE_SECONDS)
    with _agent(path) as watch:
        watch.wait_said(said, len(sockets))
        time.sleep(settle + (SETTLE_OF_EACH * len(sockets) if there else 0))
        begun, before = time.monotonic(), cpu_ns(watch)
        memory: list[dict[str, float]] = []
        while time.monotonic() < begun + seconds:
            time.sleep(seconds / MEMORY_SAMPLES)
            memory.append(parts_mb(watch))
        lasted = time.monotonic() - begun
        after = cpu_ns(watch)
        threads = len(os.listdir(f"/proc/{watch.pid}/task"))
        watch.stop()
    cells: dict[str, Figure | str] = {}
    for part in ("agent", "probe"):
        cells[f"CPU of {part}"] = f"{(after[part] - before[part]) / lasted / 1e7:.2f} %"
    for part in ("agent", "probe"):
        cells[f"memory of {part}"] = figure([m[part] for m in memory], "MiB")
    cells["threads"] = str(threads)
    return Row(name, cells)


@contextlib.contextmanager
def _agent(config: Path) -> Iterator[AgentProcess]:
    with subprocess.Popen(
        [sys.executable, "-m", "stallscope", "watch", "--config", str(config), "--json"],
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # as a service
    ) as process:
        found = AgentProcess(process)
        try:
            yield found
            found.stop(signal.SIGTERM)
        finally:
            found.kill()
