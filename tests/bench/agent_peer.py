# SPDX-License-Identifier: Apache-2.0
"""The agent and pt-stalk on the same stall: what each recorded, and when."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

import msgspec

from stallscope.model.incident import Incident
from tests.bench import progress
from tests.bench.stats import BenchError, Row, Section
from tests.support.agents import agent
from tests.support.servers import Late, MariaDB, program, wait_until
from tests.support.stalls import metadata_lock_pileup

__all__ = ["section"]

THRESHOLD = 15
"""Threads_running, for pt-stalk; the stall has 21. The rest is as it comes."""
RUN_TIME = 5
SECONDS = 60.0


def section() -> Section:
    """Make a metadata lock pile-up; print what each tool recorded of it."""
    path = program("pt-stalk")
    if path is None:
        raise BenchError("no pt-stalk here: run scripts/setup --all")
    progress("pt-stalk and the agent on one stall")
    with (
        MariaDB() as server,
        tempfile.TemporaryDirectory(prefix="stallscope-bench-") as name,
        agent(server, Path(name) / "store") as watch,
    ):
        folder = Path(name) / "pt-stalk"
        folder.mkdir()
        peer = subprocess.Popen(
            [
                path,
                f"--dest={folder}",
                f"--log={name}/pt-stalk.log",
                f"--pid={name}/pt-stalk.pid",
                f"--threshold={THRESHOLD}",
                f"--run-time={RUN_TIME}",
                "--iterations=1",
                "--",
                f"--socket={server.socket}",
                "--user=root",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            with metadata_lock_pileup(server):
                begun = time.time()
                watch.wait(lambda: watch.of("stall"), "stall", SECONDS)
                notified = time.time()
                try:
                    wait_until(lambda: peer.poll() is not None, "pt-stalk ends", SECONDS)
                except Late:
                    raise BenchError("pt-stalk has collected nothing") from None
                ended = time.time()
        finally:
            peer.kill()
            peer.wait()
        files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)
        first = min((file.stat().st_mtime for file in files), default=None)
        stall = msgspec.convert(watch.of("stall")[0], Incident)
        rows = (ours(stall, begun, notified), theirs(files, first, begun, ended))
    return Section(
        "pt-stalk",
        "A metadata lock pile-up of 21 connections, seconds from when it was there",
        rows,
        notes=(
            f"pt-stalk: Threads_running > {THRESHOLD}, 5 cycles, 1 s, which are its defaults but"
            f" for the threshold (25); run-time {RUN_TIME} s; stacks by gdb are off by default",
            "negative: before the last of the connections was there",
        ),
    )


def ours(stall: Incident, begun: float, notified: float) -> Row:
    first, last = stall.captures[0], stall.captures[-1]
    verdict = stall.verdict
    return Row(
        "stallscope watch",
        {
            "noticed": f"{stall.start_ns / 1e9 - begun:.2f} s",
            "first stacks": f"{first.time_ns / 1e9 - begun:.2f} s",
            "last stacks": f"{last.time_ns / 1e9 - begun:.2f} s",
            "done": f"{notified - begun:.2f} s",
            "has": f"{len(stall.captures)} captures of all threads with their statements",
            "says": f"{verdict.signature} {verdict.confidence:.2f}" if verdict else "nothing",
        },
    )


def theirs(files: list[Path], first: float | None, begun: float, ended: float) -> Row:
    kinds = sorted({file.name.partition("-")[2] for file in files})
    stacks = [kind for kind in kinds if kind.startswith(("stacktrace", "pmp"))]
    return Row(
        "pt-stalk",
        {
            "noticed": "-" if first is None else f"{first - begun:.2f} s",
            "first stacks": "none" if not stacks else stacks[0],
            "last stacks": "none" if not stacks else stacks[-1],
            "done": f"{ended - begun:.2f} s",
            "has": f"{len(files)} files of status: {', '.join(kinds[:8])}, …",
            "says": "nothing",
        },
    )
