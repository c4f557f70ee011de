# SPDX-License-Identifier: Apache-2.0
"""The command line of scripts/bench."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import msgspec
from servers import ChildEnded, Late, Unavailable
from targets import TargetError

from benches import capture, pause, progress
from benches.load import SERVERS
from benches.stats import BenchError, Section, render
from stallscope.errors import StallscopeError

EPILOG = """\
pause    what a capture does to the target: target-gaps, eintr, server-gaps, latency
capture  what a capture costs: wall, growth, kills, mysql55, server-wall, busy

Needs root, the peers (gdb, elfutils, percona-toolkit) and sysbench: scripts/setup --tests.
Exit code: 0 every goal met, 1 a measurement failed, 3 a goal was missed.
"""


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
        "sysbench": version("sysbench", "--version"),
        "libc6-dbg": "installed" if Path("/usr/lib/debug/.build-id").is_dir() else "absent",
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure stallscope beside its peers, in one run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bench", choices=["pause", "capture"])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: minutes, not an hour")
    parser.add_argument("--server", choices=list(SERVERS), default="mariadb")
    parser.add_argument("--only", action="append", default=[], metavar="TABLE", help="see below")
    return parser.parse_args()


def measure(options: argparse.Namespace) -> list[Section]:
    bench = pause.sections if options.bench == "pause" else capture.sections
    done = []
    for section in bench(options.server, options.quick, options.only):
        done.append(section)
        if not options.json:
            if sys.stderr.isatty():
                print("\r\x1b[K", end="", file=sys.stderr)
            print(render(section), flush=True)
    return done


def main() -> int:
    options = arguments()
    if os.geteuid() != 0:
        print("bench: run it as root: the captures and the peers need it", file=sys.stderr)
        return 1
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
