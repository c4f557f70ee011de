# SPDX-License-Identifier: Apache-2.0
"""Lines of text for people: the base of all reports for a terminal."""

from __future__ import annotations

import os
import shutil
import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

import msgspec

from stallscope.analyzers.names import bare
from stallscope.base.text import clean

__all__ = [
    "Line",
    "break_name",
    "can_draw_blocks",
    "clock",
    "plain",
    "print_lines",
    "short_name",
    "threads_text",
    "width_of",
    "wrap",
]

_MAX_NAME = 100
"""The most characters of a function's name, unless whole names are requested."""
_WIDTHS = (40, 200)
_FILE_WIDTH = 80
_BREAKS = ("::", "<", ",", "(", "_", "/", ".")
"""Names of functions and files may be broken after these."""
_ASCII = str.maketrans({"├": "|", "└": "`", "│": "|", "─": "-", "…": "...", "·": ".", "→": ">"})


class Line(msgspec.Struct, frozen=True):
    """One line of output, with its style on a terminal."""

    text: str
    style: str = ""


def plain(stream: TextIO) -> bool:
    """Return whether colours are off for the stream: NO_COLOR before CLICOLOR_FORCE."""
    if os.environ.get("NO_COLOR"):
        return True
    if os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return False
    return not stream.isatty() or os.environ.get("TERM") == "dumb"


def width_of(stream: TextIO) -> int:
    """Return how many columns a line of this stream has."""
    if not stream.isatty():
        return _FILE_WIDTH
    least, most = _WIDTHS
    return max(least, min(shutil.get_terminal_size().columns, most))


def print_lines(lines: Sequence[Line], stream: TextIO) -> None:
    """Print plain text, or with colours where the stream is a terminal with colours."""
    if plain(stream):
        for line in lines:
            stream.write(_encodable(line.text, stream) + "\n")
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(
        file=stream,
        force_terminal=True,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )
    for line in lines:
        console.print(Text(_encodable(line.text, stream), style=line.style), soft_wrap=True)


def can_draw_blocks(stream: TextIO) -> bool:
    """Return whether the stream's encoding has the block characters of small charts."""
    return _can_encode("▁█·", stream)


def _encodable(text: str, stream: TextIO) -> str:
    """Use ASCII where the stream's encoding has no line characters."""
    return text if _can_encode(text, stream) else text.translate(_ASCII)


def _can_encode(text: str, stream: TextIO) -> bool:
    if text.isascii():
        return True
    try:
        text.encode(stream.encoding or "utf-8", "surrogatepass")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def break_name(name: str, room: int) -> int:
    """Return where to break a name that is longer than ``room``: after a part of it, if possible.
    At least a third of the room is used.
    """
    room = max(1, room)
    head = name[:room]
    end = max((head.rfind(mark) + len(mark) for mark in _BREAKS if mark in head), default=0)
    return end if room >= end > room // 3 else room


class _Wrapper(textwrap.TextWrapper):
    """Breaks words that are longer than a line like names."""

    def _handle_long_word(
        self, reversed_chunks: list[str], cur_line: list[str], cur_len: int, width: int
    ) -> None:
        if cur_line and cur_len >= width:
            return  # it begins the next line
        if not self.break_long_words or width < 1:
            super()._handle_long_word(reversed_chunks, cur_line, cur_len, width)
            return
        end = break_name(reversed_chunks[-1], width - cur_len)
        cur_line.append(reversed_chunks[-1][:end])
        reversed_chunks[-1] = reversed_chunks[-1][end:]


def wrap(
    text: str,
    width: int,
    *,
    indent: str = "",
    hang: str | None = None,
    style: str = "",
    whole: bool = False,
) -> Iterator[Line]:
    """Wrap text; ``whole`` does not break words that are longer than a line."""
    wrapper = _Wrapper(
        width=width,
        initial_indent=indent,
        subsequent_indent=" " * len(indent) if hang is None else hang,
        break_on_hyphens=False,
        break_long_words=not whole,
    )
    for line in wrapper.wrap(clean(" ".join(text.split()))) or [indent]:
        yield Line(line, style)


def short_name(frame: str) -> str:
    """Return the name of a function without template arguments, its middle cut where it is long."""
    name = clean(bare(frame))
    if len(name) <= _MAX_NAME:
        return name
    # Both ends matter: the namespace, and the function.
    return f"{name[: _MAX_NAME // 3]}…{name[-(_MAX_NAME - _MAX_NAME // 3 - 1) :]}"


def clock(ts: float) -> str:
    """Return the local time of day of seconds since the epoch."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(ts))
    except (OverflowError, ValueError, OSError):
        return ""


def threads_text(count: int) -> str:
    """Return a number of threads for a sentence."""
    return "1 thread" if count == 1 else f"{count} threads"
