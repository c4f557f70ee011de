# SPDX-License-Identifier: Apache-2.0
"""Aggregates of pt-pmp and of the first poor man's profiler: a count, then frames with commas.

pt-pmp puts the source line or the library into parentheses (``poll(libc.so.6)``); the older ones
split C++ names at their blanks, so what is left of a name stands alone or with half its arguments.
"""

from __future__ import annotations

import re

from stallscope.analyzers.importers.dump import LineReader, line_format
from stallscope.model.capture import Frame

__all__ = ["FORMAT"]

_LINE = re.compile(r"\s{0,12}(\d{1,7})\s+([^\s;][^;]*)$")
_FRAME = re.compile(r"(?P<name>.*?)(?:\((?P<where>[\w.+-]+(?:\.so[.\w]*|:\d+))\))?$")
_WORD = re.compile(r"[~\w?][\w:<>~$.@*?]*$")
_ADDRESS = re.compile(r"0x[0-9a-f]{1,16}")
# The first scripts took the second or fourth word of a frame's line, whatever it was.
_NO_FRAME = re.compile(
    r"at|from|in|<signal|handler|called>?|<?optimized|out>[,)]*|<[^<>]*>[,)]*|\(?[\w.*@]{0,100}=.*"
    r"|\(?\)?|[\w.+-]*/[\w./+-]*(?::\d{1,7})?|[\w.-]+\.(?:c|cc|cpp|h|ic|i|S):\d{1,7}|\d{1,20}"
)
_ROOTS = frozenset(("start_thread", "clone", "clone3", "__clone", "__clone3", "_start", "main"))
_STAMP = re.compile(r"(?:TS \d+\.\d+ |(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \w{3} [ \d]\d )")
_ENOUGH = re.compile(r"^[^\S\n]{0,12}\d{1,7}[^\S\n]+[\w?~:]{2}[^;\n]*?,[\w?~.(]", re.M)


class _Reader(LineReader):
    backend = "pt-pmp"

    def line(self, line: str) -> bool:
        if _STAMP.match(line):
            self.end()
            return True
        match = _LINE.match(line)
        names = _split(match.group(2)) if match else []
        if match is None or not names:
            return False
        count = int(match.group(1))
        known = [name for name in names if _NO_FRAME.fullmatch(name) is None]
        frames = [frame for name in known if (frame := self.frame(name)) is not None]
        if not frames:
            return False
        if known[0] in _ROOTS and known[-1] not in _ROOTS and len(frames) > 2:
            frames.reverse()
        # What a script took for the innermost function says nothing of the wait.
        unwind = "complete" if known[0] in (names[0], names[-1]) else "lost"
        self.dump.thread(frames, count=max(1, count), unwind=unwind)
        return True

    def frame(self, text: str) -> Frame | None:
        match = _FRAME.match(text)
        if match is None:
            return None
        name, where = match["name"], match["where"]
        if _ADDRESS.fullmatch(name):
            return self.dump.frame(None, pc=int(name, 16))
        library, _, unnamed = name.rpartition("::")
        if unnamed == "??":  # the library's name without its ending
            return self.dump.frame(None, module=where or library or None)
        if where is not None and ":" in where:
            return self.dump.frame(name, source=where)
        return self.dump.frame(name, module=where)


def _split(text: str) -> list[str]:
    """Split at commas that no bracket holds; of a broken name keep the part before the break."""
    names: list[str] = []
    for name in _balanced(text) or text.split(","):
        name = name.strip()
        if name in ("", "...") or (name.count(")") > name.count("(")):
            continue  # elided, or the rest of an argument list
        if name.count("(") > name.count(")"):
            name = name[: name.index("(")]
        if name.count("<") > name.count(">") and "operator" not in name:
            name = name[: name.index("<")]
        if not name or (" " in name and "(" not in name and "<" not in name):
            return []  # words of a sentence
        names.append(name)
    plausible = sum(_WORD.match(name.partition("(")[0]) is not None for name in names)
    return names if names and plausible * 2 > len(names) else []


def _balanced(text: str) -> list[str] | None:
    out: list[str] = []
    depth = start = 0
    for match in re.finditer(r"operator[<>()\-]*|[<>(),]", text):
        char = match.group()
        if char in "<(":
            depth += 1
        elif char in ">)":
            depth -= 1
            if depth < 0:
                return None
        elif char == "," and depth == 0:
            out.append(text[start : match.start()])
            start = match.end()
    if depth:
        return None
    out.append(text[start:])
    return out


def sniff(text: str) -> bool:
    """Return whether a line has a count, and names with commas between them."""
    return _ENOUGH.search(text) is not None


FORMAT = line_format(sniff, _Reader)
