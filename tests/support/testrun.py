# SPDX-License-Identifier: Apache-2.0
"""Run every kind of test there is, show what they print, and count.

Steps are in two lanes. Those of one lane run one after the other, lanes beside each other: tests of
servers and of targets mostly wait. What only computes (checks, sanitizers, other kernels) has a
lower priority. Tests of servers and of targets do not run beside each other: on two CPUs that makes
deadlines pass. Tests that are marked ``alone`` run when all else has ended.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from tests.support.vm import guest, matrix

CHECKOUT = Path(__file__).resolve().parents[2]
VENV = CHECKOUT / ".venv/bin"
BUILD = CHECKOUT / "build"
SANITIZER_BUILD = CHECKOUT / "build-sanitize"
SANITIZERS = (
    "-Dtests=true",
    "-Db_sanitize=address,undefined",
    "-Db_lundef=false",
    # Half of the time to compile, and what the sanitizers say has its lines all the same.
    "-Doptimization=1",
    "-Dc_args=-g1",
)
C_FOLDERS = ("pmp", "ebpf", "inproc", "tests/c", "tests/fuzz", "tests/targets")
PYTHON_FOLDERS = ("stallscope", "scripts/lib", "tests")
SHELL_FOLDERS = ("scripts", ".ci", "tests")
MOST_WORKERS = 4
"""Where there are more CPUs."""
SERVER_WORKERS = 3
TARGET_WORKERS = 2
UNIT_WORKERS = 3
LOWER_PRIORITY = 10
"""Not the lowest: behind a storm of threads in a server, deadlines of a test would pass."""
MOST_WORDS = 20
"""Of a command that is shown: some are given every file there is."""
MOST_OF_A_FAILURE = 2000
"""Characters of each that are shown again at the end, where all other output stands above them."""


class Count(NamedTuple):
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: tuple[str, ...] = ()
    """Their names, and what they said."""

    def __add__(self, other: tuple[object, ...]) -> Count:
        assert isinstance(other, Count)
        return Count(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
            self.failures + other.failures,
        )


class Output:
    """What a step prints, and the priority of its commands."""

    def __init__(self, file: TextIO, niceness: int) -> None:
        self._file = file
        self._niceness = niceness

    def print(self, *words: object) -> None:
        print(*words, file=self._file, flush=True)

    def run(self, argv: Sequence[str | Path]) -> int:
        """Run a command with its output in here and return its exit code."""
        self.print("$", *argv[:MOST_WORDS], *["..."] * (len(argv) > MOST_WORDS))
        prefix = ["nice", "-n", str(self._niceness)] if self._niceness else []
        return subprocess.run(
            [*prefix, *(str(part) for part in argv)],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode

    def check(self, *argv: str | Path) -> Count:
        """Run a command that stands for one test."""
        return Count(passed=1) if self.run(argv) == 0 else Count(failed=1)


class Step(NamedTuple):
    name: str
    run: Callable[[Output], Count]
    lane: str


COMPUTING, WAITING, ALONE = "computing", "waiting", "alone"
"""Lanes. The first leaves the processors to the second, where there is one."""


def files(folders: Sequence[str], suffixes: Sequence[str]) -> list[Path]:
    """Return the checkout's files in the folders that have one of the suffixes."""
    found = (CHECKOUT / folder for folder in folders)
    every = (path for folder in found for path in sorted(folder.rglob("*")))
    return [path for path in every if path.suffix in suffixes and path.is_file()]


def c_format(output: Output) -> Count:
    """Show where clang-format would change C files."""
    return output.check(
        "clang-format", "--dry-run", "-Werror", *files(C_FOLDERS, (".c", ".h", ".cc"))
    )


def shell_lint(output: Output) -> Count:
    """Check every file that begins like a shell script."""
    scripts = []
    for path in files(SHELL_FOLDERS, ("", ".sh")):
        with path.open("rb") as file:
            first = file.readline(100)
        if first.startswith(b"#!") and b"sh" in first.split(b"/")[-1]:
            scripts.append(path)
    return output.check("shellcheck", *scripts)


def meson_test(output: Output, build: Path, *options: str) -> Count:
    """Run the tests of a build folder and count them from Meson's own log."""
    log = build / "meson-logs/testlog.json"
    log.unlink(missing_ok=True)
    code = output.run(["meson", "test", "-C", build, "--print-errorlogs", *options])
    if not log.exists():
        return Count(failed=1) if code != 0 else Count()
    count = Count()
    for line in log.read_text().splitlines():
        test = json.loads(line)
        result = test["result"]
        if result == "SKIP":
            reason = (test.get("stdout") or test.get("stderr") or "no reason given").strip()
            output.print(f"SKIPPED {test['name']}: {reason.splitlines()[-1]}")
            count += Count(skipped=1)
        elif result in ("OK", "EXPECTEDFAIL"):
            count += Count(passed=1)
        else:
            name = f"{build.name}: {test['name']} ({result})"
            printed = test.get("stdout", "") + test.get("stderr", "")
            count += Count(failed=1, failures=(failure(name, printed),))
    return count if code == 0 or count.failed else count + Count(failed=1)


