# SPDX-License-Identifier: Apache-2.0
"""Run every kind of test there is, show what they say, and count."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.vm import guest, matrix

CHECKOUT = Path(__file__).resolve().parents[2]
VENV = CHECKOUT / ".venv/bin"
BUILD = CHECKOUT / "build"
SANITIZER_BUILD = CHECKOUT / "build-sanitize"
SANITIZERS = ("-Dtests=true", "-Db_sanitize=address,undefined", "-Db_lundef=false")
C_FOLDERS = ("pmp", "ebpf", "inproc", "tests/c", "tests/fuzz", "tests/targets")
PYTHON_FOLDERS = ("stallscope", "scripts/lib", "tests")
SHELL_FOLDERS = ("scripts", ".ci", "tests")
MOST_WORKERS = 4
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


class Step(NamedTuple):
    name: str
    run: Callable[[], Count]
    slow: bool = False
    """Left out by --fast."""


def shown(argv: Sequence[str | Path]) -> int:
    """Run a command with its output in plain view and return its exit code."""
    print("$", *argv[:MOST_WORDS], *["..."] * (len(argv) > MOST_WORDS), flush=True)
    return subprocess.run([str(part) for part in argv], cwd=CHECKOUT, check=False).returncode


def lint(*argv: str | Path) -> Count:
    """Run a command that stands for one test."""
    return Count(passed=1) if shown(argv) == 0 else Count(failed=1)


def files(folders: Sequence[str], suffixes: Sequence[str]) -> list[Path]:
    """Return the checkout's files in the folders that have one of the suffixes."""
    found = (CHECKOUT / folder for folder in folders)
    every = (path for folder in found for path in sorted(folder.rglob("*")))
    return [path for path in every if path.suffix in suffixes and path.is_file()]


def c_format() -> Count:
    """Show where clang-format would change C files."""
    return lint("clang-format", "--dry-run", "-Werror", *files(C_FOLDERS, (".c", ".h", ".cc")))


def shell_lint() -> Count:
    """Check every file that begins like a shell script."""
    scripts = []
    for path in files(SHELL_FOLDERS, ("", ".sh")):
        with path.open("rb") as file:
            first = file.readline(100)
        if first.startswith(b"#!") and b"sh" in first.split(b"/")[-1]:
            scripts.append(path)
    return lint("shellcheck", *scripts)


def meson_test(build: Path, *options: str) -> Count:
    """Run the tests of a build folder and count them from Meson's own log."""
    log = build / "meson-logs/testlog.json"
    log.unlink(missing_ok=True)
    code = shown(["meson", "test", "-C", build, "--print-errorlogs", *options])
    if not log.exists():
        return Count(failed=1) if code != 0 else Count()
    count = Count()
    for line in log.read_text().splitlines():
        test = json.loads(line)
        result = test["result"]
        if result == "SKIP":
            reason = (test.get("stdout") or test.get("stderr") or "no reason given").strip()
            print(f"SKIPPED {test['name']}: {reason.splitlines()[-1]}")
            count += Count(skipped=1)
        elif result in ("OK", "EXPECTEDFAIL"):
            count += Count(passed=1)
        else:
            count += Count(failed=1, failures=(f"{build.name}: {test['name']} ({result})\n",))
    return count if code == 0 or count.failed else count + Count(failed=1)


def sanitizers() -> Count:
    """Build with sanitizers aside and run the C tests there."""
    if not (SANITIZER_BUILD / "build.ninja").exists():
        shutil.rmtree(SANITIZER_BUILD, ignore_errors=True)
        if shown(["meson", "setup", *SANITIZERS, SANITIZER_BUILD]) != 0:
            return Count(failed=1)
    if shown(["ninja", "--quiet", "-C", SANITIZER_BUILD]) != 0:
        return Count(failed=1)
    return meson_test(SANITIZER_BUILD, "--no-suite", "fuzz", "--timeout-multiplier", "4")


def unit_tests(expression: str | None) -> Count:
    """Run most of them on all processors, and then those that want to be alone."""
    workers = ("-n", "auto", "--maxprocesses", str(MOST_WORKERS), "--dist", "worksteal")
    together = pytest("tests/unit", expression, *workers, "-m", "not alone")
    return together + pytest("tests/unit", expression, "-m", "alone", report="unit-alone")


