# SPDX-License-Identifier: Apache-2.0
"""What other tools put before each line: quotes, numbers, time, names of hosts and containers.

A prefix is taken off only where the lines behind it are those of a dump and the lines with it are
not.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Sequence

from stallscope.analyzers.importers import shapes, wrapping

__all__ = ["unprefixed"]

_ROUNDS = 6
"""The most prefixes before one line."""
_DEPTH = 3
"""Prefixes that may hide whether the lines behind them are a dump's."""
_MOSTLY = 0.6
"""The part of the lines that such a prefix is before."""
_FEW = 100
_LEAST = 2
"""Lines that must become a dump's; one is enough where no line is a dump's yet."""

_LINE_NUMBERS = "line numbers"
_LAST_NUMBER = re.compile(r"\d+")
_FEWEST = 6
_FEWEST_IF_SURE = 3
"""Before a tab, or from 1 on."""
_AROUND = 0.2
"""Lines that are not indented to those that are, where a dump is indented."""
_MOST = 0.8
_TIME = (
    r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d)(?!\w))?"
)
_DAY = re.compile(rf"\[?{_TIME}")
_SENDER = r"\S{1,100} [^\s:\[]{1,64}(?:\[\d{1,9}\])?:"
_END = r"(?: |\t|$)"
_KINDS: tuple[tuple[str, str], ...] = (
    ("a log's prefixes", rf"{_TIME} {_SENDER}{_END}"),
    ("a log's prefixes", rf"{_TIME} (?:stdout|stderr) [FP]{_END}"),
    ("a log's prefixes", rf"{_TIME} \d{{1,12}} \[\w{{1,12}}\](?: \[[\w.-]{{1,20}}\]){{0,2}}{_END}"),
    ("a log's prefixes", rf"\[?{_TIME}\]?{_END}"),
    ("a log's prefixes", rf"\[?\d\d:\d\d:\d\d(?:[.,]\d{{1,9}})?\]?{_END}"),
    ("a log's prefixes", rf"\[ {{0,8}}\d{{1,12}}\.\d{{1,9}}\]{_END}"),
    ("names of containers", rf"\[pod/[^\]\s]{{1,200}}\]{_END}"),
    ("names of containers", r"[\w.-]{1,100} {1,40}\|(?: |$)"),
    ("quotes", r"(?:[>|] ?){1,20}"),
    (_LINE_NUMBERS, r"[^\s:|]{1,200}[:-]\d{1,8}[:-]"),
    (_LINE_NUMBERS, r"\d{1,8}[:-]"),
    (_LINE_NUMBERS, r" {0,8}\d{1,8}(?:\t| {2}|[.:)]? )"),
    ("names of files", r"(?:[\w./+-]{1,200}|\(standard input\)):"),
    ("a diff's signs", r"[-+]"),
    ("a diff's signs", r"[<>] "),
    (
        "a log's prefixes",
        rf"(?:<\d{{1,3}}>)?[A-Z][a-z]{{2}} [ \d]\d [\d:.]{{8,18}} {_SENDER}{_END}",
    ),
    ("a prompt", r"\(gdb\) "),
    ("bullets", r"[-*] "),
)
_PREFIXES = tuple((name, re.compile(pattern)) for name, pattern in _KINDS)
_OF_EQUAL_LINES = {"[-+]": re.compile(r"[-+ ]")}
"""Prefixes of which some lines have another form."""
_QUOTE = re.compile(r"(?:[>|] ?){0,19}[>|]")
_BARE_QUOTE = re.compile(rf"{_QUOTE.pattern}(?=[^\s>|])")
_BARE = 0.1
"""The part of the lines that have no blank behind their quote: then no quote has one."""
_INDENTED = re.compile(r"[ \t]{1,40}(?=\S)")


