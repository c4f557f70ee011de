# SPDX-License-Identifier: Apache-2.0
"""Command lines of ``stallscope-probe`` for processes that live."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stallscope.collectors import packs

__all__ = ["command", "given"]


def command(
    name: str,
    pids: tuple[int, ...],
    *,
    backend: str,
    ring: Path | None,
    force_kernel: bool,
    interval: float | None = None,
    top: int | None = None,
    uprobes: bool = True,
    at_rest: bool = False,
    history: bool = False,
    thresholds: Sequence[str] = (),
    pack_dirs: Sequence[Path] = (),
) -> list[str]:
    """Return what ``snap``, ``serve`` and ``waits`` have in common.

    ``interval``: seconds from one line of waits to the next; None: there are none.
    ``at_rest``: nothing is attached until a wait is long. ``history``: what threads do is sampled
    once a second. ``thresholds``: each as the probe takes it.
    ``pack_dirs``: directories of packs, before the usual ones.
    """
    args = [name, "--backend", backend]
    for pid in pids:
        args += ["--pid", str(pid)]
    args += given(("--ring", ring))
    args += packs.probe_options(pack_dirs)
    if force_kernel:
        args.append("--force")
    if interval is None:
        return args
    if name == "serve":
        args.append("--watch")
    args += given(("--interval", round(interval * 1000)), ("--top", top))
    if not uprobes:
        args.append("--no-uprobes")
    if at_rest:
        args.append("--at-rest")
    if history:
        args.append("--history")
    for threshold in thresholds:
        args += ["--threshold", threshold]
    return args


def given(*pairs: tuple[str, Path | str | int | None]) -> list[str]:
    """Return the options that have a value."""
    return [word for name, value in pairs if value is not None for word in (name, str(value))]
