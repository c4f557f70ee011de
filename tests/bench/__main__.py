# SPDX-License-Identifier: Apache-2.0
"""The command line of scripts/bench."""

from __future__ import annotations

import argparse
import functools
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from stallscope.base.errors import StallscopeError
from tests.bench import (
    accuracy,
    agent,
    agent_faultmoments,
    analyze,
    capture,
    cli,
    corpus,
    endings,
    endurance,
    experiments,
    fit,
    fleet,
    inproc,
    introspection,
    lighthouse,
    likeness,
    memory,
    mutants,
    overhead,
    pause,
    poke,
    probes,
    progress,
    report,
    storage_cache,
    storage_sync,
    storage_writes,
    top,
    verdict,
)
from tests.bench.fleet_options import sized
from tests.bench.load import SERVERS
from tests.bench.stats import BenchError, Section, render
from tests.support.servers import ChildEnded, Late, Unavailable
from tests.support.targets import TargetError

EPILOG = """\
pause    what a capture does to the target: target-gaps, eintr, server-gaps, latency
capture  what a capture costs: wall, growth, kills, mysql55, server-wall, busy;
         by its name alone: exact-stacks, minutes; kills-snap-bpf,
         kills-serve-bpf and so on are one way of running the probe each
probes   what watching waits costs, and whether it is right and in time: exact, cost-call,
         cost-need, cost-programs-oltp_point_select, cost-programs-oltp_write_only,
         throughput-storm, latency-event, latency-capture, throughput-oltp_point_select,
         throughput-oltp_write_only; "throughput" is all that begin so
inproc   what the in-process library costs a server that has it inside: lock, transfer, stack,
         contended-pass, contended-storm, memory, reader, share, throughput-oltp_point_select,
         throughput-oltp_write_only; by its name alone: soak, of --minutes
introspection
         connections read from memory, compared with SQL under load, and the time that it takes;
         mysql55, mysql97, mariadb, mariadb114, mariadb114-stripped, postgres, postgres17; many:
         thousands of connections
agent    what the agent costs and how soon it captures: cost, throughput, delay-sql, delay-probe,
         pt-stalk, scrape, servers; what SQL costs a server: lock-waits, postgres; with --faults,
         whether a stall is notified once and in time while output, disks, webhook, server, probe
         or clock fail: --only BEGINNING of a fault's name; and with faults at --moments N random
         ones (200) of --seed: --only KIND (one alone: --moments 1 and its seed); --page writes the
         latest into docs/operations.md; with --month, what 30 days of incidents and reloads leave
         in memory, in minutes
overhead what the agent costs where nothing waits, by its parts, and whether it is in time:
         attribution-oltp_point_select, attribution-oltp_write_only, calls, figures-rest,
         figures-latency, figures-stalls, figures-cpu-oltp_point_select,
         figures-cpu-oltp_write_only, figures-pairs-oltp_point_select,
         figures-pairs-oltp_write_only, graph; "figures" is all that begin so
accuracy verdicts on dumps with known causes, whose sources the confidence was not fitted to:
         left-out, reliability, damage, and known, unknown (no root); on live stalls, by who dumped
         them: live; how the findings of one dump came about: --explain FILE
corpus   makes the dumps of tests/data/corpus that are not there yet: healthy, stalls;
         healthy-SERVER, or the name of a stall (scripts/stall --help)
fit      fit the confidence to all dumps with known causes, and write it (no root)
fleet    simulated hosts and their engines (no root): minute, 3,000 agents while a shard and some
         agents are killed; history, a million incidents at once; questions about them; agent, what
         shipping costs a host; growth, from 10 to 10,000 hosts; --hosts and --incidents make them
         smaller; results go to build/fleet-bench, and --page prints the latest
top      what `stallscope top` costs: cpu
analyze  how fast gdb's text is read, and in how much memory: speed, memory (no root)
verdict  whether one burst names a live stall, and is silent without one: stalls, healthy, cost,
         sampling; the name of a stall (scripts/stall --help), or healthy-SERVER
endings  whether the statement that the first lines print ends a live stall; --only NAME of one
         (scripts/stall --help)
experiments
         the experiments of the documents that this project comes from (docs/experiments.md):
         one-row-update, opening-tables, fat-rows, acid, rows-per-transaction, doublewrite,
         read-ahead, partitions, thread-concurrency, lock-open, force-index, snapshots,
         connections, jemalloc; results go to --results; --page writes these into the page
report   how long the HTML report takes to write and to open in Chromium, and its size (no root)
lighthouse
         what Lighthouse says of the report's accessibility: a score of 100 (no root)
likeness whether unknown stalls are grouped by what they are: dumps without their signatures; own,
         public (no root)
storage-sync
         whether `storage sync` predicts commits a second at each durability setting, from a
         measurement at one of them: mysql55, mariadb, mysql97; --clients, --delay, --from
memory   whether stacks explain the memory that a server takes, and what watching it costs:
         growth-mysql55, growth-mariadb, growth-mysql97, cost-mysql55, cost-mariadb, cost-mysql97,
         cost-fault, faults-mysql55, faults-mariadb, faults-mysql97
soak     what the tool holds after thousands of captures and after hours: captures, agent (of
         --minutes); and what it does with very much: scale, churn, servers
mutants  whether a test of the first two sizes fails when one line of a product module does
         something else; --only GLOB of modules, --since REV; --compare RESULTS: those caught
         before and not now (no root; as root, of more tests)
storage-writes
         whether storage writes has the bytes that the kernel counts, and what settings change in
         them: classes, doublewrite, settings; what the kernel charges for small writes: folios;
         what it costs the server: cost
storage-cache
         `storage cache`: files, exact, cost, uncache (--server mysql97: MySQL 9.7)
poke     what a poke does to MySQL 5.5.9, and whether it is always undone: read-ahead, pokes, kills,
         restart, direct-io
cli      how soon a command starts, what commands without a server and exports cost: start,
         commands, export (no root)

Needs root, the peers (gdb, elfutils, percona-toolkit, bpftrace, bcc) and sysbench:
scripts/setup --all.
Exit code: 0 every goal met, 1 a measurement failed, 3 a goal was missed.
"""