def unprefixed(text: str, sample: Sequence[str]) -> tuple[str, list[str]]:
    """Take prefixes off all lines; return the text, and what was before them.

    ``sample``: lines of the text by which they are found.
    """
    names: list[str] = []
    for _ in range(_ROUNDS):
        text, sample = _dedented(text, sample)
        found = _numbers(sample) or _find(sample, _DEPTH)
        if found is None:
            break
        name, prefix = found
        prefix = _OF_EQUAL_LINES.get(prefix.pattern, prefix)
        if name == "quotes" and sum(map(_is_bare, sample)) > _BARE * len(sample):
            prefix = _QUOTE
        names.append(name)
        if any(line.strip() and not prefix.match(line) for line in sample):
            text, sample = wrapping.joined(text, sample, functools.partial(_has, prefix))
        text = re.compile(rf"^(?:{prefix.pattern})", re.M).sub("", text)
        sample = [prefix.sub("", line, count=1) if prefix.match(line) else line for line in sample]
    return text, names


def _is_bare(line: str) -> bool:
    return _BARE_QUOTE.match(line) is not None


def _find(sample: Sequence[str], depth: int) -> tuple[str, re.Pattern[str]] | None:
    """Return the prefix behind which the most lines are a dump's, at once or after others."""
    other = [line for line in sample if line and not shapes.is_dump_line(line)]
    least = _LEAST if len(other) < sum(map(bool, sample)) else 1
    best: tuple[str, re.Pattern[str]] | None = None
    before: list[tuple[str, re.Pattern[str]]] = []
    dated = all(_DAY.match(line) for line in sample if line.strip())
    for name, prefix in _PREFIXES:
        if dated and name == _LINE_NUMBERS:
            continue
        gain = matching = 0
        for line in other:
            match = prefix.match(line)
            matching += match is not None
            gain += match is not None and shapes.is_dump_line(line[match.end() :])
        if gain >= least:
            least = gain + 1
            best = name, prefix
        if matching > _MOSTLY * len(sample):
            before.append((name, prefix))
    indents = Counter(match.group() for line in other if (match := _INDENTED.match(line)))
    gain = sum(shapes.is_dump_line(line.lstrip()) for line in other if line[0] in " \t")
    if indents:
        # Lines below a head stand further right: the least is what was put before all.
        indent = "indents", re.compile(re.escape(min(indents, key=len)))
        if gain >= least:
            return indent
        if indents.total() > _MOSTLY * len(sample):
            before.append(indent)
    if best is None and depth > 1:
        few = sample[:_FEW]
        for name, prefix in before:
            if _find([prefix.sub("", line, count=1) for line in few], depth - 1) is not None:
                return name, prefix
    return best


def _dedented(text: str, sample: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Take off the blanks that all lines begin with."""
    lines = [line for line in sample if line.strip() and line[0] in " \t"]
    others = [line for line in sample if line.strip() and line[0] not in " \t"]
    if not lines or len(others) > _AROUND * len(lines) or any(map(shapes.is_dump_line, others)):
        return text, sample
    if others and sum(shapes.is_dump_line(line.lstrip()) for line in lines) < _LEAST:
        return text, sample
    starts = [line[: len(line) - len(line.lstrip(" \t"))] for line in lines]
    first, last = min(starts), max(starts)
    # What the first and the last in their order have in common, all have.
    blanks = first[
        : next(
            (at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]),
            len(first),
        )
    ]
    if not blanks:
        return text, sample
    text = re.compile(f"^{re.escape(blanks)}", re.M).sub("", text)
    return text, [line.removeprefix(blanks) for line in sample]


def _numbers(sample: Sequence[str]) -> tuple[str, re.Pattern[str]] | None:
    """Return the prefix where each line has its number, also where that could be a count."""
    lines = [line for line in sample if line.strip()]
    if all(map(_DAY.match, lines)):
        return None
    for name, prefix in _PREFIXES:
        if name != _LINE_NUMBERS:
            continue
        found = [match.group() for line in lines if (match := prefix.match(line))]
        tabs = sum(text.endswith("\t") for text in found)
        if len(found) < len(lines):
            continue
        numbers = [int(_LAST_NUMBER.findall(text)[-1]) for text in found]
        sure = tabs == len(found) or numbers == list(range(1, len(lines) + 1))
        if len(found) < (_FEWEST_IF_SURE if sure else _FEWEST):
            continue
        if 0 in numbers:  # of frames
            continue
        steps = [after - before for before, after in itertools.pairwise(numbers)]
        if sum(1 <= step <= 2 for step in steps) >= _MOST * len(steps):
            return name, prefix
    return None


def _has(prefix: re.Pattern[str], line: str) -> bool:
    return prefix.match(line) is not None
