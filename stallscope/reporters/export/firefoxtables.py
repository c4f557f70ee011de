# SPDX-License-Identifier: Apache-2.0
"""The tables that all threads of a Firefox profile share: strings, frames, stacks, libraries."""

from __future__ import annotations

import re
from typing import Any

from stallscope.analyzers import subsystems
from stallscope.analyzers.waits import IDLE
from stallscope.base.text import clean
from stallscope.model.capture import Frame, Module
from stallscope.reporters.export.source import Row, source_line

__all__ = ["Tables"]

_LIBRARY = 1  # ResourceType
_BUILD_ID = re.compile(r"[0-9a-f]{16,64}")


class Tables:
    """Distinct strings, frames, stacks and libraries, each with an index."""

    def __init__(self) -> None:
        self._known = subsystems.load()
        titles = [item.title for item in self._known.items]
        self._categories = {title: number for number, title in enumerate(titles, 2)}
        self._strings: dict[str, int] = {}
        self._libraries: dict[tuple[str, str | None], int] = {}
        self._modules: list[Module] = []
        self._sources: dict[str, int] = {}
        self._functions: dict[tuple[str, int, str], int] = {}
        self._frames: dict[tuple[int, int, int, int, int], int] = {}
        self._stacks: dict[tuple[int, int], int] = {}

    def string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def stack(self, row: Row) -> int:
        """Return the index of a thread's stack; stacks are built from the outermost frame."""
        parent = -1
        frames = row.frames or (None,) * len(row.names)
        leaf = len(row.names) - 1
        pairs = zip(reversed(row.names), reversed(frames), strict=True)
        for number, (name, frame) in enumerate(pairs):
            category = 1 if number == leaf and row.state == IDLE else self._category(name)
            key = (parent, self._frame(name, frame, category))
            parent = self._stacks.setdefault(key, len(self._stacks))
        return parent

    def categories(self) -> list[dict[str, Any]]:
        """Return the two categories that the profiler expects, and one for each subsystem."""
        every = [("Other", "grey"), ("Idle", "transparent")]
        every += [(item.title, item.colour) for item in self._known.items]
        return [{"name": name, "color": color, "subcategories": ["Other"]} for name, color in every]

    def libraries(self) -> list[dict[str, Any]]:
        """Return ``profile.libs``."""
        return [_library(module) for module in self._modules]

    def shared(self) -> dict[str, Any]:
        """Return ``profile.shared``."""
        resources = [self.string(_file_name(module)) for module in self._modules]
        functions = [(self.string(name), lib, file) for name, lib, file in self._functions]
        sources = [self.string(file) for file in self._sources]
        count = len(sources)
        return {
            "stackTable": {
                "frame": [frame for _, frame in self._stacks],
                "prefixOffset": [
                    0 if parent < 0 else number - parent
                    for number, (parent, _) in enumerate(self._stacks)
                ],
                "length": len(self._stacks),
            },
            "frameTable": self._frame_table(),
            "funcTable": _function_table(functions, self._sources),
            "resourceTable": {
                "name": resources,
                "host": [None] * len(resources),
                "type": [_LIBRARY] * len(resources),
                "length": len(resources),
            },
            "nativeSymbols": {
                "libIndex": [],
                "address": [],
                "name": [],
                "functionSize": [],
                "length": 0,
            },
            "sources": {
                "id": [None] * count,
                "filename": sources,
                "startLine": [1] * count,
                "startColumn": [1] * count,
                "sourceMapURL": [None] * count,
                "content": [None] * count,
                "length": count,
            },
            "sourceLocationTable": {"source": [], "line": [], "column": [], "length": 0},
            "stringArray": list(self._strings),
        }

    def _category(self, name: str) -> int:
        item = self._known.by_name.get(self._known.of(name))
        return 0 if item is None else self._categories[item.title]

    def _frame(self, name: str, frame: Frame | None, category: int) -> int:
        library = address = -1
        file, line = "", 0
        if frame is not None:
            file, line = source_line(frame)
            if frame.module is not None:
                library = self._library(frame.module)
                # Addresses are doubles in JavaScript.
                if frame.offset is not None and frame.offset < 1 << 53:
                    address = frame.offset
        function = self._functions.setdefault((name, library, file), len(self._functions))
        if file:
            self._sources.setdefault(file, len(self._sources))
        key = (function, library, address, line, category)
        return self._frames.setdefault(key, len(self._frames))

    def _library(self, module: Module) -> int:
        key = (module.path, module.build_id)
        number = self._libraries.get(key)
        if number is None:
            number = self._libraries[key] = len(self._libraries)
            self._modules.append(module)
        return number

    def _frame_table(self) -> dict[str, Any]:
        count = len(self._frames)
        keys = list(self._frames)
        return {
            "func": [key[0] for key in keys],
            "lib": [key[1] for key in keys],
            "address": [key[2] for key in keys],
            "line": [key[3] or None for key in keys],
            "category": [key[4] for key in keys],
            "subcategory": [0] * count,
            "inlineDepth": [0] * count,
            "nativeSymbol": [None] * count,
            "innerWindowID": [None] * count,
            "column": [None] * count,
            "originalLocation": [None] * count,
            "length": count,
        }


def _function_table(
    functions: list[tuple[int, int, str]], sources: dict[str, int]
) -> dict[str, Any]:
    count = len(functions)
    return {
        "name": [name for name, _, _ in functions],
        "isJS": [False] * count,
        "relevantForJS": [False] * count,
        "resource": [library for _, library, _ in functions],  # one resource a library
        "source": [sources[file] if file else None for _, _, file in functions],
        "lineNumber": [None] * count,
        "columnNumber": [None] * count,
        "originalLocation": [None] * count,
        "length": count,
    }


def _file_name(module: Module) -> str:
    return clean(module.path.rsplit("/", 1)[-1] or module.path)


def _library(module: Module) -> dict[str, Any]:
    build_id = module.build_id or ""
    return {
        "arch": "",
        "name": _file_name(module),
        "path": clean(module.path),
        "debugName": _file_name(module),
        "debugPath": clean(module.path),
        "breakpadId": _breakpad_id(build_id),
        "codeId": clean(build_id) or None,
    }


def _breakpad_id(build_id: str) -> str:
    """Return the first 16 bytes of a build-id as a GUID, whose first parts are little-endian."""
    if _BUILD_ID.fullmatch(build_id) is None:
        return ""
    digits = build_id.ljust(32, "0")[:32].upper()
    data = bytes.fromhex(digits)
    return (data[3::-1] + data[5:3:-1] + data[7:5:-1] + data[8:]).hex().upper() + "0"
