# SPDX-License-Identifier: Apache-2.0
"""Dumps of stalls and of healthy servers that are made here, with their labels.

Each folder of ``tests/data/corpus`` is one moment of one server: ``meta.json`` says what is right
of it, and each other file is one dump, in one format.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

from backports import zstd

from stallscope.base.errors import StallscopeError
from tests.bench import progress
from tests.bench.labelled import OWN
from tests.bench.stats import Row, Section
from tests.support.corpusdumps import all_formats
from tests.support.servers import (
    ChildEnded,
    Late,
    MariaDB,
    MariaDB114,
    MySQL55,
    MySQL97,
    Postgres,
    Postgres17,
    SqlServer,
    Unavailable,
)
from tests.support.stall import STALLS
from tests.support.stalls import Device, loop_device
from tests.support.stalls.load import sysbench_load, sysbench_load_postgres
from tests.support.stalls.stall import DiskStall

__all__ = ["sections"]

TITLE = "Dumps with known causes, made here"
SERVERS: dict[str, Callable[[], Any]] = {
    "mariadb": MariaDB,
    "mariadb114": MariaDB114,
    "mysql55": MySQL55,
    "mysql97": MySQL97,
    "postgres": lambda: Postgres("fsync=on"),
    "postgres17": lambda: Postgres17("fsync=on"),
}
TESTS = ("oltp_read_write", "oltp_write_only", "oltp_point_select")
LOADS = {"high": (64, None), "middle": (16, 400)}
"""Connections, and transactions a second of all; None: as many as the server can do."""
POSTGRES_LOADS = {"high": (12, None), "middle": (6, 200)}
"""Fewer: each connection is a process, and they are dumped one after the other."""
UNIFORM = "--rand-type=uniform"
"""Else so many connections wait for the few rows that sysbench prefers that it is a stall."""
WARM = 2.0
FAMILIES = {"mariadb": "mariadb", "mysql": "mysql", "postgres": "postgres", "myrocks": "mariadb"}
LEVEL = 19


class Moment(NamedTuple):
    """What is dumped: a running server, and how it was made."""

    stall: str
    server: SqlServer | Postgres
    command: str
    version: str
    right: tuple[str, ...] = ()
    device: Device | None = None


def sections(server_name: str, quick: bool, only: Sequence[str]) -> Iterator[Section]:
    """Make what is not there yet: all, or ``healthy``, ``healthy-SERVER`` and stalls by name.

    ``quick``: of each healthy server one load.
    """
    del server_name
    loads = [name for name in SERVERS if _wanted(only, "healthy", f"healthy-{name}")]
    stalls = [name for name in STALLS if _wanted(only, "stalls", name)]
    rows: list[Row] = []
    left_out: list[str] = []
    for name in loads:
        _try(f"healthy-{name}", partial(_healthy, name, quick), rows, left_out)
    for name in stalls:
        _try(name, partial(_stalled, name), rows, left_out)
    progress("")
    yield Section("corpus", TITLE, tuple(rows), left_out=tuple(left_out))


def _wanted(only: Sequence[str], group: str, name: str) -> bool:
    return not only or group in only or name in only


def _try(
    name: str, make: Callable[[], Iterator[Row]], rows: list[Row], left_out: list[str]
) -> None:
    progress(name)
    try:
        rows.extend(make())
    except (Unavailable, Late, ChildEnded, StallscopeError, OSError) as error:
        left_out.append(f"{name}: {error}")


def _healthy(name: str, quick: bool) -> Iterator[Row]:
    loads = [(test, load) for test in TESTS for load in LOADS]
    wanted = [pair for pair in loads[: 1 if quick else None] if not _there(_title(*pair), name)]
    if not wanted and _there("healthy-idle", name):
        return
    with SERVERS[name]() as server:
        version = server.version()
        if not _there("healthy-idle", name):
            yield _kept(Moment("healthy-idle", server, "no load", version))
        for test, load in wanted:
            progress(f"{name}, {test}, {load}")
            with _load(server, test, load) as command:
                time.sleep(WARM)
                yield _kept(Moment(_title(test, load), server, command, version))


def _title(test: str, load: str) -> str:
    return f"healthy-{test.replace('_', '-')}-{load}"


@contextmanager
def _load(server: SqlServer | Postgres, test: str, load: str) -> Iterator[str]:
    threads, rate = (POSTGRES_LOADS if isinstance(server, Postgres) else LOADS)[load]
    options = (UNIFORM,) if rate is None else (UNIFORM, f"--rate={rate}")
    made: AbstractContextManager[object] = (
        sysbench_load_postgres(server, threads, test, *options)
        if isinstance(server, Postgres)
        else sysbench_load(server, threads, test, *options)
    )
    with made:
        yield " ".join(("sysbench", test, f"--threads={threads}", *options))


def _stalled(name: str) -> Iterator[Row]:
    if name in _made():
        return
    stall = STALLS[name]
    right = stall.expected.signatures
    command = f"scripts/stall {name}"
    if isinstance(stall, DiskStall):
        with (
            loop_device() as device,
            stall.server(device.folder) as server,
        ):
            version = server.version()  # it may not say so later
            with stall.make(server, device):
                yield _kept(Moment(name, server, command, version, right, device))
        return
    with stall.started() as (server, made):
        version = server.version()
        with made:
            yield _kept(Moment(name, server, command, version, right))


def _made() -> set[str]:
    """Return the stalls that have a folder."""
    return {json.loads(meta.read_text())["stall"] for meta in OWN.glob("*/meta.json")}


def _there(stall: str, server: str) -> bool:
    return (OWN / f"{stall}-{server}" / "meta.json").is_file()


def _kept(moment: Moment) -> Row:
    """Dump it, and write the files: the meta.json last, so that a folder with one is whole."""
    server = moment.server
    dumps = all_formats(server, moment.device, moment.right)
    name = f"{moment.stall}-{server.name}"
    folder = OWN / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    size = 0
    for file, text in sorted(dumps.items()):
        path = folder / f"{file}.zst"
        path.write_bytes(zstd.compress(text.encode(), LEVEL))
        size += path.stat().st_size
    threads = sum(line.startswith("Thread ") for line in dumps["gdb.txt"].splitlines())
    family = next(kind for start, kind in FAMILIES.items() if server.name.startswith(start))
    meta = {
        "stall": moment.stall,
        "server": server.name,
        "version": moment.version,
        "expect": list(moment.right),
        "source": name,
        "family": family,
        "tools": sorted(file.partition(".")[0] for file in dumps),
        "command": moment.command,
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    return Row(name, {"formats": str(len(dumps)), "threads": str(threads), "bytes": str(size)})