BENCHES: dict[str, Callable[..., Iterator[Section]]] = {
    "accuracy": accuracy.sections,
    "agent": agent.sections,
    "analyze": analyze.sections,
    "endings": endings.sections,
    "experiments": experiments.sections,
    "report": report.sections,
    "pause": pause.sections,
    "poke": poke.sections,
    "capture": capture.sections,
    "cli": cli.sections,
    "corpus": corpus.sections,
    "fit": fit.sections,
    "fleet": fleet.sections,
    "inproc": inproc.sections,
    "introspection": introspection.sections,
    "lighthouse": lighthouse.sections,
    "likeness": likeness.sections,
    "memory": memory.sections,
    "mutants": mutants.sections,
    "overhead": overhead.sections,
    "probes": probes.sections,
    "soak": endurance.sections,
    "storage-writes": storage_writes.sections,
    "storage-sync": storage_sync.sections,
    "storage-cache": storage_cache.sections,
    "top": top.sections,
    "verdict": verdict.sections,
}
ROOTLESS = {
    "accuracy",
    "analyze",
    "cli",
    "fit",
    "fleet",
    "lighthouse",
    "likeness",
    "mutants",
    "report",
}
EXPERIMENTS = Path("build/experiments")
ANY_SERVER = {"inproc", "probes"}
LENGTHS = {
    "inproc": inproc.SOAK_MINUTES,
    "overhead": overhead.GRAPH_MINUTES,
    "soak": endurance.AGENT_MINUTES,
}
"""Minutes, where nobody says otherwise."""


