# SPDX-License-Identifier: Apache-2.0
"""The sessions in the docs: what was typed, what was printed, and whether that is so still.

A fenced block ``console`` is a session: commands after ``$ ``, then what they printed, in which
``[...]`` on a line of its own stands for any lines. A comment before a block says where it runs:

    <!-- run: stall=NAME until="text" -->     NAME is one of scripts/stall; the blocks after it
                                              share the stall, until another is named
    <!-- run: server=NAME -->                 a server of tests/support/servers, without a stall
    <!-- run: stall=none -->                  no server again, as at the start of a page
    <!-- not run: reason -->                  nobody can run this block here
    <!-- picture: report.html ../img/x.png --> the HTML that was made, as a picture

These hold for one block alone: ``until``, a text: its last command is repeated until it prints that
(a storm has other moments, too), and all that the block ``shows`` where it has one command alone.
``shows``, texts set apart by ``; ``: the session is compared by them alone, where the rest differs
from run to run, as the order of triggers does. ``code``: with which its commands end, instead of 0
or 3.
"""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

__all__ = [
    "ELISION",
    "Block",
    "Command",
    "DocError",
    "blocks",
    "difference",
    "elided",
    "flat",
    "masked",
    "missing",
]

ELISION = "[...]"
KEYS = frozenset({"stall", "server", "until", "shows", "code"})

_COMMENT = re.compile(r"<!-- (run|not run|picture): (.+?) -->$")
_FENCE = "```console"

_MASKS = (
    (re.compile(r"\b\d{8}T\d{6}[.\d]*Z-[\w.-]*"), "INCIDENT"),
    (re.compile(r"/(?:tmp|var/tmp|dev/shm|root|work|home)/[\w./@+-]*"), "PATH"),
    (re.compile(r"\b0x[0-9a-f]+"), "ADDRESS"),
    (re.compile(r"\b\d[\d.,]*(?:e[+-]\d+)? ?(?:ns|us|µs|ms|s|min|h)\b"), "TIME"),
    (re.compile(r"\b\d[\d.,]* ?(?:[KMG]i?B|kB|[KMG]|bytes|B)(?![\w])"), "SIZE"),
    (re.compile(r"\b\d[\d.,:]*\d|\b\d"), "N"),
    (re.compile(r"[▁▂▃▄▅▆▇█▉▊▋▌▍▎▏▐]+"), "BAR"),
    (re.compile(r"\bN threads? waits?\b"), "N threads wait"),
    # Of a burst on a busy machine: it has fewer captures or samples.
    (
        re.compile(r"is\s+shown(?:;\s+(?:the\s+captures\s+took\s+too\s+long|N\s+samples\s+lost))+"),
        "is shown",
    ),
)
"""What differs from run to run: ids, temporary paths, addresses, times, sizes, numbers, bars."""


class DocError(Exception):
    """A page that cannot be run as it is written."""


class Command(NamedTuple):
    """A command line of a session, and the lines it printed."""

    line: str
    output: tuple[str, ...]


class Block(NamedTuple):
    """One session of a page; ``first`` and ``last`` are the indexes of its fences."""

    first: int
    last: int
    context: dict[str, str]
    not_run: str | None
    commands: tuple[Command, ...]
    picture: tuple[str, str] | None


def blocks(text: str) -> list[Block]:
    """Return the sessions of a page, each with what its comments say."""
    found: list[Block] = []
    lines = text.splitlines()
    comments: dict[str, str] = {}
    number = 0
    while number < len(lines):
        line = lines[number]
        if comment := _COMMENT.match(line):
            comments[comment[1]] = comment[2]
        elif line == _FENCE:
            end = _end_of(lines, number)
            found.append(
                Block(
                    number,
                    end,
                    _context(comments.get("run", "")),
                    comments.get("not run"),
                    _commands(lines[number + 1 : end]),
                    _picture(comments.get("picture")),
                )
            )
            comments = {}
            number = end
        elif line.strip():
            _nothing_left(comments, number)
        number += 1
    _nothing_left(comments, number)
    return found


