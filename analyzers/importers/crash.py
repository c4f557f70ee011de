# SPDX-License-Identifier: Apache-2.0
"""The stack that mysqld or mariadbd prints into its error log when it crashes.

It is one thread: the one that got the signal. Its query and connection follow the frames.
"""

from __future__ import annotations

import re

from stallscope.analyzers.importers.dump import LineReader, basename, line_format
from stallscope.model.capture import Frame

__all__ = ["FORMAT"]

_START = re.compile(r"Attempting backtrace\b|\bstack_bottom = |Thread pointer: (?:0x|\(nil\))")
_SIGNAL = re.compile(r"got (?:signal|exception) (\d{1,3}|0x[0-9a-f]{1,8})")
_VERSION = re.compile(r"Server version: (\S{1,100})|\bVersion: '([^']{1,100})'")
_LOG_PREFIX = r"(?:.{0,120}?\[\d{1,9}\]: )?"
_PROGRAM = re.compile(
    _LOG_PREFIX
    + r"(?P<path>[^\s(\[]*?)\((?P<name>[^\]]{0,4000}?)(?:\+0x(?P<offset>[0-9a-f]{1,16}))?\)"
    r"\s?\[0x(?P<pc>[0-9a-f]{1,16})\]\s*$"
)
_PATH = re.compile(_LOG_PREFIX + r"(?P<path>[^\s\[(]*)\s?\[0x(?P<pc>[0-9a-f]{1,16})\]\s*$")
_NUMBERED = re.compile(r"\s{0,4}#(\d{1,4})\s+0x([0-9a-f]{1,16}) (?!in )(.+?)(?: at (\S+:\d+))?\s*$")
_SOURCE = re.compile(r"\S+:\d+$")
_QUERY = re.compile(r"Query \((?:0x)?[0-9a-f]{1,16}\): (.*)$|thd->query at 0x[0-9a-f]+ = (.*)$")
_CONNECTION = re.compile(r"(?:Connection ID \(thread ID\): |thd->thread_id=)(\d{1,18})")
_AFTER = 12
"""Lines after the frames in which the query is."""


class _Reader(LineReader):
    backend = "crash-trace"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.version = ""
        self.signal = ""
        self.reset()

    def reset(self) -> None:
        self.frames: list[Frame] = []
        self.open = False
        self.after = 0
        self.query: str | None = None
        self.connection: int | None = None

    def line(self, line: str) -> bool:
        if "ersion: " in line and (match := _VERSION.search(line)):
            self.version = match.group(1) or match.group(2)
        elif "got " in line and (match := _SIGNAL.search(line)):
            self.end()
            self.signal = match.group(1)
            return True
        elif _START.search(line):
            if self.frames:
                self.end()
            self.open = True
            return True
        if not self.open:
            return False
        if not self.after and self.frame(line):
            return True
        if self.frames:
            self.after += 1
            if match := _QUERY.search(line):
                self.query = match.group(1) or match.group(2)
                return True
            if match := _CONNECTION.search(line):
                self.connection = int(match.group(1))
                return True
            if self.after > _AFTER:
                self.end()
        return False

    def frame(self, line: str) -> bool:
        frame = self.dump.frame
        if match := _PROGRAM.match(line):
            path, name, pc = match["path"], match["name"], int(match["pc"], 16)
            offset = int(match["offset"], 16) if match["offset"] else None
            if _SOURCE.match(path):  # addr2line found the source
                self.frames.append(
                    frame(name, source=None if path.startswith("?") else path, pc=pc)
                )
            elif name:
                self.frames.append(frame(name, module=path or None, pc=pc, symbol_offset=offset))
            else:
                self.frames.append(frame(None, module=path or None, pc=pc, offset=offset))
        elif match := _PATH.match(line):
            self.frames.append(frame(None, module=match["path"] or None, pc=int(match["pc"], 16)))
        elif match := _NUMBERED.match(line):
            self.frames.append(
                frame(match.group(3), pc=int(match.group(2), 16), source=match.group(4))
            )
        else:
            return False
        return True

    def end(self) -> None:
        if self.frames:
            module = next((f.module for f in self.frames if f.module and f.symbol), None)
            self.dump.comm = basename(module.path) if module else "mysqld"
            if self.version:
                self.dump.strings["server_version"] = self.version
            if self.signal:
                self.dump.strings["signal"] = self.signal
            self.dump.thread(self.frames, query=self.query, connection=self.connection)
        super().end()
        self.reset()


def sniff(text: str) -> bool:
    """Return whether a server announces a stack trace in the text."""
    return "Attempting backtrace" in text or "stack_bottom = " in text


FORMAT = line_format(sniff, _Reader)
