# SPDX-License-Identifier: Apache-2.0
"""Stacks as a tree: from the thread's start inwards, or, inverted, from the innermost frame
outwards."""

from __future__ import annotations

from collections.abc import Iterator

from stallscope.analyzers.analysis import Analysis, Group
from stallscope.base.text import clean
from stallscope.reporters.lines import Line

__all__ = ["render"]

_MAX_LINES = 400
_MAX_INDENT = 40


class _Node:
    __slots__ = ("children", "count")

    def __init__(self) -> None:
        self.count = 0
        self.children: dict[str, _Node] = {}


def render(analysis: Analysis, *, inverted: bool, top: int, full: bool, width: int) -> list[Line]:
    """Return the tree of all groups; of each node the ``top`` largest branches (0: all).

    A frame without siblings has the indent of its parent, so deep stacks stay readable.
    """
    groups = [group for group in analysis.groups if full or not group.idle]
    root = _tree(groups, inverted=inverted)
    total = max(1, root.count)
    lines = [Line("")]
    what = "from the innermost frame" if inverted else "from the outermost frame"
    idle = sum(group.count for group in analysis.groups if group.idle)
    rest = f"; {idle} idle threads omitted, --full shows them" if idle and not full else ""
    lines.append(Line(f"Stacks {what} ({root.count} threads{rest})", "bold"))
    for text in _walk(root, total, top):
        if len(lines) >= _MAX_LINES:
            lines.append(Line("  … more: --top 3, or --lines"))
            break
        text = clean(text)
        lines.append(Line(text if full or len(text) <= width else text[: width - 1] + "…"))
    return lines


def _tree(groups: list[Group], *, inverted: bool) -> _Node:
    root = _Node()
    for group in groups:
        node = root
        node.count += group.count
        for name in group.frames if inverted else reversed(group.frames):
            node = node.children.setdefault(name, _Node())
            node.count += group.count
    return root


def _walk(root: _Node, total: int, top: int) -> Iterator[str]:
    """Yield lines, depth first, without recursion: a stack can be a thousand frames deep."""
    stack = _branches(root, 0, top)
    while stack:
        name, node, depth, hidden = stack.pop()
        indent = " " * min(_MAX_INDENT, 2 * depth)
        if node is None:
            yield f"{'':13}{indent}… {hidden} threads in smaller branches"
            continue
        yield f"{node.count:6} {100 * node.count / total:4.0f}% {indent}{name}"
        single = len(node.children) == 1
        whole = single and next(iter(node.children.values())).count == node.count
        stack += _branches(node, depth if whole else depth + 1, top)


def _branches(node: _Node, depth: int, top: int) -> list[tuple[str, _Node | None, int, int]]:
    """Return a node's branches, the largest last; those beyond ``top`` are one entry."""
    ordered = sorted(node.children.items(), key=lambda item: (-item[1].count, item[0]))
    shown = ordered[:top] if top else ordered
    hidden = sum(child.count for _, child in ordered[len(shown) :])
    out: list[tuple[str, _Node | None, int, int]] = [("", None, depth, hidden)] if hidden else []
    out += [(name, child, depth, 0) for name, child in reversed(shown)]
    return out
