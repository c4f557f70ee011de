# SPDX-License-Identifier: Apache-2.0
"""Say what works here, what is lost, and how to mend it."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import Literal

import msgspec

from stallscope import probe
from stallscope.collectors import processes, snapshot
from stallscope.commands import _common
from stallscope.errors import Exit, StallscopeError
from stallscope.model import Capture
from stallscope.reporters.terminal import Line, print_lines
from stallscope.text import clean, one_line

__all__ = ["EPILOG", "HELP", "Check", "add_arguments", "run"]

HELP = "say what works here, what does not, and how to mend it"
EPILOG = """\
examples:
  stallscope doctor
  sudo stallscope doctor -p mysqld
  stallscope doctor --json | jq -r '.checks[] | select(.status != "ok")'
"""

SCHEMA = "stallscope.doctor/1"
FEATURES_SCHEMA = "stallscope.features/1"
_SECONDS = 60.0

Status = Literal["ok", "degraded", "missing"]
_STYLES: dict[str, str] = {"ok": "green", "degraded": "yellow", "missing": "bold red"}


class Check(msgspec.Struct, frozen=True):
    """One line of the doctor."""

    name: str
    status: Status
    what: str
    """What was found, or what is lost."""
    mend: str | None = None
    """What to type, or to do."""


class _Feature(msgspec.Struct):
    ok: bool
    why: str | None = None
    mend: str | None = None


class _Features(msgspec.Struct):
    schema: str
    features: dict[str, _Feature]
    kernel: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _common.add_target_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print stallscope.doctor/1 instead")


def run(args: argparse.Namespace) -> Exit:
    """Check and print; code 3 where something is degraded, 1 where no capture is possible."""
    checks = [*_python(), *_tools(), *_probe()]
    selector = _common.selector(args)
    if args.pid or selector:
        checks += _process(args.pid, selector)
    if args.json:
        rows = [msgspec.structs.asdict(check) for check in checks]
        print(msgspec.json.encode({"schema": SCHEMA, "checks": rows}).decode())
    else:
        print_lines(list(_lines(checks)), sys.stdout)
    statuses = {check.status for check in checks}
    if "missing" in statuses:
        return Exit.FAILED
    return Exit.PARTIAL if "degraded" in statuses else Exit.DONE


def _python() -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check("python", "ok", f"Python {version}")
    who = "root" if os.geteuid() == 0 else f"uid {os.geteuid()}"
    yield Check("user", "ok", f"{who}; what it may do is below")
    if sys.version_info < (3, 14) and importlib.util.find_spec("backports.zstd") is None:
        yield Check(
            "zstd", "missing", "no compressed captures", "python3 -m pip install backports.zstd"
        )


def _tools() -> Iterator[Check]:
    for program, lost, mend in (
        ("gdb", "no gdb backend, the last resort", "apt-get install gdb"),
        ("debuginfod-find", "no symbolize --debuginfod", "apt-get install debuginfod"),
    ):
        path = shutil.which(program)
        if path is None:
            yield Check(program, "degraded", lost, mend)
        else:
            yield Check(program, "ok", path)


def _probe() -> Iterator[Check]:
    try:
        path = probe.find()
        yield Check(probe.PROBE, "ok", str(path))
        data = probe.run(["features"], seconds=_SECONDS)
        found = msgspec.json.decode(data, type=_Features)
    except probe.ProbeMissingError as error:
        mend = "./scripts/setup, or meson setup build && meson compile -C build"
        yield Check(probe.PROBE, "missing", str(error), mend)
        return
    except (StallscopeError, msgspec.MsgspecError, UnicodeError) as error:
        yield Check("features", "missing", f"the probe could not tell: {error}", "build it anew")
        return
    if found.schema != FEATURES_SCHEMA:
        what = f"the probe speaks {found.schema}, not {FEATURES_SCHEMA}"
        yield Check("features", "missing", what, "build probe and package from one version")
        return
    if found.kernel:
        yield Check("kernel", "ok", found.kernel)
    for name, feature in found.features.items():
        if feature.ok:
            yield Check(name, "ok", feature.why or "works")
        else:
            advice = feature.mend and probe.with_path(feature.mend, path)
            yield Check(name, "degraded", feature.why or "does not work here", advice)


def _process(targets: list[str], selector: processes.Selector) -> Iterator[Check]:
    """Capture the process once by the backend that stops nothing, and look at what is missing."""
    try:
        pids, servers = processes.resolve(targets, selector)
        server = servers[0]
        yield Check("server", "ok", f"{server.name}: {server}, {len(pids)} processes")
        capture = snapshot.take(pids, servers, snapshot.Options())
    except StallscopeError as error:
        what = " ".join(targets) or str(selector)
        yield Check("access", "missing", f"no capture of {what}: {error}", "see the lines above")
        return
    reason = f" ({capture.backend_reason})" if capture.backend_reason else ""
    yield Check("access", "ok", f"{len(capture.threads)} threads by {capture.backend}{reason}")
    yield from _symbols(capture)
    for note in capture.notes:
        yield Check(note.code, "degraded", note.message)


def _symbols(capture: Capture) -> Iterator[Check]:
    frames = {frame for thread in capture.threads for frame in thread.frames}
    unnamed = [frame for frame in frames if frame.symbol is None]
    by_path: dict[str, int] = {}
    for frame in unnamed:
        path = frame.module.path if frame.module else "(no file)"
        by_path[path] = by_path.get(path, 0) + 1
    named = f"{len(frames) - len(unnamed)} of {len(frames)} frames have a name"
    if not unnamed:
        yield Check("symbols", "ok", named)
    else:
        mend = "install the debug symbols of the server, or stallscope symbolize later"
        yield Check("symbols", "degraded", named, mend)
    for path, count in sorted(by_path.items(), key=lambda item: -item[1])[:5]:
        module = next((m for m in capture.modules if m.path == path), None)
        has = f", symbols: {module.symbols}, build-id {module.build_id}" if module else ""
        yield Check("symbols", "degraded", f"{path}: {count} frames without a name{has}")


def _lines(checks: list[Check]) -> Iterator[Line]:
    width = max(len(check.name) for check in checks)
    for check in checks:
        head = f"{check.status:<8} {clean(check.name):<{width}}  "
        for line in _wrap(check.what, head, width + 11):
            yield Line(line, _STYLES[check.status])
        if check.mend:
            for line in _wrap(f"-> {check.mend}", " " * (width + 11), width + 14):
                yield Line(line)


def _wrap(text: str, head: str, hang: int) -> list[str]:
    return textwrap.wrap(
        one_line(text),
        width=max(80, hang + 40),
        initial_indent=head,
        subsequent_indent=" " * hang,
        break_on_hyphens=False,
        break_long_words=False,  # what is to be typed can be copied
    )
