# SPDX-License-Identifier: Apache-2.0
"""What live processes write to their files, and their syncs: lines of the probe."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator

import msgspec

from stallscope.collectors.probe import ProbeError
from stallscope.collectors.probecommands import given
from stallscope.collectors.probestream import Stream
from stallscope.collectors.waits import ended_by_signals
from stallscope.model import storage
from stallscope.model.storage import StorageLine

__all__ = ["Options", "arguments", "watch"]

_GRACE_SECONDS = 60.0
"""Seconds that the probe may take beyond an interval: it searches for names of files."""


class Options(msgspec.Struct, frozen=True):
    """How long, and how often."""

    seconds: float | None = None
    """None: until it is ended, by a signal or because all processes have ended."""
    interval: float | None = None
    """Seconds from one line of a process to the next; None: only the first and the last line."""
    force_kernel: bool = False


def arguments(pids: tuple[int, ...], options: Options) -> list[str]:
    """Return the probe's command line."""
    args = ["storage"]
    for pid in pids:
        args += ["--pid", str(pid)]
    args += given(
        ("--seconds", _number(options.seconds)),
        ("--interval", _number(options.interval)),
    )
    if options.force_kernel:
        args.append("--force")
    return args


def _number(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.3f}"


def watch(pids: tuple[int, ...], options: Options) -> Generator[StorageLine, None, None]:
    """Yield the lines: of each process one at the start, without files, and a final one.

    From the first line on all is counted: facts that are compared with the totals, such as status
    counters of the server, are read when it comes, and again when the final one comes. Ctrl-C and
    SIGTERM end the probe, and the final lines still come. Raises: StallscopeError where the probe
    fails, or prints a line that does not match the schema.
    """
    with (
        Stream(arguments(pids, options), max_line=storage.MAX_LINE) as stream,
        ended_by_signals(stream.end),
    ):
        yield from _lines(stream, pids, options)


def _lines(stream: Stream, pids: tuple[int, ...], options: Options) -> Iterator[StorageLine]:
    running = set(pids)
    for number, data in enumerate(stream.lines(_patience(options), lambda: math.inf), 1):
        line = storage.loads(data, stream.name, number)
        if line.pid not in running:
            raise ProbeError(
                f"{stream.name}: line {number} is of process {line.pid}, of which none was expected"
            )
        if line.final:
            running.remove(line.pid)
        yield line
    if running:
        raise ProbeError(f"{stream.name} ended without the final line of process {min(running)}")


def _patience(options: Options) -> float:
    quiet = [one for one in (options.seconds, options.interval) if one is not None]
    return min(quiet, default=math.inf) + _GRACE_SECONDS
