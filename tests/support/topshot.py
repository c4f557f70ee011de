# SPDX-License-Identifier: Apache-2.0
"""Draw the screens of the live view on the recorded metadata lock pile-up, as SVG without fonts
from elsewhere: each in the size of a small terminal and of a large one."""

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

SIZES = {"80x24": (80, 24), "120x40": (120, 40)}
SCREENS = {"overview": "", "threads": "t", "kill": "down down down k", "help": "question_mark"}
"""Name, and the keys that open it."""
SETTLES = 20
"""Turns of the event loop after which nothing is left to draw."""


async def draw(keys: str, size: tuple[int, int]) -> str:
    source = FakeSource()
    top = Top(source, State(", ".join(source.titles)), Path())
    async with top.run_test(size=size) as pilot:
        for _ in range(SETTLES):
            await pilot.pause()
        await pilot.press(*keys.split())
        for _ in range(SETTLES):
            await pilot.pause()
        return top.export_screenshot(title="stallscope top")


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/topshot", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    os.environ["TZ"] = "UTC"
    time.tzset()
    folder.mkdir(parents=True, exist_ok=True)
    for name, keys in SCREENS.items():
        for size_name, size in SIZES.items():
            svg = asyncio.run(draw(keys, size))
            # The reader's own monospace font: nothing is fetched from anywhere.
            svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
            svg = svg.replace("Fira Code", "DejaVu Sans Mono")
            (folder / f"top-{name}-{size_name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