def sanitizers(output: Output) -> Count:
    """Build with sanitizers aside and run the C tests there."""
    if not (SANITIZER_BUILD / "build.ninja").exists():
        shutil.rmtree(SANITIZER_BUILD, ignore_errors=True)
        if output.run(["meson", "setup", *SANITIZERS, SANITIZER_BUILD]) != 0:
            return Count(failed=1)
    if output.run(["ninja", "--quiet", "-C", SANITIZER_BUILD]) != 0:
        return Count(failed=1)
    return meson_test(output, SANITIZER_BUILD, "--timeout-multiplier", "4")


def beside_each_other(workers: int | str, *marks: str) -> tuple[str, ...]:
    """Return pytest's options for tests that run in several processes, without those alone.

    Tests of a module stay together, with the fixtures that they share, until a process has none
    left.
    """
    chosen = " and ".join(("not alone", *marks))
    most = ("--maxprocesses", str(MOST_WORKERS))
    return ("-n", str(workers), *most, "--dist=worksteal", "-m", chosen)


def pytest(
    output: Output, paths: Sequence[str], expression: str | None, *options: str, report: str
) -> Count:
    """Run the tests of folders and files and count them from the JUnit report."""
    written = BUILD / f"{report}.xml"
    written.unlink(missing_ok=True)
    argv: list[str | Path] = [
        VENV / "python",
        "-m",
        "pytest",
        *paths,
        "-rs",
        "--durations=5",
        f"--junitxml={written}",
        *options,
    ]
    if expression:
        argv += ["-k", expression]
    code = output.run(argv)
    if code == 5:  # pytest: no test was collected
        return Count()
    if not written.exists():
        return Count(failed=1)
    tree = ElementTree.parse(written)
    count = Count(failures=failures_of(tree))
    for suite in tree.iter("testsuite"):
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        total = int(suite.get("tests", 0))
        count += Count(max(total - failed - skipped, 0), failed, skipped)
    return count if code == 0 or count.failed else count + Count(failed=1)


def failures_of(tree: ElementTree.ElementTree[ElementTree.Element]) -> tuple[str, ...]:
    """Return the name of each test that failed in a JUnit report, with the end of what it said."""
    return tuple(
        failure(
            f"{case.get('classname')}::{case.get('name')}", part.text or part.get("message") or ""
        )
        for case in tree.iter("testcase")
        for kind in ("failure", "error")
        for part in case.iter(kind)
    )


def failure(name: str, said: str) -> str:
    """Return how a test that failed is shown at the end: its name, and the end of what it said."""
    return f"{name}\n{said.strip()[-MOST_OF_A_FAILURE:]}\n"


def kernel_step(names: Sequence[str], expression: str | None, *, update: bool = False) -> Step:
    """Return the step that runs the kernel matrix, all of it where no kernel is named."""

    def run(output: Output) -> Count:
        if reason := guest.missing():
            output.print(f"not run: {reason}")
            return Count(failed=1, failures=(f"kernels\n{reason}\n",))
        guests, tests, troubles = matrix.run(names or matrix.DEFAULT, expression, output.print)
        if update:
            matrix.update(guests)
        counts = Counter(outcome.outcome for _, outcome in tests)
        failures = [
            f"{name}: {outcome.test}\n{outcome.reason}\n"
            for name, outcome in tests
            if outcome.outcome == "failed"
        ]
        return Count(
            counts["passed"],
            counts["failed"] + len(troubles),
            counts["skipped"],
            (*failures, *(f"{trouble}\n" for trouble in troubles)),
        )

    return Step("tests on other kernels", run, COMPUTING)


def python_steps(expression: str | None) -> list[Step]:
    def step(name: str, folder: str, workers: int) -> Step:
        options = beside_each_other(workers)
        return Step(
            name,
            lambda output: pytest(output, [f"tests/{folder}"], expression, *options, report=folder),
            WAITING,
        )

    # Other files need not be loaded.
    folders = [f"tests/{name}" for name in ("unit", "root", "live")]
    alone = [
        str(path.relative_to(CHECKOUT))
        for path in files(folders, (".py",))
        if "mark.alone" in path.read_text()
    ]
    return [
        step("tests on real servers", "live", SERVER_WORKERS),
        step("tests as root", "root", TARGET_WORKERS),
        step("unit tests", "unit", UNIT_WORKERS),
        Step(
            "tests that run alone",
            lambda output: pytest(output, alone, expression, "-m", "alone", report="alone"),
            ALONE,
        ),
    ]


def checks() -> list[Step]:
    """Return what needs neither a server nor a long time."""
    return [
        Step("C: format", c_format, COMPUTING),
        Step("Python: lint", lambda output: output.check(VENV / "ruff", "check", "."), COMPUTING),
        Step(
            "Python: format",
            lambda output: output.check(VENV / "ruff", "format", "--check", "."),
            COMPUTING,
        ),
        Step("shell: lint", shell_lint, COMPUTING),
        Step(
            "words: lint",
            lambda output: output.check(VENV / "python", "tests/support/wordlint.py"),
            COMPUTING,
        ),
        Step(
            "Python: types", lambda output: output.check(VENV / "mypy", *PYTHON_FOLDERS), COMPUTING
        ),
        Step("C: tests", lambda output: meson_test(output, BUILD, "--no-suite", "fuzz"), COMPUTING),
    ]


