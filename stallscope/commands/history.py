# SPDX-License-Identifier: Apache-2.0
"""What the threads of a server did in the last minutes: of the running agent, or sampled now."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from stallscope.base import times
from stallscope.base.errors import Exit, StallscopeError
from stallscope.collectors import processes, waits
from stallscope.collectors.processes import Server
from stallscope.commands import _common, _options, _store
from stallscope.commands._metricsfile import notice
from stallscope.model import threadhistory
from stallscope.model.waitlines import ThreadSample
from stallscope.reporters import lines, threads, units
from stallscope.store.history import AgentHistory, find

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope history -p mysqld
  stallscope history -p mariadbd --since 5m
  stallscope history -p 4711 --since '2026-11-21 14:50' --top 30
  stallscope history -p mysqld --live --duration 10 --json
"""

_DEFAULT_SINCE = "15m"
_LIVE_SECONDS = 5.0
_FRESH_NS = 60 * 10**9
"""An agent whose last sample is older has a probe that does not work."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _options.add_target_arguments(parser)
    what = parser.add_argument_group("collection")
    what.add_argument(
        "--since",
        default=_DEFAULT_SINCE,
        metavar="TIME",
        help="from TIME on: 30s, 5m ago, or '2026-11-21 14:50' (default 15m, which is all)",
    )
    _store.add_dest_argument(what)
    what.add_argument(
        "--live", action="store_true", help="do not ask the agent: sample now, for --duration"
    )
    what.add_argument(
        "--duration",
        type=_common.time_between(2, 900),
        default=_LIVE_SECONDS,
        metavar="SECONDS",
        help="how long to sample where there is no agent (default 5)",
    )
    _options.add_force_kernel_argument(what)
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print JSON (stallscope.history/1)")
    output.add_argument(
        "--top", type=_common.count, default=10, metavar="N", help="show N rows (default 10)"
    )


def run(args: argparse.Namespace) -> Exit:
    """Print what threads did."""
    since_ns = _store.since(args.since, "30s, 5m, or '2026-11-21 14:50'")
    pids, servers = processes.resolve(args.pid, _common.selector(args))
    kept = None if args.live else _of_agent(args, pids)
    if kept is not None:
        samples = [one for one in kept.samples if one.time_ns >= since_ns]
        source = f"history of the agent (pid {kept.target.agent})"
        agent = kept.target.agent
    else:
        samples = _sampled(args, pids)
        source = "sampled live" if args.live else "no agent watches it; sampled live"
        agent = None
    if args.json:
        main = servers[0]
        origin = "live" if agent is None else "agent"
        print(threads.dumps(samples, source=origin, agent=agent, name=main.name, pid=main.main.pid))
        return Exit.DONE
    _print(servers, samples, source, args)
    return Exit.DONE


def _of_agent(args: argparse.Namespace, pids: Sequence[int]) -> AgentHistory | None:
    """Return the history of the agent that watches one of the processes; None: there is none."""
    dest: Path = _store.reading_dest(args)
    try:
        found = find(dest, pids)
    except StallscopeError as error:
        notice(f"the agent's history is not read: {error}")
        return None
    if found is None or not found.samples:
        return None
    if time.time_ns() - found.samples[-1].time_ns > _FRESH_NS:
        last = times.local(found.samples[-1].time_ns)
        notice(f"the agent (pid {found.target.agent}) has no samples since {last}")
    return found


def _sampled(args: argparse.Namespace, pids: tuple[int, ...]) -> list[ThreadSample]:
    """Sample for some seconds, without attaching anything."""
    if not args.json:
        print(f"sampling for {units.duration(args.duration * 1000)} …", file=sys.stderr, flush=True)
    options = waits.Options(
        duration=args.duration,
        uprobes=False,
        force_kernel=args.force_kernel,
        at_rest=True,
        history=True,
    )
    found = [one for line, _ in waits.watch(pids, options, notice) for one in line.history]
    if not found:
        raise StallscopeError(
            "the probe took no samples of threads: see `stallscope doctor`, or use"
            " `stallscope snap`"
        )
    return sorted(found, key=lambda sample: sample.time_ns)


def _print(
    servers: Sequence[Server], samples: list[ThreadSample], source: str, args: argparse.Namespace
) -> None:
    width = lines.width_of(sys.stdout)
    title = ", ".join(f"{server.name} (pid {server.main.pid})" for server in servers)
    text = [*lines.wrap(f"{title}: {source}; {_span(samples)}", width, style="bold")]
    if samples:
        wide = threads.width_of_bucket(samples)
        text += [
            lines.Line(""),
            lines.Line(f"Threads on average, in steps of {units.duration(wide / 1e6)}", "dim"),
            *threads.table(threadhistory.buckets(samples, wide), width),
            lines.Line(""),
            *threads.top_lines(threadhistory.top(samples), len(samples), width, args.top),
        ]
    lines.print_lines(text, sys.stdout)


def _span(samples: Sequence[ThreadSample]) -> str:
    if not samples:
        return "no samples since then"
    many = "1 sample" if len(samples) == 1 else f"{len(samples)} samples"
    lasted = units.duration((samples[-1].time_ns - samples[0].time_ns) / 1e6)
    return f"{many} over {lasted}" if len(samples) > 1 else many