def _nothing_left(comments: dict[str, str], number: int) -> None:
    if comments:
        raise DocError(f"line {number + 1}: no session follows a comment: {comments}")


def _end_of(lines: list[str], first: int) -> int:
    try:
        return lines.index("```", first + 1)
    except ValueError:
        raise DocError(f"line {first + 1}: this session does not end") from None


def _context(text: str) -> dict[str, str]:
    context = {}
    for word in shlex.split(text):
        key, _, value = word.partition("=")
        if key not in KEYS or not value:
            raise DocError(f"a session cannot be run with {word!r}; known: {sorted(KEYS)}")
        context[key] = value
    return context


def _picture(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    source, _, picture = text.partition(" ")
    return source, picture


def _commands(lines: list[str]) -> tuple[Command, ...]:
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif not found:
            raise DocError(f"a session begins with a command, not with {line!r}")
        else:
            found[-1][1].append(line)
    return tuple(Command(line, tuple(output)) for line, output in found)


def masked(text: str) -> str:
    """Return the text with what differs from run to run replaced, and all as one line.

    Where lines break depends on the length of numbers.
    """
    for pattern, name in _MASKS:
        text = pattern.sub(name, text)
    return re.sub(r"\s*,\s*", ",", " ".join(text.split()))


def difference(expected: tuple[str, ...], actual: list[str]) -> str | None:
    """Return what of the expected output the actual has not, or None."""
    parts = _parts(expected)
    rest = masked("\n".join(actual))
    for index, part in enumerate(parts):
        wanted = masked("\n".join(part))
        if index == len(parts) - 1 and (wanted or not index):
            there = rest.endswith(wanted) if index else rest == wanted
            return None if there else _first_difference(wanted, rest)
        at = rest.find(wanted)
        if at < 0 or (index == 0 and at > 0):
            return _first_difference(wanted, rest)
        rest = rest[at + len(wanted) :].strip()
    return None


def flat(text: str) -> str:
    """Leave all spaces out: where a line breaks depends on the length of numbers."""
    return "".join(text.split())


def missing(texts: str, shown: str) -> list[str]:
    """Return which of the texts, set apart by ``; ``, are not among what is shown."""
    return [text for text in texts.split("; ") if flat(text) not in flat(shown)]


def _first_difference(wanted: str, rest: str) -> str:
    # The longest beginning that is there shows where they part.
    length = next(n for n in range(len(wanted), -1, -1) if wanted[:n] in rest)
    at = rest.find(wanted[:length]) + length
    return (
        f"wanted after {wanted[max(0, length - 60) : length]!r}: {wanted[length : length + 100]!r};"
        f" there is {rest[at : at + 100]!r}"
    )


def _parts(lines: tuple[str, ...]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for line in lines:
        if line.strip() == ELISION:
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


def elided(expected: tuple[str, ...], actual: list[str]) -> list[str] | None:
    """Leave out of the actual output what the expected leaves out; None where that is not clear.

    A line before an elision is where it begins, the line after it where it ends.
    """
    parts = _parts(expected)
    if len(parts) == 1:
        return actual
    wanted, there = [[masked(line) for line in part] for part in parts], list(map(masked, actual))
    shown: list[str] = []
    at = 0
    for index, part in enumerate(wanted):
        if index:
            shown.append(_indent(expected, index) + ELISION)
            if not part:
                return shown if index == len(wanted) - 1 else None
            if part[0] not in there[at:]:
                return None
            at = there.index(part[0], at)
        if index == len(wanted) - 1:
            return shown + actual[at:]
        if not part:
            continue
        if part[-1] not in there[at:]:
            return None
        end = there.index(part[-1], at) + 1
        shown += actual[at:end]
        at = end
    return shown


def _indent(expected: tuple[str, ...], number: int) -> str:
    elisions = [line for line in expected if line.strip() == ELISION]
    return elisions[number - 1].partition(ELISION)[0]
