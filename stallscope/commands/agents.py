# SPDX-License-Identifier: Apache-2.0
"""Show all agents of this host: what each watches, and what it does not see, keep or deliver."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stallscope.agent import agentfile
from stallscope.agent.agentfile import AgentReport, ServerReport
from stallscope.base.errors import Exit
from stallscope.base.text import clean, without_surrogates
from stallscope.base.times import local
from stallscope.collectors import pins
from stallscope.collectors.paths import asking
from stallscope.commands import _store
from stallscope.reporters.lines import Line, print_lines
from stallscope.store import layout, owners

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope agents
  stallscope agents --json | jq '.agents[].servers[] | select(.health.status != "ok")'
"""

MOST_AGENTS = 1000
STALE_SECONDS = 4 * agentfile.WRITE_SECONDS
"""What an agent said is old then: its disk, or the agent, hangs."""
_TRIES = 3
"""Of a file that is just being written."""
_OWNED_FOLDER = re.compile(rf"(/.*)/{layout.SPOOL}/([^/]+)")
_COMMANDS = frozenset({b"watch", b"cron"})
_MOST_DESCRIPTORS = 4096
_decoder = msgspec.json.Decoder(AgentReport)


class Found(msgspec.Struct, frozen=True):
    """An agent, or the store in which there may be some."""

    dest: str
    lives: bool | None = None
    """None: not known."""
    report: AgentReport | None = None
    error: str | None = None
    """Why there is no report."""
    owner: int | None = None
    """The user of its folder: it is this user who says all that is in the report."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _store.add_dest_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> Exit:
    """Print them."""
    given: Path | None = args.dest
    stores = list(_stores()) if given is None else [str(given.absolute())]
    found = [one for store in stores for one in _in_store(store)]
    now = time.time()
    if args.json:
        value = {
            "schema": "stallscope.agents/1",
            "agents": [
                {
                    "dest": one.dest,
                    "owner": one.owner,
                    "lives": one.lives,
                    "error": one.error,
                    "stale": _is_stale(one, now),
                    **(msgspec.to_builtins(one.report) if one.report is not None else {}),
                }
                for one in found
            ],
        }
        json.dump(without_surrogates(value), sys.stdout)
        print()
        return Exit.DONE
    lines = [line for one in found for line in _lines(one, now)]
    if not lines:
        lines = [f"no agent runs on this host, as far as user {os.geteuid()} may see"]
    print_lines([Line(clean(line)) for line in lines], sys.stdout)
    return Exit.DONE


def _stores() -> Iterator[str]:
    """Yield the stores that an agent of this host may use, each once."""
    seen = set()
    for path in dict.fromkeys((str(layout.reading_dest()), str(layout.SYSTEM_DEST), *_in_use())):
        try:
            status = asking.status(path)
        except asking.SilentDiskError:
            yield path
        except OSError:
            continue
        else:
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                yield path


def _in_use() -> Iterator[str]:
    """Yield the stores in which a process of this program holds its folder."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        process = Path("/proc", name)
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if not _COMMANDS & set(words) or not any(b"stallscope" in word for word in words[:4]):
                continue
            descriptors = os.listdir(process / "fd")[:_MOST_DESCRIPTORS]
        except OSError:
            continue
        for one in descriptors:
            try:
                match = _OWNED_FOLDER.fullmatch(os.readlink(process / "fd" / one))
            except OSError:
                continue
            if match is not None and owners.is_owner(match[2]):
                yield f"{process}/root{match[1]}" if _has_own_root(process) else match[1]


def _has_own_root(process: Path) -> bool:
    """Return whether a process has another mount namespace: its paths may be others."""
    try:
        return os.readlink(process / "ns" / "mnt") != os.readlink("/proc/self/ns/mnt")
    except OSError:
        return False


def _in_store(dest: str) -> Iterator[Found]:
    above = f"{dest}/{layout.SPOOL}"
    try:
        names = sorted(filter(owners.is_owner, asking.names(above, MOST_AGENTS)))
    except FileNotFoundError:
        return
    except OSError as error:
        yield Found(dest, error=error.strerror or str(error))
        return
    for name in names:
        folder = f"{above}/{name}"
        try:
            lives, owner = asking.is_held(folder), asking.status(folder).st_uid
            yield msgspec.structs.replace(_read(dest, folder), lives=lives, owner=owner)
        except FileNotFoundError:
            continue  # it has just ended
        except OSError as error:
            yield Found(dest, error=error.strerror or str(error))


def _read(dest: str, folder: str) -> Found:
    for _ in range(_TRIES):
        try:
            data, _ = asking.read(f"{folder}/{agentfile.NAME}", agentfile.MAX_BYTES)
        except FileNotFoundError:
            return Found(dest, error="it has just been started, or is an earlier version")
        try:
            return Found(dest, report=_decoder.decode(data))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue
    return Found(dest, error=f"{folder}/{agentfile.NAME} cannot be read")


def _is_stale(found: Found, now: float) -> bool:
    return found.report is not None and now - found.report.written > STALE_SECONDS


def _lines(found: Found, now: float) -> Iterator[str]:
    report = found.report
    if report is None:
        yield f"agent in {found.dest}: {found.error}"
        return
    by = "" if found.owner is None else f" of {pins.user(found.owner)}"
    yield (
        f"agent pid {report.pid}{by} on {report.host}, version {report.version}, since"
        f" {_time(report.started)}, store {found.dest}"
    )
    if found.lives is False:
        yield f"  it was killed after {_time(report.written)}; what follows was true then"
    elif _is_stale(found, now):
        yield (
            f"  its latest word is {_ago(report.written, now)} old: the agent, or the disk of its"
            " store, hangs; what follows was true then"
        )
    for server in report.servers:
        yield from (f"  {line}" for line in _of_server(server, now))


def _of_server(server: ServerReport, now: float) -> Iterator[str]:
    health, state = server.health, server.health.state
    running = [] if state.pid is None else [f"pid {state.pid}"]
    running += [] if state.uid is None else [pins.user(state.uid)]
    running += [] if state.datadir is None else [f"data in {state.datadir}"]
    named = f" ({server.name})" if server.name != state.server else ""
    what = ", ".join(running) or "no pid"
    yield f"{state.server}{named}: {server.state}, {health.status}; {what}"
    times = (("answer", state.answered), ("poll", state.last_poll), ("capture", state.last_capture))
    yield "  last " + ", ".join(
        f"{name} {'never' if at is None else _ago(at, now) + ' ago'}" for name, at in times
    )
    yield from (f"  wrong: {why}" for why in health.wrong)
    yield from (f"  open alert: {alert}" for alert in state.alerts)
    for name, count in sorted(state.waiting.items()):
        if count:
            yield f"  {count} deliveries wait for {name}"
    yield from (f"  collector {name}: {why}" for name, why in sorted(state.failing.items()))


def _time(seconds: float) -> str:
    return local(round(seconds * 1e9))[:19]


def _ago(then: float, now: float) -> str:
    seconds = max(0.0, now - then)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
