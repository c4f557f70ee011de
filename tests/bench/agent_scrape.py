# SPDX-License-Identifier: Apache-2.0
"""What metrics cost the agent: in a file, and over HTTP while a scraper asks each second."""

from __future__ import annotations

import re
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.bench import progress
from tests.bench.agent_cost import cpu_ns
from tests.bench.stats import Figure, Row, Section, figure
from tests.support.agents import AgentProcess, agent
from tests.support.servers import MariaDB, wait_until
from tests.support.usage import pss_mb

__all__ = ["scrape_section"]

SETTLE_SECONDS = 8.0
"""From when it is ready until its first metrics are there."""


def scrape_section(seconds: float) -> Section:
    """Measure the agent beside an idle server: alone, with a file, listening, and scraped."""
    rows = []
    with MariaDB() as server, tempfile.TemporaryDirectory(prefix="stallscope-bench-") as folder:
        for name, options, scrapes in (
            ("neither", (), False),
            ("--prometheus", ("--prometheus", f"{folder}/a.prom"), False),
            ("--listen", ("--listen", "127.0.0.1:0"), False),
            ("--listen, scraped each second", ("--listen", "127.0.0.1:0"), True),
        ):
            progress(f"metrics: {name}")
            with agent(server, Path(folder) / name.replace("/", ""), *options) as watch:
                time.sleep(SETTLE_SECONDS)
                rows.append(Row(name, _cells(watch, seconds, scrapes=scrapes)))
    return Section(
        "scrape", f"The agent's Python process with metrics, each over {seconds:g} s", tuple(rows)
    )


def _cells(watch: AgentProcess, seconds: float, *, scrapes: bool) -> dict[str, Figure | str]:
    url = _url(watch.said) if scrapes else ""
    took: list[float] = []
    sizes: list[int] = []
    begun, before = time.monotonic(), cpu_ns(watch)["agent"]
    while time.monotonic() < begun + seconds:
        if scrapes:
            asked = time.monotonic()
            with urllib.request.urlopen(url) as answer:
                sizes.append(len(answer.read()))
            took.append((time.monotonic() - asked) * 1e3)
        time.sleep(1)
    used = (cpu_ns(watch)["agent"] - before) / (time.monotonic() - begun) / 1e7
    cells: dict[str, Figure | str] = {
        "memory (Pss)": f"{pss_mb([watch.pid]):.1f} MiB",
        "CPU": f"{used:.2f} % of one",
    }
    if took:
        cells["a scrape"] = figure(took, "ms")
        cells["its size"] = f"{max(sizes) / 1e3:.0f} kB"
    return cells


def _url(said: Sequence[str]) -> str:
    def found() -> str | None:
        matches = (re.search(r"listening on (http://\S+)", line) for line in list(said))
        return next((match[1] for match in matches if match), None)

    return f"{wait_until(found, 'it listens')}/metrics"
