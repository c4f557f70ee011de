# SPDX-License-Identifier: Apache-2.0
"""Draw the live view on the recorded metadata lock pile-up, as SVG without fonts from elsewhere."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import time
from pathlib import Path

from stallscope.screens.app import Top
from stallscope.screens.state import State
from tests.unit.top_scenes import FakeSource

SIZE = (120, 32)
SETTLES = 20
"""Turns of the event loop after which nothing is left to draw."""


async def draw() -> str:
    source = FakeSource()
    top = Top(source, State(", ".join(source.titles)), Path())
    async with top.run_test(size=SIZE) as pilot:
        for _ in range(SETTLES):
            await pilot.pause()
        return top.export_screenshot(title="stallscope top")


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/topshot", description=__doc__)
    parser.add_argument("file", type=Path)
    path = parser.parse_args().file
    os.environ["TZ"] = "UTC"
    time.tzset()
    svg = asyncio.run(draw())
    # The reader's own monospace font: nothing is fetched from anywhere.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code", "DejaVu Sans Mono")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
