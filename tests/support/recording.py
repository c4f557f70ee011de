# SPDX-License-Identifier: Apache-2.0
"""Draw a recording of the guide's session as one SVG that moves: snap, the KILL, and snap again.

What it shows is what the session of docs/guide.md printed when it was recorded last. Without
motion, where the reader's system asks for that, it is the last picture.
"""

from __future__ import annotations

import argparse
import html
from collections.abc import Iterator
from pathlib import Path

from tests.support.docblocks import Command, blocks

CHECKOUT = Path(__file__).resolve().parents[2]
GUIDE = CHECKOUT / "docs" / "guide.md"
SHOWN = ("snap -p", "KILL", "snap -p")
"""What the commands of the recording contain, in their order."""
LEFT_OUT = "| head"
ROWS, COLUMNS = 24, 84
WIDTH, HEIGHT = 8.0, 18
TYPED_SECONDS = 1.4
PRINTED_SECONDS = 0.04
READING_SECONDS = 4.0
STYLE = """\
text { font: 13px "DejaVu Sans Mono", ui-monospace, monospace; fill: #d8dee9; white-space: pre; }
.typed { fill: #ffffff; font-weight: 600; }
.ending { fill: #a3d977; font-weight: 600; }
.first { fill: #ff7b70; font-weight: 600; }
.calm { fill: #a3d977; font-weight: 600; }
"""


def commands() -> list[Command]:
    """Return the commands of the recording from the guide."""
    found: list[Command] = []
    every = [c for block in blocks(GUIDE.read_text()) for c in block.commands]
    for command in every:
        wanted = SHOWN[len(found)]
        if wanted in command.line and LEFT_OUT not in command.line:
            found.append(command)
        if len(found) == len(SHOWN):
            return found
    raise SystemExit(f"{GUIDE}: no session with {', then '.join(SHOWN)}")


def cut(line: str) -> str:
    return line if len(line) <= COLUMNS else f"{line[: COLUMNS - 1]}…"


def lines(command: Command) -> Iterator[tuple[str, str]]:
    """Yield each line with its class."""
    yield "typed", cut(f"$ {command.line.replace('./scripts/', '')}")
    for number, line in enumerate(command.output[: ROWS - 1]):
        head = "calm" if "no stall found" in line else "first"
        kind = "ending" if line.startswith("  KILL") else "" if number else head
        yield kind, cut(line)


def drawing(recorded: list[Command]) -> str:
    """Return the SVG: a page for each command, one after the other, and again from the start."""
    pages, style = [], STYLE
    at, times = 0.0, []
    for command in recorded:
        length = TYPED_SECONDS + PRINTED_SECONDS * len(command.output) + READING_SECONDS
        times.append((at, at + length))
        at += length
    for number, (command, (begin, end)) in enumerate(zip(recorded, times, strict=True)):
        rows = []
        for row, (kind, line) in enumerate(lines(command)):
            shown = begin + (TYPED_SECONDS + PRINTED_SECONDS * row if row else 0.0)
            name = f"p{number}r{row}"
            style += _keyframes(name, shown, end, at)
            y = 34 + HEIGHT * row
            rows.append(
                f'<text x="14" y="{y}" class="{kind} line {name}">{html.escape(line)}</text>'
            )
        pages.append("".join(rows))
    last = len(recorded) - 1
    style += (
        "@media (prefers-reduced-motion: reduce)"
        " { .line { animation: none !important; opacity: 0; }"
        + "".join(f" .p{last}r{row} {{ opacity: 1; }}" for row in range(ROWS))
        + " }\n"
    )
    width, height = round(COLUMNS * WIDTH + 28), ROWS * HEIGHT + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        ' aria-label="stallscope snap names a stall and the KILL that ends it; after the KILL it'
        f' finds no stall">\n<style>\n{style}</style>\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="#20242c"/>\n'
        + "\n".join(pages)
        + "\n</svg>\n"
    )


def _keyframes(name: str, shown: float, end: float, whole: float) -> str:
    """Return the style of a line that is there from one time to another, again and again."""
    begin, over = 100 * shown / whole, 100 * end / whole
    before = max(0.0, begin - 0.01)
    return (
        f".{name} {{ animation: {name} {whole:.1f}s infinite step-end; }}\n"
        f"@keyframes {name} {{ 0% {{ opacity: {int(not shown)} }} {before:.2f}% {{ opacity:"
        f" {int(not shown)} }} {begin:.2f}% {{ opacity: 1 }} {over:.2f}% {{ opacity: 0 }} }}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "file", type=Path, nargs="?", default=CHECKOUT / "docs" / "img" / "recording.svg"
    )
    path = parser.parse_args().file
    path.write_text(drawing(commands()), encoding="utf-8")


if __name__ == "__main__":
    main()
