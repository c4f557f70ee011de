# SPDX-License-Identifier: Apache-2.0
"""Name the frames of a capture by build-id, through ``stallscope-probe symbolize``."""

from __future__ import annotations

import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stallscope.base import trust
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.collectors import packs, probe
from stallscope.collectors.programs import Program
from stallscope.model.capture import Capture, Frame, Module, Thread

__all__ = ["Debuginfod", "Result", "symbolize"]

_SECONDS = 300.0
_FETCH_SECONDS = 600.0
_BUILD_ID = re.compile("[0-9a-f]{4,128}")


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
    is_pack: bool = False
    error: str | None = None
    symbols: list[_Symbol | None] = []


_NO_ANSWER = _Answer(id=-1, error="no answer from the probe")


class Debuginfod:
    """Fetch debug files with debuginfod-find, which keeps them in its cache."""

    def __init__(self) -> None:
        self._program = trust.find_program("debuginfod-find")
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
        program = Program([self._program, "debuginfo", build_id], output=True)
        done = program.run(_FETCH_SECONDS, leave_children=False)
        if done.code is None:
            raise StallscopeError(f"debuginfod: no answer in {_FETCH_SECONDS:g} s")
        lines = done.out.decode("utf-8", "surrogateescape").splitlines()
        if done.code or not lines:
            why = one_line(done.err.decode("utf-8", "backslashreplace")) or "not found"
            raise StallscopeError(f"debuginfod: {why}")
        return Path(lines[-1])


def symbolize(
    capture: Capture,
    *,
    debug_dir: Path | None,
    pack_dirs: Sequence[Path] = (),
    fetch: Callable[[str], Path] | None = None,
    again: bool = False,
) -> Result:
    """Name the frames without a symbol, or, with ``again``, all.

    A debug file comes before a pack.

    Only modules with a build-id are looked up: a path alone can be another file on this machine.
    """
    wanted = _wanted(capture, again=again)
    problems = []
    asked: list[tuple[Module, str, list[Frame]]] = []
    for module, frames in wanted.items():
        if not module.build_id:
            problems.append(f"{module.path}: no build-id in the capture: {len(frames)} frames stay")
        elif not _BUILD_ID.fullmatch(module.build_id):
            problems.append(f"{module.path}: {module.build_id} is not a build-id")
        else:
            asked.append((module, module.build_id, frames))
    innermost = {id(thread.frames[0]) for thread in capture.threads if thread.frames}
    queries = [_query(i, build_id, of, innermost) for i, (_, build_id, of) in enumerate(asked)]
    with tempfile.TemporaryDirectory(prefix="stallscope-") as folder:
        fetched = Path(folder)
        if fetch is not None:
            modules = [(module, build_id) for module, build_id, _ in asked]
            problems += _fetch_all(modules, fetch, fetched)
        debug_dirs = [fetched] if debug_dir is None else [debug_dir, fetched]
        answers = _ask(queries, debug_dirs, pack_dirs)
        for answer in answers.values():
            if answer.file is not None and Path(answer.file).is_relative_to(fetched):
                answer.file = os.path.realpath(answer.file)
    frames_new: dict[int, Frame] = {}
    files: dict[Module, _Answer] = {}
    for i, (module, _, frames) in enumerate(asked):
        found = answers.get(i, _NO_ANSWER)
        if found.error is not None or len(found.symbols) != len(frames):
            problems.append(f"{module.path} ({module.build_id}): {found.error or 'no answer'}")
            continue
        files[module] = found
        for frame, symbol in zip(frames, found.symbols, strict=True):
            if symbol is not None:
                frames_new[id(frame)] = msgspec.structs.replace(
                    frame,
                    symbol=symbol.symbol,
                    linkage=symbol.linkage,
                    symbol_offset=symbol.symbol_offset,
                )
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


def _query(number: int, build_id: str, frames: list[Frame], innermost: set[int]) -> bytes:
    """Return the line that asks for the frames of one module: docs/probe.md."""
    # Of a caller we know where it goes on, which can be behind its last instruction.
    addresses = (
        f"{frame.offset:#x}" if id(frame) in innermost else f"{frame.offset:#x}-1"
        for frame in frames
    )
    return f"{number} {','.join(addresses)} {build_id}".encode()


def _fetch_all(
    modules: list[tuple[Module, str]], fetch: Callable[[str], Path], folder: Path
) -> list[str]:
    """Lay fetched files out by build-id in the folder; return what could not be fetched."""
    problems = []
    for module, build_id in modules:
        try:
            found = fetch(build_id)
        except StallscopeError as error:
            problems.append(f"{module.path} ({build_id}): {error}")
            continue
        link = folder / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(found)
    return problems


def _ask(
    queries: list[bytes], debug_dirs: list[Path], pack_dirs: Sequence[Path]
) -> dict[int, _Answer]:
    if not queries:
        return {}
    args = ["symbolize", *(word for path in debug_dirs for word in ("--debug-dir", str(path)))]
    args += packs.probe_options(pack_dirs)
    out = probe.run(args, seconds=_SECONDS, stdin=b"\n".join(queries) + b"\n")
    try:
        answers = [msgspec.json.decode(line, type=_Answer) for line in out.splitlines() if line]
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise StallscopeError(f"{probe.PROBE} symbolize: not understood: {error}") from error
    return {answer.id: answer for answer in answers}


def _rebuild(capture: Capture, frames: dict[int, Frame], files: dict[Module, _Answer]) -> Capture:
    """Put the named frames, and the modules' debug files, in the place of the old."""
    modules = {
        module: msgspec.structs.replace(
            module, symbols="pack" if found.is_pack else "separate", debug_file=found.file
        )
        for module, found in files.items()
        if found.file
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
