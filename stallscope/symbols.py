# SPDX-License-Identifier: Apache-2.0
"""Name the frames of a capture by build-id, through ``stallscope-probe symbolize``."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import msgspec

from stallscope import probe
from stallscope.errors import StallscopeError
from stallscope.model import Capture, Frame, Module, Thread
from stallscope.text import one_line

__all__ = ["Debuginfod", "Result", "symbolize"]

_SECONDS = 300.0
_FETCH_SECONDS = 600.0


class Result(msgspec.Struct, frozen=True):
    """The named capture, and what is missing in it."""

    capture: Capture
    wanted: int
    """Frames that were to be named."""
    named: int
    modules: int
    files: int
    """Modules whose symbols were found."""
    problems: tuple[str, ...]


class _Symbol(msgspec.Struct):
    symbol: str
    linkage: str | None = None
    symbol_offset: int | None = None


class _Answer(msgspec.Struct):
    id: int
    file: str | None = None
    error: str | None = None
    symbols: list[_Symbol | None] = []


class Debuginfod:
    """Fetch debug files with debuginfod-find, which keeps them in its cache."""

    def __init__(self) -> None:
        self._program = shutil.which("debuginfod-find")
        if self._program is None:
            raise StallscopeError("debuginfod-find is not installed: apt-get install debuginfod")
        if not os.environ.get("DEBUGINFOD_URLS"):
            raise StallscopeError(
                "DEBUGINFOD_URLS is not set: name the servers to ask,"
                " https://debuginfod.elfutils.org for one"
            )

    def __call__(self, build_id: str) -> Path:
        """Return the debug file of the build-id, else raise StallscopeError."""
        assert self._program is not None
        try:
            done = subprocess.run(
                [self._program, "debuginfo", build_id],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_FETCH_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise StallscopeError(f"debuginfod: no answer in {_FETCH_SECONDS:g} s") from None
        lines = done.stdout.decode("utf-8", "surrogateescape").splitlines()
        if done.returncode or not lines:
            why = one_line(done.stderr.decode("utf-8", "backslashreplace")) or "not found"
            raise StallscopeError(f"debuginfod: {why}")
        return Path(lines[-1])


def symbolize(
    capture: Capture,
    *,
    debug_dir: Path | None,
    fetch: Callable[[str], Path] | None = None,
    again: bool = False,
) -> Result:
    """Name the frames without a symbol, or, with ``again``, all.

    Only modules with a build-id are looked up: a path alone can be another file on this machine.
    """
    wanted = _wanted(capture, again=again)
    problems: list[str] = []
    queries: list[bytes] = []
    asked: list[tuple[Module, list[Frame]]] = []
    innermost = {id(thread.frames[0]) for thread in capture.threads if thread.frames}
    for module, frames in wanted.items():
        if not module.build_id:
            problems.append(f"{module.path}: no build-id in the capture: {len(frames)} frames stay")
            continue
        path = None
        if fetch is not None:
            try:
                path = str(fetch(module.build_id))
            except StallscopeError as error:
                problems.append(f"{module.path} ({module.build_id}): {error}")
        query = {
            "id": len(asked),
            "build_id": module.build_id,
            "path": path,
            # A caller's address is where it goes on, which can be behind its last instruction.
            "offsets": [f"{_offset(frame) - (id(frame) not in innermost):#x}" for frame in frames],
        }
        queries.append(msgspec.json.encode(query))
        asked.append((module, frames))
    answers = _ask(queries, debug_dir) if queries else {}
    frames_new: dict[int, Frame] = {}
    files: dict[Module, str | None] = {}
    for i, (module, frames) in enumerate(asked):
        answer = answers.get(i)
        if answer is None or len(answer.symbols) != len(frames):
            why = answer.error if answer is not None and answer.error else "no answer of the probe"
            problems.append(f"{module.path} ({module.build_id}): {why}")
            continue
        files[module] = answer.file
        for frame, found in zip(frames, answer.symbols, strict=True):
            if found is not None:
                frames_new[id(frame)] = _named(frame, found, caller=id(frame) not in innermost)
    return Result(
        capture=_rebuild(capture, frames_new, files),
        wanted=sum(map(len, wanted.values())),
        named=len(frames_new),
        modules=len(wanted),
        files=len(files),
        problems=tuple(problems),
    )


def _wanted(capture: Capture, *, again: bool) -> dict[Module, list[Frame]]:
    """Return the distinct frames to name, by module."""
    wanted: dict[Module, list[Frame]] = defaultdict(list)
    seen: set[int] = set()
    for thread in capture.threads:
        for frame in thread.frames:
            if id(frame) in seen:
                continue
            seen.add(id(frame))
            named = frame.symbol is not None and not again
            if not named and not frame.kernel and frame.module and frame.offset is not None:
                wanted[frame.module].append(frame)
    return wanted


def _offset(frame: Frame) -> int:
    assert frame.offset is not None
    return frame.offset


def _named(frame: Frame, found: _Symbol, *, caller: bool) -> Frame:
    offset = found.symbol_offset
    return msgspec.structs.replace(
        frame,
        symbol=found.symbol,
        linkage=found.linkage,
        symbol_offset=None if offset is None else offset + caller,
    )


def _ask(queries: list[bytes], debug_dir: Path | None) -> dict[int, _Answer]:
    args = ["symbolize"]
    if debug_dir is not None:
        args += ["--debug-dir", str(debug_dir)]
    out = probe.run(args, seconds=_SECONDS, stdin=b"\n".join(queries) + b"\n")
    try:
        answers = [msgspec.json.decode(line, type=_Answer) for line in out.splitlines() if line]
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StallscopeError(f"{probe.PROBE} symbolize: not understood: {error}") from error
    return {answer.id: answer for answer in answers}


def _rebuild(
    capture: Capture, frames: dict[int, Frame], files: dict[Module, str | None]
) -> Capture:
    """Put the named frames, and the modules' debug files, in the place of the old."""
    modules = {
        module: msgspec.structs.replace(
            module, symbols="separate" if file else module.symbols, debug_file=file
        )
        for module, file in files.items()
        if file is not None
    }
    done: dict[int, Frame] = {}
    stacks: dict[int, tuple[Frame, ...]] = {}

    def frame_new(frame: Frame) -> Frame:
        new = done.get(id(frame))
        if new is None:
            new = frames.get(id(frame), frame)
            if new.module in modules:
                new = msgspec.structs.replace(new, module=modules[new.module])
            done[id(frame)] = new
        return new

    def thread_new(thread: Thread) -> Thread:
        stack = stacks.get(id(thread.frames))
        if stack is None:
            stack = stacks[id(thread.frames)] = tuple(map(frame_new, thread.frames))
        return msgspec.structs.replace(thread, frames=stack)

    return msgspec.structs.replace(
        capture,
        threads=tuple(map(thread_new, capture.threads)),
        modules=tuple(modules.get(module, module) for module in capture.modules),
    )
