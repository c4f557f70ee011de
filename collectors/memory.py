# SPDX-License-Identifier: Apache-2.0
"""Run ``stallscope-probe growth``: page faults of one process with their stacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from stallscope.collectors import packs
from stallscope.collectors.probe import ProbeError
from stallscope.collectors.probecommands import given
from stallscope.collectors.probestream import Stream
from stallscope.model.memory import MAX_BYTES, Growth, decode_growth

__all__ = ["Options", "record"]

_START_SECONDS = 60.0
"""For reading what the process has: 8 bytes for each page of its memory."""
_END_SECONDS = 120.0


class Options(msgspec.Struct, frozen=True):
    """The user's options."""

    seconds: float = 30.0
    debug_dir: Path | None = None
    pack_dirs: tuple[Path, ...] = ()
    max_stack: int | None = None
    stacks: int | None = None
    """Stacks that are copied in a second."""


def arguments(pid: int, options: Options) -> list[str]:
    """Return the probe's command line."""
    args = ["growth", "--pid", str(pid), "--duration", f"{options.seconds:.3f}"]
    args += given(
        ("--debug-dir", options.debug_dir),
        ("--max-stack", options.max_stack),
        ("--stacks", options.stacks),
    )
    return args + packs.probe_options(options.pack_dirs)


def record(
    pid: int,
    options: Options,
    *,
    ready: Callable[[], None] = lambda: None,
    ended: Callable[[], bool] = lambda: False,
) -> Growth:
    """Record for as long as the options say. ``ready`` is called once it records; ``ended`` says
    whether to end early, and is asked several times a second.

    Raises: ProbeError, UsageError.
    """
    growth: Growth | None = None
    with Stream(arguments(pid, options), max_line=MAX_BYTES, end_seconds=_END_SECONDS) as stream:

        def tick() -> float:
            if ended() and not stream.ending:
                stream.end()
            return 0.2

        patience = _START_SECONDS + options.seconds + _END_SECONDS
        for number, line in enumerate(stream.lines(patience, tick)):
            if not number:
                ready()
            growth = decode_growth(line) or growth
    if growth is None:
        raise ProbeError(f"{stream.name} ended without a result")
    return growth
