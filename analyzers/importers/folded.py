# SPDX-License-Identifier: Apache-2.0
"""Collapsed stacks, as FlameGraph's tools, ``bcc -f`` and many profilers print them.

One line a stack: frames from the outermost with semicolons, then a count. Where the first part is
the program, as the collapsers of perf and bcc have it, it becomes the thread's name.
"""

from __future__ import annotations

import re

from stallscope.analyzers.importers.dump import MAX_LINE, Dump, Format, Loaded, number
from stallscope.model.capture import Frame

__all__ = ["FORMAT"]

_LINE = re.compile(r"(\S[^;]{0,65535};.{0,65535}?) (\d{1,15})(?:\.\d{1,9})?\s*$")
_ENOUGH = re.compile(r"^[^\s;][^\n;]{0,500};[^\n]{1,65000} \d{1,15}(?:\.\d+)?[ \r]*$", re.M)
_THREAD = re.compile(r"(.{1,64}?)-(?:\?|(\d{1,9}))(?:/(\d{1,9}))?")
_PY_SPY = re.compile(r"thread \((?:0x[0-9A-Fa-f]+|(\d{1,9}))\)(?:: (.{0,64}))?")
_SOURCE = re.compile(r"(.+) \((\S+:\d{1,9})\)")
_KERNEL = re.compile(r"(.+)_\[k\]")
_ANNOTATION = re.compile(r"(.+)_\[[ijp]\]")
_MODULE = re.compile(r"(\S.*)`(.+)")
_MAX_COUNT = 2**31 - 1


def sniff(text: str) -> bool:
    """Return whether a line looks like a collapsed stack."""
    return ";" in text and _ENOUGH.search(text) is not None


def load(text: str, name: str) -> Loaded:
    """Read all collapsed stacks as one capture."""
    dump = Dump("folded", name)
    rest: list[str] = []
    found: list[tuple[list[str], int]] = []
    for line in text.split("\n"):
        match = _LINE.match(line[:MAX_LINE]) if ";" in line else None
        names = match.group(1).split(";") if match else []
        if match is None or any(part[:1] == " " for part in names):
            rest.append(line)
        else:
            found.append((names, min(_MAX_COUNT, max(1, int(match.group(2))))))
    program = _have_titles([names for names, _ in found])
    for names, count in found:
        title, tid = "", 0
        if program:
            title, *names = names
            if thread := _PY_SPY.fullmatch(title):
                title, tid = thread.group(2) or "", number(thread.group(1))
            elif thread := _THREAD.fullmatch(title):
                title, tid = thread.group(1), number(thread.group(3) or thread.group(2))
        user: list[Frame] = []
        kernel: list[Frame] = []
        for part in reversed(names):
            if part in ("", "-", "--"):
                continue
            in_kernel = _KERNEL.fullmatch(part)
            marked = _ANNOTATION.fullmatch(part)
            module = _MODULE.fullmatch(part)
            symbol = in_kernel.group(1) if in_kernel else marked.group(1) if marked else part
            if module is not None:
                symbol = module.group(2)
            source = _SOURCE.fullmatch(symbol)
            frame = dump.frame(
                source.group(1) if source else symbol,
                module=module.group(1) if module else None,
                source=source.group(2) if source else None,
                kernel=in_kernel is not None,
            )
            (kernel if in_kernel else user).append(frame)
        if user or kernel:
            dump.thread(user, kernel_frames=kernel, name=title, tid=tid, count=count)
    return ([dump.capture()], "\n".join(rest)) if dump.threads else ([], text)


def _have_titles(stacks: list[list[str]]) -> bool:
    """Return whether the first parts are programs or threads, and no functions."""
    heads = {names[0] for names in stacks}
    if heads and all(_PY_SPY.fullmatch(head) for head in heads):
        return True
    # Few first parts for many stacks, none of them a function that another stack has inside.
    inner = {part for names in stacks for part in names[1:]}
    starts = ("start_thread", "_start", "main", "clone", "clone3", "all")
    return (
        0 < len(heads) <= max(1, len(stacks) // 2)
        and not inner.intersection(heads)
        and not any(head in starts or "(" in head for head in heads)
    )


FORMAT = Format("folded", sniff, load)
