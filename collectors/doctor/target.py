# SPDX-License-Identifier: Apache-2.0
"""The server: its containers, and one capture that shows what can be read and named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.collectors import snapshot
from stallscope.collectors.doctor.checks import Check, Place
from stallscope.collectors.doctor.packages import how_to_get
from stallscope.collectors.processes import Server
from stallscope.model.capture import Capture, Module

__all__ = ["access", "calibration", "namespaces"]

_FILES = 5
"""The most functions without names that are listed."""
_MAX_FILES = 64
"""The most mapped files that are listed."""
_COMPLETE = frozenset({"pack", "separate", ".symtab", ".gnu_debugdata"})
_SPACES = ("pid", "mnt", "net", "user", "cgroup")


def namespaces(place: Place) -> Iterator[Check]:
    """Say in which namespaces of its own the server is, and what that means here."""
    server = place.server
    if server is None:
        return
    pid = server.main.pid
    others, unread = [], []
    for name in _SPACES:
        own = place.link(f"/proc/self/ns/{name}")
        its = place.link(f"/proc/{pid}/ns/{name}")
        if its is None:
            unread.append(name)
        elif its != own:
            others.append(name)
    if unread:
        what = f"the namespaces of pid {pid} cannot be read: {', '.join(unread)}"
        yield Check("server-container", "degraded", what, "run it with sudo")
    elif not others:
        yield Check("server-container", "ok", "the server is not in a container")
    else:
        what = f"the server has its own namespaces ({', '.join(others)})"
        if "mnt" in others:
            what += "; its files are read through /proc/PID/root"
        if "pid" in others:
            what += "; SQL shows thread ids of its container"
        yield Check("server-container", "ok", what + _cgroup(place, pid))


def _cgroup(place: Place, pid: int) -> str:
    text = place.text(f"/proc/{pid}/cgroup") or ""
    paths = [line.rpartition(":")[2] for line in text.splitlines()]
    path = next((path for path in paths if path != "/"), "")
    return f"; cgroup {path}" if path else ""


def access(
    pids: tuple[int, ...], servers: tuple[Server, ...], pack_dirs: tuple[Path, ...] = ()
) -> Iterator[Check]:
    """Capture the processes once by a backend that stops nothing, and report what is missing."""
    try:
        capture = snapshot.take(pids, servers, snapshot.Options(pack_dirs=pack_dirs)).capture
    except StallscopeError as error:
        yield Check("access", "missing", f"no capture: {error}", "see the lines above")
        return
    reason = f" ({capture.backend_reason})" if capture.backend_reason else ""
    yield Check("access", "ok", f"{len(capture.threads)} threads by {capture.backend}{reason}")
    yield from _symbols(capture)
    yield from _files(capture)
    for note in capture.notes:
        yield Check(note.code, "degraded", note.message)


def calibration(pid: int) -> Iterator[Check]:
    """Say whether connections are known when SQL does not answer."""
    from stallscope.collectors.calibration import layouts

    known = layouts.of_process(pid, checked=True)
    if known.calibration is None:
        what = f"no connections and statements when SQL does not answer: {known.reason}"
        yield Check("calibration", "degraded", what, f"stallscope calibrate -p {pid}")
        return
    missing = f"; not known: {', '.join(known.calibration.unknown)}"
    what = "connections and statements are known when SQL does not answer, from memory"
    yield Check("calibration", "ok", what + (missing if known.calibration.unknown else ""))


def _symbols(capture: Capture) -> Iterator[Check]:
    frames = {frame for thread in capture.threads for frame in thread.frames}
    unnamed = Counter(
        frame.module.path if frame.module else "(no file)" for frame in frames if not frame.symbol
    )
    named = f"{len(frames) - unnamed.total()} of {len(frames)} frames have names"
    if not unnamed:
        yield Check("symbols", "ok", named)
        return
    yield Check("symbols", "degraded", named, "see the files below")
    modules = {module.path: module for module in capture.modules}
    for path, count in unnamed.most_common(_FILES):
        module = modules.get(path)
        many = "1 frame" if count == 1 else f"{count} frames"
        what = f"{path}: {many} without a name"
        yield Check("symbols", "degraded", what + _has(module), how_to_get(path, module))


def _has(module: Module | None) -> str:
    if module is None:
        return ""
    return f", symbols: {module.symbols or 'none'}, build-id {module.build_id or 'none'}"


def _files(capture: Capture) -> Iterator[Check]:
    """Say for each mapped file where its names come from; a file of several processes once."""
    modules = {module.path: module for module in capture.modules if module.path.startswith("/")}
    for path in list(modules)[:_MAX_FILES]:
        module = modules[path]
        complete = module.symbols in _COMPLETE
        yield Check(
            "file",
            "ok",
            f"{path}: {_source(module)}",
            None if complete or module.deleted else how_to_get(path, module),
        )
    if len(modules) > _MAX_FILES:
        yield Check("file", "ok", f"{len(modules) - _MAX_FILES} more files are mapped")


def _source(module: Module) -> str:
    match module.symbols:
        case "pack":
            return f"names by the pack {module.debug_file}"
        case "separate":
            return f"names by the debug file {module.debug_file}"
        case ".symtab":
            return "it has its own symbols"
        case ".gnu_debugdata":
            return "it has the names of its functions (.gnu_debugdata)"
        case ".dynsym":
            return "only the names of exported functions; no debug file and no pack is there"
        case _:
            return "no names; no debug file and no pack is there"