def pytest(folder: str, expression: str | None, *options: str, report: str = "") -> Count:
    """Run the tests of one folder and count them from the JUnit report."""
    if not files([folder], (".py",)):
        print(f"no tests in {folder}")
        return Count()
    written = BUILD / f"{report or Path(folder).name}.xml"
    written.unlink(missing_ok=True)
    argv: list[str | Path] = [
        VENV / "python",
        "-m",
        "pytest",
        folder,
        "-rs",
        "--durations=5",
        f"--junitxml={written}",
        *options,
    ]
    if expression:
        argv += ["-k", expression]
    code = shown(argv)
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
        f"{case.get('classname')}::{case.get('name')}\n{said(part)}\n"
        for case in tree.iter("testcase")
        for kind in ("failure", "error")
        for part in case.iter(kind)
    )


def said(failure: ElementTree.Element) -> str:
    return (failure.text or failure.get("message") or "").strip()[-MOST_OF_A_FAILURE:]


def kernel_step(names: Sequence[str], expression: str | None, *, update: bool = False) -> Step:
    """Return the step that runs the kernel matrix, all of it where no kernel is named."""

    def run() -> Count:
        if reason := guest.missing():
            print(f"not run: {reason}")
            return Count(failed=1, failures=(f"kernels\n{reason}\n",))
        guests, tests, troubles = matrix.run(names or matrix.DEFAULT, expression)
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

    return Step("tests on other kernels", run)


def steps(expression: str | None) -> list[Step]:
    python_tests = [
        Step("unit tests", lambda: unit_tests(expression)),
        Step("tests as root", lambda: pytest("tests/root", expression)),
        Step("tests on real servers", lambda: pytest("tests/live", expression), slow=True),
    ]
    if expression:
        return python_tests
    # STALLSCOPE_KERNELS: what CI adds to a whole run.
    others = os.environ.get("STALLSCOPE_KERNELS", "").split()
    return [
        Step("C: format", c_format),
        Step("Python: lint", lambda: lint(VENV / "ruff", "check", ".")),
        Step("Python: format", lambda: lint(VENV / "ruff", "format", "--check", ".")),
        Step("Python: types", lambda: lint(VENV / "mypy", *PYTHON_FOLDERS)),
        Step("shell: lint", shell_lint),
        Step("C: tests", lambda: meson_test(BUILD, "--no-suite", "fuzz")),
        Step("C: tests under sanitizers", sanitizers, slow=True),
        *python_tests,
        Step("fuzz, shortly", lambda: meson_test(BUILD, "--suite", "fuzz"), slow=True),
        *([kernel_step(others, None)._replace(slow=True)] if others else []),
    ]


def systems_step(releases: Sequence[str]) -> Step:
    """Run the agent on whole systems, in virtual machines."""
    os.environ["STALLSCOPE_SYSTEMS"] = " ".join(releases)
    return Step("tests on whole systems", lambda: pytest("tests/systems", None, "-x"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/test", description=__doc__)
    parser.add_argument("-k", metavar="EXPR", help="only the Python tests that match")
    parser.add_argument("--fast", action="store_true", help="leave out what takes long")
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
    arguments = parser.parse_args()
    if arguments.kernels is not None:
        return finish([kernel_step(arguments.kernels, arguments.k, update=arguments.update)])
    if arguments.systems is not None:
        return finish([systems_step(arguments.systems)])
    chosen = [step for step in steps(arguments.k) if not (step.slow and arguments.fast)]
    return finish(chosen)


def finish(chosen: Sequence[Step]) -> int:
    """Run the steps, show what failed and a summary, and return the exit code."""
    total = Count()
    summary = []
    for step in chosen:
        print(f"\n=== {step.name}", flush=True)
        start = time.monotonic()
        count = step.run()
        total += count
        seconds = time.monotonic() - start
        summary.append(
            f"{step.name:28} {count.passed:5} passed {count.failed:4} failed"
            f" {count.skipped:4} skipped  {seconds:6.1f} s"
        )
    if total.failures:
        print("\n=== what failed", *total.failures, sep="\n")
    print("\n=== summary", *summary, "", sep="\n")
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
