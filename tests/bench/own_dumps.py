# SPDX-License-Identifier: Apache-2.0
"""Whether a live stall has one verdict from each tool: own capture, eu-stack and gdb.

A stall that stands still is dumped by one tool after the other. One whose waits turn over in
milliseconds is another one by the time that the next tool reads it: its moment is held as well,
with SIGSTOP, so that all see the same. eu-stack and gdb wait for a thread in an uninterruptible
sleep for as long as it lasts: where a disk does not answer, the own capture is taken, then the
process is stopped, then the disk is released, and then they read what has not moved.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from tests.bench import progress
from tests.bench.stats import BenchError, Row, Section
from tests.support.dumps import TOOLS, Verdict, held, verdict
from tests.support.servers import MariaDB, MySQL55, MySQL97, SqlServer, Unavailable, program
from tests.support.stall import STALLS
from tests.support.stalls import (
    FILE_EXTEND_OPTIONS,
    REDO_SYNC_OPTIONS,
    Device,
    device_missing,
    loop_device,
)
from tests.support.stalls.stall import DiskStall, SmallDiskStall, Stall
from tests.support.targets import trouble

__all__ = ["FROZEN", "HELD", "TURNS", "Round", "section", "table"]

TITLE = "First findings on live stalls, by who dumped them (confidence, threads)"
ALL: tuple[type[SqlServer], ...] = (MariaDB, MySQL55, MySQL97)
STANDING = ("metadata-lock", "metadata-lock-select", "global-read-lock", "row-lock")
MOVING = ("deadlock-check", "table-open-lock", "index-lock")
DISK = {"redo-sync": REDO_SYNC_OPTIONS, "file-extend": FILE_EXTEND_OPTIONS}
PLACES: tuple[tuple[str, type[SqlServer]], ...] = (
    *((name, kind) for name in STANDING for kind in ALL),
    *(("redo-sync", kind) for kind in (MariaDB, MySQL55)),
    ("file-extend", MySQL55),
    *((name, MySQL55) for name in MOVING),
)
"""Each stall with the servers that have it."""
NOT_MADE = ("redo-sync on mysql97: its disk frozen, it hung before the stall was seen to be there",)
OWN = "own capture"
ROUNDS = 3
TURNS, HELD, FROZEN = "in turns", "held", "disk frozen"


class Round(NamedTuple):
    """What stallscope says of one stall, by tool. ``how`` it was dumped: as above."""

    stall: str
    server: str
    how: str
    verdicts: dict[str, Verdict]

    @property
    def one_moment(self) -> bool:
        """Return whether all tools saw the same: the stall stood still, or was held."""
        return self.how != TURNS or self.stall not in MOVING

    @property
    def same(self) -> bool:
        """Return whether all found one stall, be it one that no signature knows."""
        found = self.verdicts.values()
        return all(v.found for v in found) and len({v.signature for v in found}) == 1


def section(quick: bool) -> Section:
    """Return the table of verdicts on live stalls."""
    if reason := _missing():
        return Section("live", TITLE, (), left_out=(reason,))
    rounds: list[Round] = []
    left_out = list(NOT_MADE)
    for name, kind in PLACES:
        progress(f"{name} on {kind.name}")
        try:
            rounds += _rounds(name, kind, 1 if quick else ROUNDS)
        except Unavailable as error:
            left_out.append(f"{name} on {kind.name}: {error}")
    progress("")
    return table(rounds, left_out)


def table(rounds: Sequence[Round], left_out: Sequence[str]) -> Section:
    """Return the table of these rounds."""
    rows = []
    numbers: Counter[tuple[str, str, str]] = Counter()
    for one in rounds:
        numbers[one[:3]] += 1
        number = f" {numbers[one[:3]]}" if one.stall in MOVING else ""
        cells = {tool: str(found) for tool, found in one.verdicts.items()}
        cells["same"] = "yes" if one.same else "NO"
        rows.append(Row(f"{one.stall}, {one.server}, {one.how}{number}", dict(cells)))
    moments = [one for one in rounds if one.one_moment]
    others = [one for one in rounds if not one.one_moment]
    notes = []
    if others:
        notes.append(
            f"of stalls that move, dumped by one tool after the other, {_same(others)}:"
            " these are different moments"
        )
    return Section(
        "live",
        TITLE,
        tuple(rows),
        checks=("after each round the server answers, and no thread is stopped or traced",),
        goals=((f"of one moment, {_same(moments)}; goal all", all(one.same for one in moments)),),
        left_out=tuple(left_out),
        notes=tuple(notes),
    )


def _same(rounds: Sequence[Round]) -> str:
    return f"{sum(one.same for one in rounds)} of {len(rounds)} have one verdict from all tools"


def _missing() -> str | None:
    if os.geteuid() != 0:
        return "live stalls need root"
    for name in ("gdb", "eu-stack"):
        if program(name) is None:
            return f"no {name} here: run scripts/setup --all"
    return None


def _rounds(name: str, kind: type[SqlServer], count: int) -> list[Round]:
    stall = STALLS[name]
    if isinstance(stall, DiskStall):
        return [Round(name, kind.name, FROZEN, _on_disk(name, stall, kind))]
    if name in MOVING:
        return [Round(name, kind.name, *item) for item in _moving(stall, count)]
    with stall._replace(server=kind).started() as (server, made), made:
        return [Round(name, kind.name, TURNS, _dumped(server))]


def _moving(stall: Stall | SmallDiskStall, count: int) -> list[tuple[str, dict[str, Verdict]]]:
    with stall.started() as (server, made), made:
        done = [(TURNS, _dumped(server)) for _ in range(count)]
        return done + [(HELD, _dumped(server, hold=True)) for _ in range(count)]


def _on_disk(name: str, stall: DiskStall, kind: type[SqlServer]) -> dict[str, Verdict]:
    if reason := device_missing():
        raise Unavailable(reason)
    with (
        loop_device() as device,
        kind(*DISK[name], parent=device.folder) as server,
        stall.make(server, device),
    ):
        return _dumped(server, device=device)


def _dumped(
    server: SqlServer, *, device: Device | None = None, hold: bool = False
) -> dict[str, Verdict]:
    """Dump a server with all tools and return the verdicts; it must not have been harmed."""
    with tempfile.TemporaryDirectory(prefix="stallscope-dumps-") as folder:
        files = {tool: Path(folder) / tool.replace(" ", "-") for tool in TOOLS}
        tools = list(TOOLS)
        if device is not None:
            tools.remove(OWN)
            TOOLS[OWN](server, files[OWN])
        with held(server.pid, device) if hold or device else nullcontext():
            for tool in tools:
                TOOLS[tool](server, files[tool])
        if left := trouble(server.pid):
            raise BenchError(f"{server.name} was harmed: {', '.join(left)}")
        if not server.answers():
            raise BenchError(f"{server.name} does not answer any more")
        return {tool: verdict(file) for tool, file in files.items()}