def version(*argv: str) -> str:
    """Return the first line that a program says of itself."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20)
    except OSError:
        return "missing"
    lines = (done.stdout or done.stderr).splitlines()
    return lines[0] if lines else "?"


def environment() -> dict[str, str]:
    """Say on what was measured."""
    model = next(
        (line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "model name: ?",
    )
    return {
        "kernel": platform.release(),
        "cpus": f"{os.cpu_count()} x {model.partition(':')[2].strip()}",
        "load average at start": f"{os.getloadavg()[0]:.2f}",
        "gdb": version("gdb", "--version"),
        "eu-stack": version("eu-stack", "--version"),
        "pt-pmp": version("pt-pmp", "--version"),
        "bpftrace": version("bpftrace", "--version"),
        "sysbench": version("sysbench", "--version"),
        "libc6-dbg": "installed" if Path("/usr/lib/debug/.build-id").is_dir() else "absent",
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure stallscope and other tools, in one run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bench", choices=list(BENCHES))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: minutes, not an hour")
    parser.add_argument("--server", choices=list(probes.SERVERS), default="mariadb")
    parser.add_argument(
        "--only", "--part", action="append", default=[], metavar="TABLE", help="see below"
    )
    parser.add_argument(
        "--faults", action="store_true", help="agent: what it notifies of while something fails"
    )
    of_agent = parser.add_argument_group("agent")
    of_agent.add_argument(
        "--moments", type=count, metavar="N", help="faults at so many random moments"
    )
    of_agent.add_argument("--month", action="store_true", help="simulate 30 days")
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="N",
        help=f"how long inproc's soak is ({inproc.SOAK_MINUTES:g}), soak's agent"
        f" ({endurance.AGENT_MINUTES:g}), or each line of overhead's graph"
        f" ({overhead.GRAPH_MINUTES:g})",
    )
    of_accuracy = parser.add_argument_group("accuracy")
    of_accuracy.add_argument("--explain", type=Path, metavar="FILE", help="a dump")
    of_verdict = parser.add_argument_group("verdict")
    of_verdict.add_argument(
        "--bursts", type=count, metavar="N", help="of each stall, and of each healthy load"
    )
    of_overhead = parser.add_argument_group("overhead")
    of_overhead.add_argument("--seed", type=count, metavar="N", help="of all that is random")
    of_overhead.add_argument("--rounds", type=count, metavar="N", help="blocks, waits, courses")
    of_overhead.add_argument("--stalls", type=count, metavar="N", help="stalls to be captured")
    of_overhead.add_argument(
        "--svg",
        type=Path,
        metavar="FILE",
        default=overhead.GRAPH,
        help="where the graph is drawn (docs/img/overhead.svg)",
    )
    of_syncs = parser.add_argument_group("storage-sync")
    of_syncs.add_argument(
        "--clients", type=count, action="append", metavar="N", help="default 1, 8, 32"
    )
    of_syncs.add_argument("--delay", type=float, action="append", metavar="MS", help="default 0, 5")
    of_syncs.add_argument(
        "--from", dest="measured", metavar="F/S", default="1/1", help="the setting measured"
    )
    of_experiments = parser.add_argument_group("experiments")
    of_experiments.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="where results are kept, one file each (build/experiments; fleet: build/fleet-bench);"
        " mutants: a file",
    )
    of_experiments.add_argument(
        "--page",
        action="store_true",
        help="measure nothing: write them into docs/experiments.md; fleet: print its tables",
    )
    of_fleet = parser.add_argument_group("fleet")
    of_fleet.add_argument("--hosts", type=count, metavar="N", help="of each part, at most")
    of_fleet.add_argument("--incidents", type=count, metavar="N", help="of history and questions")
    mutants.add_options(parser.add_argument_group("mutants"))
    options = parser.parse_args()
    if options.bench not in ANY_SERVER and options.server not in SERVERS:
        parser.error(f"{options.bench} cannot be measured on {options.server}")
    return options


def count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def measure(options: argparse.Namespace) -> list[Section]:
    done = []
    measured = BENCHES[options.bench]
    if options.bench in LENGTHS:
        minutes = LENGTHS[options.bench] if options.minutes is None else options.minutes
        measured = functools.partial(measured, minutes=minutes)
    if options.bench == "overhead":
        given = overhead.Options(options.seed, options.rounds, options.stalls, options.svg)
        measured = functools.partial(measured, options=given)
    if options.bench == "experiments":
        places = experiments.Places(options.results or EXPERIMENTS, options.page)
        measured = functools.partial(measured, places=places)
    if options.bench == "fleet":
        sizes = sized(
            quick=options.quick,
            hosts=options.hosts,
            incidents=options.incidents,
            seed=options.seed,
            results=options.results,
            page=options.page,
        )
        measured = functools.partial(measured, options=sizes)
    if options.bench == "mutants":
        chosen = mutants.Options(
            options.seed or random.randrange(1, 1 << 32),
            options.per_module,
            options.since,
            options.compare,
            options.tests or mutants.TESTS,
            options.without or mutants.WITHOUT,
            options.workers or os.cpu_count() or 1,
            options.results or mutants.RESULTS / "results.json",
        )
        measured = functools.partial(measured, options=chosen)
    if options.bench == "agent":
        moments = agent_faultmoments.Options(
            options.moments or 0,
            options.seed or 0,
            results=options.results or agent_faultmoments.RESULTS,
        )
        if options.faults and options.page:
            agent_faultmoments.write_page(moments.results)
            return []
        measured = functools.partial(
            measured, faults=options.faults, month=options.month, moments=moments
        )
    if options.bench == "verdict":
        measured = functools.partial(measured, bursts=options.bursts)
    if options.bench == "storage-sync":
        flush, _, sync = options.measured.partition("/")
        asked = storage_sync.Options(
            options.clients or storage_sync.CLIENTS,
            storage_sync.DELAYS if options.delay is None else options.delay,
            (int(flush), int(sync)),
            options.rounds or storage_sync.ROUNDS,
        )
        measured = functools.partial(measured, options=asked)
    for section in measured(options.server, options.quick, options.only):
        done.append(section)
        if not options.json:
            if sys.stderr.isatty():
                print("\r\x1b[K", end="", file=sys.stderr)
            print(render(section), flush=True)
    return done


def explained(path: Path) -> int:
    """Print how the findings of a dump came about."""
    try:
        for line in accuracy.explain(path):
            print(line)
    except (OSError, StallscopeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    options = arguments()
    if os.geteuid() != 0 and options.bench not in ROOTLESS:
        print("bench: run it as root: the captures and the peers need it", file=sys.stderr)
        return 1
    if options.bench == "accuracy" and options.explain is not None:
        return explained(options.explain)
    about = environment()
    if not options.json:
        print("\n".join(f"- {key}: {value}" for key, value in about.items()), end="\n\n")
    try:
        done = measure(options)
    except (BenchError, TargetError, StallscopeError, Unavailable, ChildEnded, Late) as error:
        progress("")
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130
    if options.json:
        value = {
            "schema": "stallscope.bench/1",
            "bench": options.bench,
            "quick": options.quick,
            "environment": about,
            "sections": msgspec.to_builtins(done),
        }
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value)) + b"\n")
    return 0 if all(met for section in done for _, met in section.goals) else 3


if __name__ == "__main__":
    sys.exit(main())
