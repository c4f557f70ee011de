# SPDX-License-Identifier: Apache-2.0
"""Lines that a terminal, a mail program or `fold` has wrapped: joined again.

A line that was cut at the width has just this width, and what follows it begins no line of a dump.
One that was wrapped at a blank is as long as it can be: the next word has no room on it.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from stallscope.analyzers.importers.dump import MAX_LINE

__all__ = ["joined"]

_NARROWEST = 40
_WIDEST = 500
_ROUNDS = 3
_LOST = 8
"""Blanks before the first line that can be lost."""
_LONG_WORD = 60
"""Characters of a word that can make a line longer than the width."""
_SURE = 0.85
"""The part of the lines of full width that must go on."""
_LONGER = 0.03
"""The part of the lines that may be longer than the width: of other text in the file."""
_LIST = re.compile(r"\s{0,12}\d{1,7}\s{1,4}[^\s,]{1,400},\S{0,400}$")
"""A count and names, which no blank separates."""

Begins = Callable[[str], bool | None]
"""Whether a line is the first of what may be wrapped; None: it is one that other lines follow."""


def joined(text: str, sample: Sequence[str], begins: Begins) -> tuple[str, Sequence[str]]:
    """Join wrapped lines; return the text itself where there are none, and the sample likewise.

    ``sample``: consecutive lines of the text by which the width is found.
    """
    for _ in range(_ROUNDS):
        width = _width(sample, begins)
        join = _cut_at
        if not width:
            width, join = _folded_at(sample, begins), _folded
        if not width:
            break
        text = "\n".join(join(text.split("\n"), width, begins))
        sample = list(join(sample, width, begins))
    return text, sample


def _goes_on(line: str, begins: Begins) -> bool:
    """Return whether a line can be the rest of the one before."""
    return bool(line.strip()) and not line.startswith(("  ", "\t")) and begins(line) is False


def _width(lines: Sequence[str], begins: Begins) -> int:
    """Return the width at which lines were cut, 0 where they were not."""
    full: Counter[int] = Counter()
    goes: Counter[int] = Counter()
    other: Counter[int] = Counter()
    counted: Counter[int] = Counter()
    inside = False
    for line, after in itertools.pairwise(lines):
        start = begins(line)
        inside = start is True or (inside and start is False and bool(line.strip()))
        if inside:
            size = len(line)
            full[size] += 1
            other[size] += after.isspace() or after.startswith(("  ", "\t"))
            if _goes_on(after, begins):
                goes[size] += 1
                counted[size] += start is True and line.lstrip()[:1].isdigit()
    if not goes:
        return 0
    usual = max(goes, key=lambda size: (goes[size], size))
    width = max(
        size for size in goes if size == usual or (goes[size] > 1 and size <= usual + _LOST)
    )
    count = goes[width]
    # A blank at the end gets lost, and those before a count. Where lines of other sizes go on, they
    # were wrapped at blanks.
    trimmed = goes[width - 1] + sum(counted[size] for size in range(width - _LOST, width - 1))
    longer = sum(number for size, number in full.items() if size > width)
    if (
        not _NARROWEST <= width <= _WIDEST
        or count + other[width] < _SURE * full[width]
        or count + trimmed < 2
        or count + trimmed < _SURE * goes.total()
        or longer > _LONGER * full.total()
    ):
        return 0
    return width


def _cut_at(lines: Sequence[str], width: int, begins: Begins) -> Iterator[str]:
    held: list[str] = []
    size = 0
    full = False
    for line in lines:
        if not (full and line and begins(line) is False and size < MAX_LINE):
            if held:
                yield "".join(held)
            held, size = [], 0
        full = len(line) == width or (width - _LOST <= len(line) < width and begins(line) is True)
        # A blank at the very end gets lost, too.
        trimmed = full and len(line) == width - 1 and not _LIST.match(line)
        held.append(f"{line} " if trimmed else line)
        size += len(line)
    yield "".join(held)


def _folded_at(lines: Sequence[str], begins: Begins) -> int:
    """Return the width at whose blanks lines were wrapped, 0 where they were not."""
    inside = False
    pairs: list[tuple[int, int]] = []
    widest = 0
    before = ""
    for line in lines:
        if begins(line):
            inside = True
            widest = max(widest, _size(line))
        elif inside and _goes_on(line, begins):
            pairs.append((len(before), len(line.split(" ", 1)[0])))
            widest = max(widest, _size(line))
        else:
            inside = False
        before = line
    if len(pairs) < 2 or not _NARROWEST <= widest <= _WIDEST:
        return 0
    # The width itself is not known: no line has to fill it.
    full = sum(size + 1 + word > widest for size, word in pairs)
    return widest if full >= _SURE * len(pairs) else 0


def _size(line: str) -> int:
    """Return the length of a line that could be wrapped; a long word cannot."""
    return 0 if len(line) > _NARROWEST and max(map(len, line.split())) > _LONG_WORD else len(line)


def _folded(lines: Sequence[str], width: int, begins: Begins) -> Iterator[str]:
    held: list[str] = []
    size = last = 0
    inside = False
    for line in lines:
        word = len(line.split(" ", 1)[0])
        more = inside and size < MAX_LINE and last + 1 + word > width and _goes_on(line, begins)
        if not more:
            if held:
                yield " ".join(held)
            held, size = [], 0
            inside = begins(line) is True
        held.append(line)
        size += len(line)
        last = len(line)
    yield " ".join(held)