def quick_steps() -> list[Step]:
    """Return what shows in a minute whether a change is worth a whole run."""
    return [
        *checks(),
        Step(
            "quick unit tests",
            lambda output: pytest(
                output,
                ["tests/unit"],
                None,
                *beside_each_other("auto", "not slow"),
                report="quick",
            ),
            WAITING,
        ),
    ]


def steps(expression: str | None) -> list[Step]:
    if expression:
        return python_steps(expression)
    # STALLSCOPE_KERNELS: what CI adds to a whole run.
    others = os.environ.get("STALLSCOPE_KERNELS", "").split()
    return [
        *checks(),
        Step("C: tests under sanitizers", sanitizers, COMPUTING),
        Step(
            "fuzz, shortly", lambda output: meson_test(output, BUILD, "--suite", "fuzz"), COMPUTING
        ),
        *python_steps(None),
        *([kernel_step(others, None)] if others else []),
    ]


def systems_step(releases: Sequence[str]) -> Step:
    """Run the agent on whole systems, in virtual machines."""
    os.environ["STALLSCOPE_SYSTEMS"] = " ".join(releases)
    return Step(
        "tests on whole systems",
        lambda output: pytest(output, ["tests/systems"], None, "-x", report="systems"),
        ALONE,
    )


def packages_step(expression: str | None) -> Step:
    """Build packages, and use them in clean root folders."""
    return Step(
        "tests of packages",
        lambda output: pytest(output, ["tests/packages"], expression, report="packages"),
        ALONE,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/test", description=__doc__)
    parser.add_argument("-k", metavar="EXPR", help="only the Python tests that match")
    parser.add_argument(
        "--quick", action="store_true", help="format, lint, types, C tests and quick unit tests"
    )
    parser.add_argument(
        "--kernels",
        nargs="*",
        metavar="KERNEL",
        help="only the tests on other kernels, in virtual machines: SERIES or SERIES:VARIANT",
    )
    parser.add_argument(
        "--update", action="store_true", help="with --kernels: write docs/support-matrix.md"
    )
    parser.add_argument(
        "--systems", nargs="*", metavar="12|13", help="only the agent on whole systems"
    )
    parser.add_argument(
        "--packages", action="store_true", help="only packages, in clean root folders"
    )
    arguments = parser.parse_args()
    if arguments.packages:
        return finish([packages_step(arguments.k)])
    if arguments.kernels is not None:
        return finish([kernel_step(arguments.kernels, arguments.k, update=arguments.update)])
    if arguments.systems is not None:
        return finish([systems_step(arguments.systems)])
    return finish(quick_steps() if arguments.quick else steps(arguments.k))


class Run:
    """What has ended so far, of all lanes."""

    def __init__(self, lanes: Iterable[str]) -> None:
        self._others = set(lanes) != {COMPUTING}
        self.total = Count()
        self.summary: list[str] = []
        self._lock = threading.Lock()

    def alone(self, chosen: Sequence[Step]) -> None:
        """Run steps one after the other, with their output in plain view."""
        for step in chosen:
            print(f"\n=== {step.name}", flush=True)
            self._count(step, Output(sys.stdout, 0))

    def lane(self, chosen: Sequence[Step]) -> None:
        """Run steps one after the other; show the output of each when it has ended."""
        for step in chosen:
            with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
                niceness = LOWER_PRIORITY if step.lane == COMPUTING and self._others else 0
                self._count(step, Output(file, niceness))
                file.seek(0)
                with self._lock:
                    print(f"\n=== {step.name}", file.read(), sep="\n", flush=True)

    def _count(self, step: Step, output: Output) -> None:
        start = time.monotonic()
        try:
            count = step.run(output)
        except Exception as error:  # a lane's trouble is not another's
            output.print(f"{type(error).__name__}: {error}")
            count = Count(failed=1, failures=(f"{step.name}: {error}\n",))
        seconds = time.monotonic() - start
        with self._lock:
            self.total += count
            self.summary.append(
                f"{step.name:28} {count.passed:5} passed {count.failed:4} failed"
                f" {count.skipped:4} skipped  {seconds:6.1f} s"
            )


def finish(chosen: Sequence[Step]) -> int:
    """Run the steps, show what failed and a summary, and return the exit code."""
    start = time.monotonic()
    lanes: dict[str, list[Step]] = {}
    for step in chosen:
        lanes.setdefault(step.lane, []).append(step)
    run = Run(lanes)
    last = lanes.pop(ALONE, []) if len(lanes) > 1 else lanes.popitem()[1]
    threads = [threading.Thread(target=run.lane, args=(lane,)) for lane in lanes.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.alone(last)
    total = run.total
    if total.failures:
        print("\n=== what failed", *total.failures, sep="\n")
    print("\n=== summary", *run.summary, "", sep="\n")
    print(
        f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped"
        f" in {time.monotonic() - start:.0f} s",
        flush=True,
    )
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
