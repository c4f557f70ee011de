# SPDX-License-Identifier: Apache-2.0
"""``--backend inproc`` and ``--ring``, for the commands that have them."""

from __future__ import annotations

import argparse

from stallscope.base.errors import StallscopeError, UsageError
from stallscope.collectors import processes, rings
from stallscope.collectors.processes import Choose, Selector, Server
from stallscope.model.rings import Life, RingError

__all__ = ["backend", "resolve"]


def backend(args: argparse.Namespace) -> str:
    """Return the backend: ``inproc`` where a ring was named."""
    if args.ring is None:
        return str(args.backend)
    if args.backend not in ("auto", "inproc"):
        raise UsageError(f"--ring needs --backend inproc, not {args.backend}")
    return "inproc"


def resolve(
    args: argparse.Namespace,
    targets: list[str],
    selector: Selector,
    choose: Choose | None = None,
) -> tuple[tuple[int, ...], tuple[Server, ...]]:
    """Find the named servers, or else the server of the named ring."""
    folder = args.ring is not None and args.ring.is_dir()
    if folder and not (targets or selector):
        raise UsageError(f"{args.ring} is a directory: also give -p PID, or --ring FILE")
    if args.ring is None or folder or targets or selector:
        pids, servers = processes.resolve(targets, selector, choose=choose)
        if args.ring is not None and not folder and len(pids) != 1:
            raise UsageError(
                f"--ring FILE names one process's ring, and {len(pids)} processes were given"
            )
        return pids, servers
    (found,) = rings.look([args.ring])
    if found.error is not None:
        raise RingError(found.error)
    if found.process is not None:
        return processes.resolve([str(found.process)], Selector())
    if found.life is Life.UNKNOWN:
        raise StallscopeError(f"{args.ring}: its server is in another PID namespace; give -p PID")
    raise StallscopeError(
        f"{args.ring}: its server has ended; `stallscope analyze {args.ring}` shows what it"
        " waited for"
    )
