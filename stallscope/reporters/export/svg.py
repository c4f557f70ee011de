# SPDX-License-Identifier: Apache-2.0
"""A flame graph as one SVG file without a script: coloured by subsystem, counts as tooltips.

Without a script, nothing in it can be executed. Search and zoom are those of the browser.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from html import escape

import msgspec

from stallscope.analyzers import subsystems
from stallscope.base.text import clean
from stallscope.reporters.export.source import Entry, Options, Row, rows, thread_title

__all__ = ["render"]

_WIDTH = 1200
_MARGIN = 10
_ROW = 17
_HEAD = 46
_LEGEND = 16
_FONT = 12
_CHAR = 7.25
"""Width of a character of the monospaced font."""
_LEAST = 0.4
"""Narrower frames, in pixels, cannot be seen and are not drawn."""

# Light enough for black text on each of them.
_FILL = {
    "blue": "#8fb8e8",
    "green": "#97d08f",
    "grey": "#c9c9c9",
    "orange": "#f5b06a",
    "purple": "#c9a4e4",
    "red": "#f08f86",
    "yellow": "#ecd66b",
}

_STYLE = """\
text{font:12px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#000}
.page{fill:#fff}.said{fill:#000}.small{fill:#444}
g:hover>rect{stroke:#000;stroke-width:1}
@media (prefers-color-scheme:dark){
.page{fill:#16181d}.said{fill:#eee}.small{fill:#aaa}g:hover>rect{stroke:#fff}}
"""


class _Node:
    """A frame with the same callers. ``threads``: how many threads have it."""

    __slots__ = ("children", "threads")

    def __init__(self) -> None:
        self.threads = 0
        self.children: dict[str, _Node] = {}


class _Box(msgspec.Struct, frozen=True, gc=False):
    name: str
    depth: int
    left: int
    """How many threads are to the left of it."""
    threads: int


def render(entries: Iterable[Entry], options: Options) -> Iterator[bytes]:
    """Return the flame graph of all captures together; the widths are threads."""
    root = _Node()
    captures = 0
    for entry in entries:
        captures += 1
        for row in rows(entry, options):
            _add(root, row, options)
    boxes, hidden = _layout(root)
    rest = f", {captures} captures" if captures != 1 else ""
    said = f"{root.threads:,} threads{rest}, width: number of threads"
    if hidden:
        said += f"; {hidden:,} frames too narrow to show are omitted"
    yield from _document(clean(options.title), said, root.threads, boxes)


def _add(root: _Node, row: Row, options: Options) -> None:
    count = row.thread.count
    names = list(reversed(row.names))
    if options.states:
        names.insert(0, f"[{row.state}]")
    if options.threads:
        names.insert(0, thread_title(row.thread))
    root.threads += count
    node = root
    for name in names:
        child = node.children.get(name)
        if child is None:
            child = node.children[name] = _Node()
        child.threads += count
        node = child


def _layout(root: _Node) -> tuple[list[_Box], int]:
    """Place the frames, without recursion: a stack can be a thousand frames deep."""
    total = max(1, root.threads)
    least = _LEAST * total / (_WIDTH - 2 * _MARGIN)
    boxes: list[_Box] = []
    hidden = 0
    todo = [(root, 0, 0)]
    while todo:
        node, depth, left = todo.pop()
        for name in sorted(node.children):
            child = node.children[name]
            if child.threads < least:
                hidden += 1
            else:
                boxes.append(_Box(name, depth, left, child.threads))
                todo.append((child, depth + 1, left))
            left += child.threads
    return boxes, hidden


def _document(title: str, said: str, total: int, boxes: list[_Box]) -> Iterator[bytes]:
    known = subsystems.load()
    depth = 1 + max((box.depth for box in boxes), default=0)
    legend = _legend(known, boxes)
    bottom = _HEAD + depth * _ROW
    height = bottom + len(legend) * _LEGEND + 2 * _MARGIN
    yield (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
        f' width="{_WIDTH}" height="{height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n"
        f'<rect class="page" width="{_WIDTH}" height="{height}" fill="#fff"/>\n'
        + _text(_MARGIN, 20, _fit(title, _WIDTH - 2 * _MARGIN), "said")
        + _text(_MARGIN, 38, said, "small")
    ).encode()
    scale = (_WIDTH - 2 * _MARGIN) / max(1, total)
    for box in boxes:
        fill = _FILL[known.colour(box.name)]
        yield _frame(box, fill, scale, bottom, total).encode()
    for number, (colour, what) in enumerate(legend):
        y = bottom + _MARGIN + number * _LEGEND
        swatch = f'<rect x="{_MARGIN}" y="{y}" width="12" height="12" fill="{_FILL[colour]}"/>'
        what = _fit(what, _WIDTH - 3 * _MARGIN - 18)
        yield (swatch + _text(_MARGIN + 18, y + 10, what, "small")).encode()
    yield b"</svg>\n"


def _frame(box: _Box, fill: str, scale: float, bottom: int, total: int) -> str:
    x = _MARGIN + box.left * scale
    width = box.threads * scale
    y = bottom - (box.depth + 1) * _ROW
    share = 100 * box.threads / max(1, total)
    label = _fit(box.name, width - 4)
    return (
        f"<g><title>{escape(box.name)}: {box.threads:,} threads, {share:.1f} %</title>"
        f'<rect x="{x:.2f}" y="{y}" width="{max(width - 0.3, 0.3):.2f}" height="{_ROW - 1}" rx="1"'
        f' fill="{fill}"/>' + (_text(x + 2, y + _FONT, label) if label else "") + "</g>\n"
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.2f}" y="{y}"{style}>{escape(text)}</text>\n'


def _fit(text: str, width: float) -> str:
    """Return as much of a text as fits, or nothing where that would be too little."""
    room = int(width / _CHAR)
    if room >= len(text) and text.isascii():
        return text
    if room < 3:
        return ""
    used = 0
    for end, char in enumerate(text):
        used += 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if used > room:
            return text[: max(0, end - 1)] + "…"
    return text


def _legend(known: subsystems.Subsystems, boxes: list[_Box]) -> list[tuple[str, str]]:
    """Return the used colours with their subsystems."""
    found: dict[str, dict[str, None]] = {}
    for box in boxes:
        item = known.by_name.get(known.of(box.name))
        if item is not None:
            found.setdefault(item.colour, {})[item.title] = None
    return [(colour, ", ".join(sorted(titles))) for colour, titles in sorted(found.items())]
