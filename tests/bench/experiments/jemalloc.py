# SPDX-License-Identifier: Apache-2.0
"""Another malloc under MariaDB."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.bench import progress
from tests.bench.barchart import Bars, Group
from tests.bench.experiments.measures import bar, prepare, snapped
from tests.bench.experiments.model import Case, Drawing, Experiment, Found, Sizes, Verdict
from tests.bench.stats import BenchError, Figure, Row, Section, figure
from tests.bench.throughput import Window, window
from tests.support.servers import MariaDB, Unavailable, cache_folder
from tests.support.stalls.load import sysbench_load

__all__ = ["JEMALLOC"]

PACKAGE = "libjemalloc2"
THREADS = 16
PAIRS = 6
TESTS = ("oltp_read_only", "oltp_read_write")
GLIBC, OTHER = "glibc", "jemalloc"


def library() -> Path:
    """Return the library of Debian's package, which is unpacked but not installed."""
    folder = cache_folder() / "jemalloc"
    found = sorted(folder.glob("usr/lib/*/libjemalloc.so.2"))
    if not found:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for command in (
            ["apt-get", "download", "-q", PACKAGE],
            ["sh", "-c", f"dpkg-deb -x {PACKAGE}_*.deb . && rm -f {PACKAGE}_*.deb"],
        ):
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, check=False, timeout=120
            )
            if done.returncode != 0:
                raise Unavailable(f"{PACKAGE}: {(done.stderr.strip() or '?').splitlines()[-1]}")
        found = sorted(folder.glob("usr/lib/*/libjemalloc.so.2"))
    if not found:
        raise Unavailable(f"{PACKAGE} has no libjemalloc.so.2")
    return found[0]


def _change(
    taken: dict[tuple[str, str], list[Window]], test: str, of: Callable[[Window, Window], float]
) -> Figure:
    """Return by how much the other malloc is better, pair by pair."""
    pairs = zip(taken[test, OTHER], taken[test, GLIBC], strict=True)
    return figure([100 * (of(other, own) - 1) for other, own in pairs], "%")


def _has(server: MariaDB, name: str) -> bool:
    return name in Path(f"/proc/{server.pid}/maps").read_text()


def measure(sizes: Sizes) -> Found:
    taken: dict[tuple[str, str], list[Window]] = {}
    verdict: Verdict | None = None
    with ExitStack() as stack:
        servers = {}
        for name in (GLIBC, OTHER):
            server = MariaDB("--innodb-buffer-pool-size=256M")
            if name == OTHER:
                server.env = {"LD_PRELOAD": str(library())}
            servers[name] = stack.enter_context(server)
            prepare(server, 4, sizes.of(10_000, 500))
            if _has(server, "libjemalloc") != (name == OTHER):
                raise BenchError("the server has not the malloc that it should have")
        for test in TESTS[: sizes.of(2, 1)]:
            for pair in range(sizes.of(PAIRS, 1)):
                for name in (GLIBC, OTHER) if pair % 2 else (OTHER, GLIBC):
                    progress(f"jemalloc: {test}, pair {pair + 1}, {name}")
                    with sysbench_load(servers[name], THREADS, test):
                        found = window(servers[name], sizes.seconds)
                    taken.setdefault((test, name), []).append(found)
        with sysbench_load(servers[GLIBC], THREADS, TESTS[0]):
            verdict = snapped(servers[GLIBC].pid, sizes)
    return _found(taken, verdict)


def _found(taken: dict[tuple[str, str], list[Window]], verdict: Verdict) -> Found:
    tests = list(dict.fromkeys(test for test, _ in taken))
    rates = {
        key: figure([window.rate for window in windows], "queries/s")
        for key, windows in taken.items()
    }
    gains = {test: _change(taken, test, lambda one, two: one.rate / two.rate) for test in tests}
    saved = {test: _change(taken, test, lambda one, two: two.cpu_ns / one.cpu_ns) for test in tests}
    ours = ", ".join(
        f"{gain.median:+.1f} % ({gain.low:+.1f} to {gain.high:+.1f}) {test}"
        for test, gain in gains.items()
    )
    best = max(gains.values(), key=lambda gain: gain.median)
    sure = best.low > 0
    return Found(
        ours=ours,
        after="the library is the fix: the figures on the left",
        shows="yes" if best.median >= 7 and sure else "partly" if best.median >= 3 else "no",
        verdicts=(verdict,),
        tables=(
            Section(
                "jemalloc",
                f"Queries a second of MariaDB, {THREADS} threads, pairs of windows",
                tuple(
                    Row(
                        test,
                        {
                            GLIBC: rates[test, GLIBC],
                            OTHER: rates[test, OTHER],
                            "change of a pair": gains[test],
                            "more for the same CPU time": saved[test],
                        },
                    )
                    for test in tests
                ),
            ),
        ),
        drawings=(
            Drawing(
                "jemalloc",
                ours,
                bars=Bars(
                    f"MariaDB with two mallocs, {THREADS} threads",
                    "queries/s",
                    [
                        Group(test, [bar(name, rates[test, name]) for name in (GLIBC, OTHER)])
                        for test in tests
                    ],
                ),
            ),
        ),
        why="Where the pairs differ more than the gain is, it is not certain. glibc has had a cache"
        " for each thread since 2.26 (2017), and here two CPUs allocate at a time: the seed's gain"
        " was of many CPUs and an older glibc.",
    )


JEMALLOC = Experiment(
    "jemalloc",
    "jemalloc",
    Case("+10 %", "Percona's archive"),
    "sysbench with 16 threads against two MariaDB servers in turns, one of them started with"
    " `LD_PRELOAD=libjemalloc.so.2` (Debian's libjemalloc2).",
    "`LD_PRELOAD`, or `malloc-lib` of mysqld_safe",
    measure,
    ("mariadb",),
)
