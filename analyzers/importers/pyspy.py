# SPDX-License-Identifier: Apache-2.0
"""``py-spy dump``, as text (also with ``--native`` and ``--locals``) and as JSON."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from stallscope.analyzers.importers.dump import (
    MAX_FRAMES,
    Dump,
    Format,
    LineReader,
    Loaded,
    line_format,
    number,
)
from stallscope.model.capture import Frame

__all__ = ["FORMAT", "JSON_FORMAT"]

_PROCESS = re.compile(r"Process (\d{1,9}): (.{0,4000})$")
_VERSION = re.compile(r"Python v\d+\.\d\S* \((.{1,4000})\)\s*$")
_THREAD = re.compile(
    r"Thread (?:(\d{1,9})|0x[0-9A-Fa-f]{1,16}) \((active|idle|active\+gil|idle\+gil)\)"
    r'(?:: "(.{0,400})")?\s*$'
)
_FRAME = re.compile(r"    (?! )(?P<name>.+?) \((?P<where>[^()]*(?:\([^()]*\)[^()]*)?)\)\s*$")
_LINE = re.compile(r"(.+):(\d{1,9})$")
_ADDRESS = re.compile(r"0x([0-9a-f]{1,16})$")


class _Reader(LineReader):
    backend = "py-spy"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.in_thread = False
        self.frames: list[Frame] = []
        self.tid = 0
        self.title = ""
        self.active = ""

    def line(self, line: str) -> bool:
        if match := _PROCESS.match(line):
            self.end()
            self.dump.pid = number(match.group(1))
            self.dump.exe = match.group(2).split(" ")[0] or None
            return True
        if _VERSION.match(line):
            return True
        if match := _THREAD.match(line):
            self.end_thread()
            self.tid, self.active = number(match.group(1)), match.group(2)
            self.title = match.group(3) or ""
            self.in_thread = True
            return True
        if not self.in_thread:
            return False
        if match := _FRAME.match(line):
            self.frames.append(self.frame(match["name"], match["where"]))
            return True
        if line.startswith("        ") or not line.strip():
            return True  # values of locals
        self.end_thread()
        return False

    def frame(self, name: str, where: str) -> Frame:
        address = _ADDRESS.match(name)
        if address:
            return self.dump.frame(None, module=where or None, pc=int(address.group(1), 16))
        if _LINE.match(where):
            return self.dump.frame(name, source=where)
        return self.dump.frame(name, module=where or None)

    def end_thread(self) -> None:
        if self.in_thread:
            self.dump.thread(
                self.frames, tid=self.tid, name=self.title, state=_state("active" in self.active)
            )
        self.in_thread = False
        self.frames = []

    def end(self) -> None:
        self.end_thread()
        if any(thread.frames for thread in self.dump.threads):
            super().end()
        self.dump = Dump(self.backend, self.name)


def _state(active: bool) -> str:
    return "R" if active else "S"


class _JsonFrame(msgspec.Struct):
    name: str
    filename: str = ""
    module: str | None = None
    short_filename: str | None = None
    line: int = 0


class _JsonThread(msgspec.Struct):
    pid: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    frames: list[_JsonFrame]
    thread_name: str | None = None
    os_thread_id: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    active: bool = False


def _load_json(text: str, name: str) -> Loaded:
    start = text.find("[")
    try:
        threads = msgspec.json.decode(text[start:], type=list[_JsonThread])
    except (msgspec.MsgspecError, RecursionError):
        return [], text
    captures = []
    for pid in dict.fromkeys(thread.pid for thread in threads):
        dump = Dump("py-spy", name, pid=pid)
        for thread in threads:
            if thread.pid != pid:
                continue
            frames = [
                dump.frame(
                    frame.name,
                    module=None if frame.line else frame.module,
                    source=f"{frame.short_filename or frame.filename}:{frame.line}"
                    if frame.line > 0
                    else None,
                )
                for frame in thread.frames[: MAX_FRAMES + 1]
            ]
            dump.thread(
                frames,
                tid=thread.os_thread_id or 0,
                name=thread.thread_name or "",
                state=_state(thread.active),
            )
        captures.append(dump.capture())
    return captures, ""


def _sniff(text: str) -> bool:
    return "Thread " in text and ("(idle" in text or "(active" in text)


def _sniff_json(text: str) -> bool:
    return '"frames"' in text and '"os_thread_id"' in text


FORMAT = line_format(_sniff, _Reader)
JSON_FORMAT = Format("py-spy JSON", _sniff_json, _load_json)
