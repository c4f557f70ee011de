# SPDX-License-Identifier: Apache-2.0
"""A part of the terminal that is drawn again in place."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from stallscope.reporters.lines import Line

__all__ = ["LiveScreen"]


class LiveScreen:
    """Lines that replace the previous ones; removed at the end."""

    def __init__(self, stream: TextIO) -> None:
        console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            vertical_overflow="crop",
            # Other output to the stream is printed above the lines.
            redirect_stderr=sys.stderr.isatty(),
        )

    @property
    def height(self) -> int:
        """Return how many lines there is room for."""
        return max(5, shutil.get_terminal_size().lines - 1)

    def start(self) -> None:
        """Start below the cursor."""
        self._live.start()

    def stop(self) -> None:
        """Remove the lines; a second call does nothing."""
        self._live.stop()

    def show(self, lines: Sequence[Line]) -> None:
        """Draw these lines."""
        text = Text(no_wrap=True, overflow="crop")
        for number, line in enumerate(lines):
            text.append("\n" if number else "")
            text.append(line.text, style=line.style or None)
        self._live.update(text, refresh=True)
