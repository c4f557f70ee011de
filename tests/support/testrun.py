# SPDX-License-Identifier: Apache-2.0
"""Run tests of the sizes that are asked for, and show what they come to.

Steps are in two lanes. Those of one lane run one after the other, lanes beside each other: tests of
servers and of targets mostly wait. What only computes (checks, C tests, sanitizers) has a lower
priority. Tests of servers and of targets do not run beside each other: on two CPUs that makes
deadlines pass. Tests that are marked ``alone`` run when all else has ended.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from tests.conftest import SIZE_OF_FOLDER
from tests.support import testevents
from tests.support.testboard import Board, Tally
from tests.support.vm import guest, matrix

CHECKOUT = Path(__file__).resolve().parents[2]
PYTHON = CHECKOUT / ".venv/bin/python"
BUILD = CHECKOUT / "build"
LOGS = BUILD / "test-logs"
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
PRODUCT_FOLDERS = ("stallscope", "scripts/lib")
SHELL_FOLDERS = ("scripts", ".ci", "tests")
SMALL, LARGE, NIGHTLY = "small", "large", "nightly"
"""Sizes: docs/testing.md says what belongs to each."""
MOST_WORKERS = 4
"""Where there are more CPUs."""
WORKERS = {"live": 3, "root": 2, "unit": 3}
"""Processes that share the tests of a folder, on two CPUs."""
LOWER_PRIORITY = 10
"""Not the lowest: behind a storm of threads in a server, deadlines of a test would pass."""
FUZZ_HOURS = 2
"""Of the nightly run: a quarter of an hour of each target."""
END_SECONDS = 30.0
"""What tests have to undo what they did, when the run is interrupted."""

MANY = {
    "STALLSCOPE_EXAMPLES": "1000",
    "STALLSCOPE_DAMAGES": "5000",
    "STALLSCOPE_STATEMENTS": "1000000",
}
"""What each night draws at random."""

MESON_LINE = re.compile(
    r"\s*\d+/(?P<total>\d+) (?:.* / )?(?P<test>\S+)\s+"
    r"(?P<result>OK|EXPECTEDFAIL|FAIL|UNEXPECTEDPASS|SKIP|TIMEOUT|ERROR|INTERRUPT)\s"
)
MESON_END = re.compile(r"Summary of Failures|Ok:|Expected Fail:")
"""What was said of each test is said once more behind this."""


class Interrupted(Exception):
    """The run was ended from outside."""


class Processes:
    """What runs now, so that an interrupted run leaves nothing behind."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._ending = False

    @contextmanager
    def start(
        self, argv: Sequence[str], stdout: int, environment: dict[str, str], descriptor: int | None
    ) -> Iterator[subprocess.Popen[str]]:
        with self._lock:
            if self._ending:
                raise Interrupted
            process = subprocess.Popen(
                argv,
                cwd=CHECKOUT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                pass_fds=() if descriptor is None else (descriptor,),
            )
            self._running.add(process)
        try:
            with process:
                yield process
        finally:
            with self._lock:
                self._running.discard(process)
        if self._ending:
            raise Interrupted

    def end(self) -> None:
        """Interrupt what runs, let it undo what it did, and start nothing more."""
        with self._lock:
            self._ending = True
            running = list(self._running)
        for process in running:
            process.send_signal(signal.SIGINT)
        last = time.monotonic() + END_SECONDS
        for process in running:
            try:
                process.wait(max(last - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()


class Work:
    """What a step does its work with: commands, whose output is in a log, and its tally."""

    def __init__(self, tally: Tally, board: Board, processes: Processes, niceness: int) -> None:
        self.tally = tally
        self.log = LOGS / f"{tally.name}.log"
        self.say = board.say
        self._processes = processes
        self._nice = ["nice", "-n", str(niceness)] if niceness else []
        LOGS.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")

    @contextmanager
    def _start(
        self,
        argv: Sequence[str | Path],
        stdout: int,
        descriptor: int | None = None,
        **environment: str,
    ) -> Iterator[subprocess.Popen[str]]:
        words = [*self._nice, *(str(part) for part in argv)]
        with self._processes.start(words, stdout, environment, descriptor) as process:
            yield process

    def lines(self, *argv: str | Path) -> Iterator[str]:
        """Run a command, keep its output, and give each line of it when it comes."""
        with self.log.open("a") as log, self._start(argv, subprocess.PIPE) as process:
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                yield line

    def run(self, *argv: str | Path) -> tuple[int, str]:
        """Run a command; return its exit code and what it printed."""
        with self._start(argv, subprocess.PIPE) as process:
            assert process.stdout is not None
            said = process.stdout.read()
        with self.log.open("a") as log:
            log.write(said)
        return process.returncode, said

    def check(self, argv: Sequence[str | Path]) -> None:
        """Run a command that stands for one test."""
        code, said = self.run(*argv)
        if code == 0:
            self.tally.passes()
        else:
            name = self.tally.name
            self.tally.fails(name, said, f"./scripts/test --step {name}")

    def pytest(self, *options: str | Path, **environment: str) -> None:
        """Run tests of Python and count them as they end."""
        plugin = ("-p", "tests.support.testevents")
        argv = [PYTHON, "-m", "pytest", *plugin, "--durations=20", *options]
        reading, writing = os.pipe()
        with self.log.open("a") as log:
            environment[testevents.DESCRIPTOR] = str(writing)
            with self._start(argv, log.fileno(), writing, **environment) as process:
                os.close(writing)
                follower = threading.Thread(target=self._follow, args=(reading,), daemon=True)
                follower.start()
        follower.join(END_SECONDS)
        # 1: tests have failed, which they said; 5: no test was collected.
        if process.returncode not in (0, 5) and not self.tally.failed:
            said = self.log.read_text()[-3000:]
            self.tally.fails(f"pytest ended with {process.returncode}", said, f"see {self.log}")

    def _follow(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as events:
            for line in events:
                event = testevents.decode(line)
                if isinstance(event, testevents.Collected):
                    self.tally.expect(event.tests)
                elif event.outcome == "passed":
                    self.tally.passes()
                elif event.outcome == "skipped":
                    self.tally.skips(event.said)
                else:
                    again = f"./scripts/test {event.test!r}"
                    self.tally.fails(event.test, event.said, again)

    def meson_test(self, build: Path, *suites: str) -> None:
        """Run the C tests of these sizes in a build folder and count them as they end."""
        log = build / "meson-logs/testlog.json"
        log.unlink(missing_ok=True)
        options = itertools.chain.from_iterable(("--suite", suite) for suite in suites)
        argv: list[str | Path] = ["meson", "test", "-C", build, "--print-errorlogs", *options]
        if build == SANITIZER_BUILD:
            argv += ["--timeout-multiplier", "4"]
        failing: tuple[str, list[str]] | None = None

        def shown() -> None:
            if failing is not None:
                test, said = failing
                again = f"meson test -C {build.name} --print-errorlogs {test}"
                self.tally.fails(f"{build.name}: {test}", "".join(said), again)

        ended = False
        for line in self.lines(*argv):
            if ended := ended or MESON_END.match(line) is not None:
                continue
            if (found := MESON_LINE.match(line)) is None:
                if failing is not None:
                    failing[1].append(line)
                continue
            shown()
            failing = None
            if self.tally.total is None:
                self.tally.expect(int(found["total"]))
            if found["result"] in ("OK", "EXPECTEDFAIL"):
                self.tally.passes()
            elif found["result"] != "SKIP":
                failing = found["test"], [line]
        shown()
        for record in log.read_text().splitlines() if log.exists() else ():
            test = json.loads(record)
            if test["result"] == "SKIP":
                said = (test.get("stdout") or test.get("stderr") or "no reason given").strip()
                self.tally.skips(f"{test['name']}: {said.splitlines()[-1]}")
        # It could not be built, or ended before its tests did.
        if self.tally.done != self.tally.total:
            again = f"meson test -C {build.name}"
            said = self.log.read_text()[-3000:]
            self.tally.fails(f"{build.name}: {self.tally.counts()} tests ended", said, again)


class Step(NamedTuple):
    name: str
    run: Callable[[Work], None]
    lane: str


COMPUTING, WAITING, ALONE = "computing", "waiting", "alone"
"""Lanes. The first leaves the processors to the second, where there is one."""


def files(folders: Sequence[str], suffixes: Sequence[str]) -> list[Path]:
    """Return the checkout's files in the folders that have one of the suffixes."""
    found = (CHECKOUT / folder for folder in folders)
    every = (path for folder in found for path in sorted(folder.rglob("*")))
    return [path for path in every if path.suffix in suffixes and path.is_file()]


def shell_scripts() -> list[Path]:
    """Return every file that begins like a shell script."""
    scripts = []
    for path in files(SHELL_FOLDERS, ("", ".sh")):
        with path.open("rb") as file:
            first = file.readline(100)
        if first.startswith(b"#!") and b"sh" in first.split(b"/")[-1]:
            scripts.append(path)
    return scripts


def command(name: str, *argv: str | Path, over: Callable[[], list[Path]] = list) -> Step:
    """Return a step of one command, over these files; it is left out where it is not installed."""

    def run(work: Work) -> None:
        if shutil.which(argv[0]) is None:
            work.tally.skips(f"no {argv[0]} here: run scripts/setup --tests")
        else:
            work.check([*argv, *over()])

    return Step(name, run, COMPUTING)


def checks(sizes: Sequence[str]) -> list[Step]:
    """Return what reads the sources."""
    venv = PYTHON.parent
    steps = []
    if SMALL in sizes:
        steps += [
            command("python-lint", venv / "ruff", "check", "."),
            command("python-format", venv / "ruff", "format", "--check", "."),
            command(
                "c-format",
                *(venv / "clang-format", "--dry-run", "-Werror"),
                over=lambda: files(C_FOLDERS, (".c", ".h", ".cc")),
            ),
            command("shell-lint", "shellcheck", "-x", over=shell_scripts),
            command("words", PYTHON, "tests/support/wordlint.py"),
        ]
    if SMALL in sizes or LARGE in sizes:
        # Those of the tests take as long again.
        tests = ("tests",) * (LARGE in sizes)
        steps.append(command("types", venv / "mypy", *PRODUCT_FOLDERS, *tests))
    return steps


def sanitizers(sizes: Sequence[str]) -> Step:
    """Build with sanitizers aside and run the C tests there."""

    def run(work: Work) -> None:
        if not (SANITIZER_BUILD / "build.ninja").exists():
            shutil.rmtree(SANITIZER_BUILD, ignore_errors=True)
            code, said = work.run("meson", "setup", *SANITIZERS, SANITIZER_BUILD)
        else:
            code, said = 0, ""
        if code == 0:  # it builds what these tests need
            work.meson_test(SANITIZER_BUILD, *sizes)
        else:
            work.tally.fails("meson setup", said[-3000:], f"see {work.log}")

    return Step("sanitizers", run, COMPUTING)


def c_steps(sizes: Sequence[str]) -> list[Step]:
    steps = [Step("c-tests", lambda work: work.meson_test(BUILD, *sizes), COMPUTING)]
    # Under sanitizers each size takes as long as the next larger one.
    if LARGE in sizes:
        steps.append(sanitizers([SMALL]))
    if NIGHTLY in sizes:
        steps.append(sanitizers([LARGE, NIGHTLY]))
    return steps


def spread(folder: str) -> tuple[str, ...]:
    """Return pytest's options for tests that run in several processes.

    Tests of a module stay together, with the fixtures that they share, until a process has none
    left.
    """
    most = ("--maxprocesses", str(MOST_WORKERS))
    return ("-n", str(WORKERS[folder]), *most, "--dist=worksteal")


def marked_files(folder: str, *marks: str) -> list[Path]:
    """Return the files of tests in a folder that name one of these marks."""
    pattern = re.compile(rf"\bmark\.({'|'.join(marks)})\b")
    found = files([f"tests/{folder}"], (".py",))
    return [
        path for path in found if path.name.startswith("test_") and pattern.search(path.read_text())
    ]


def python_steps(sizes: Sequence[str]) -> list[Step]:
    """Return the tests of Python, a step for each folder that has tests of these sizes."""
    chosen = f"--sizes={','.join(sizes)}"

    def paths(folder: str) -> list[str | Path]:
        if SIZE_OF_FOLDER.get(folder, LARGE) in sizes:
            return [f"tests/{folder}"]
        return [*marked_files(folder, *sizes)]  # other files need not be read

    def step(folder: str, found: Sequence[str | Path]) -> Step:
        options = (*found, chosen, "-m", "not alone", *spread(folder))
        return Step(folder, lambda work: work.pytest(*options), WAITING)

    alone = marked_files("", "alone")
    return [
        *(step(folder, found) for folder in WORKERS if (found := paths(folder))),
        Step("alone", lambda work: work.pytest(*alone, chosen, "-m", "alone"), ALONE),
    ]


def random_step() -> Step:
    """Return the step that draws more of what tests draw at random, and other draws each time."""
    seed = str(time.time_ns())

    def run(work: Work) -> None:
        work.say(f"STALLSCOPE_SEED={seed}")
        small_and_large = f"--sizes={SMALL},{LARGE}"
        marks = ("-m", "hypothesis", *spread("unit"))
        work.pytest("tests/unit", small_and_large, *marks, STALLSCOPE_SEED=seed, **MANY)

    return Step("random", run, WAITING)


def fuzz_step() -> Step:
    """Return the step that damages the inputs of every reader, led by what code they reach."""
    hours = f"--hours={FUZZ_HOURS}"
    return Step("fuzz", lambda work: work.check([CHECKOUT / "scripts/fuzz", hours]), COMPUTING)


def kernels_step(names: Sequence[str], expression: str | None, *, update: bool = False) -> Step:
    """Return the step that runs the kernel matrix, all of it where no kernel is named."""

    def run(work: Work) -> None:
        if reason := guest.missing():
            work.tally.skips(reason)
            return
        guests, tests, troubles = matrix.run(names or matrix.DEFAULT, expression, work.say)
        if update:
            matrix.update(guests)
        again = "./scripts/test --kernels"
        for name, outcome in tests:
            if outcome.outcome == "failed":
                work.tally.fails(f"{name}: {outcome.test}", outcome.reason, f"{again} {name}")
            elif outcome.outcome == "skipped":
                work.tally.skips(outcome.reason)
            else:
                work.tally.passes()
        for trouble in troubles:
            work.tally.fails("kernels", trouble, again)

    return Step("kernels", run, COMPUTING)


def systems_step(releases: Sequence[str]) -> Step:
    """Run the agent on whole systems, in virtual machines."""
    os.environ["STALLSCOPE_SYSTEMS"] = " ".join(releases)
    return Step("systems", lambda work: work.pytest("tests/systems", "-x"), ALONE)


def packages_step() -> Step:
    """Build packages, and use them in clean root folders."""
    return Step("packages", lambda work: work.pytest("tests/packages"), ALONE)


def steps(sizes: Sequence[str]) -> list[Step]:
    """Return what is run of these sizes."""
    nightly = [
        random_step(),
        fuzz_step(),
        kernels_step((), None),
        systems_step(()),
        packages_step(),
    ]
    return [
        *checks(sizes),
        *c_steps(sizes),
        *python_steps(sizes),
        *(nightly if NIGHTLY in sizes else []),
    ]


class Run:
    """Run steps, in lanes."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._processes = Processes()

    def steps(self, chosen: Sequence[Step]) -> None:
        """Run all; what is alone in its lane, and what is left of the others, at the end."""
        lanes: dict[str, list[Step]] = {}
        for step in chosen:
            lanes.setdefault(step.lane, []).append(step)
        last = lanes.pop(ALONE, [])
        niceness = {COMPUTING: LOWER_PRIORITY if WAITING in lanes else 0}
        threads = [
            threading.Thread(target=self._lane, args=(lane, niceness.get(name, 0)), daemon=True)
            for name, lane in lanes.items()
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self._lane(last, 0)
        except KeyboardInterrupt:
            self._processes.end()
            for thread in threads:
                thread.join()
            raise

    def _lane(self, chosen: Sequence[Step], niceness: int) -> None:
        for step in chosen:
            tally = self._board.begin(step.name)
            try:
                step.run(Work(tally, self._board, self._processes, niceness))
            except Interrupted:
                return
            except Exception as error:  # a lane's trouble is not another's
                again = f"./scripts/test --step {step.name}"
                tally.fails(step.name, f"{type(error).__name__}: {error}", again)
            finally:
                self._board.end(tally)


def report(board: Board, seconds: float) -> int:
    """Say what all came to; return the exit code."""
    left_out: Counter[str] = Counter()
    for tally in board.tallies:
        left_out += tally.left_out
    if left_out:
        print("\nleft out, since this machine lacks it:")
        for reason, count in left_out.most_common():
            print(f"{count:6} x {' '.join(reason.split())[:200]}")
    if board.failures:
        print("\nfailed:", *board.failures, sep="\n  ")
    passed = sum(tally.passed for tally in board.tallies)
    failed = sum(tally.failed for tally in board.tallies)
    print(f"\n{seconds:.0f} s; logs of all steps are in {LOGS.relative_to(CHECKOUT)}")
    print(f"{passed} passed, {failed} failed, {left_out.total()} skipped", flush=True)
    return 1 if failed or not passed else 0


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/test", description=__doc__)
    parser.add_argument("tests", nargs="*", metavar="TEST")
    parser.add_argument("-k", metavar="EXPR")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--all", dest="sizes", action="store_const", const=(SMALL, LARGE))
    size.add_argument("--large", dest="sizes", action="store_const", const=(LARGE,))
    size.add_argument("--nightly", dest="sizes", action="store_const", const=(NIGHTLY,))
    parser.add_argument("--step", metavar="NAME")
    parser.add_argument("--kernels", nargs="*", metavar="KERNEL")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--systems", nargs="*", metavar="12|13")
    parser.add_argument("--packages", action="store_true")
    parser.set_defaults(sizes=(SMALL,))
    arguments = parser.parse_args(argv)
    arguments.parser = parser
    return arguments


def chosen_steps(arguments: argparse.Namespace) -> list[Step]:
    if arguments.packages:
        return [packages_step()]
    if arguments.kernels is not None:
        return [kernels_step(arguments.kernels, arguments.k, update=arguments.update)]
    if arguments.systems is not None:
        return [systems_step(arguments.systems)]
    if arguments.tests or arguments.k:
        named = [*arguments.tests, *(("-k", arguments.k) if arguments.k else ())]
        return [Step("chosen", lambda work: work.pytest(*named), ALONE)]
    every = steps(arguments.sizes)
    if arguments.step is None:
        return every
    found = [step for step in every if step.name == arguments.step]
    if not found:
        known = ", ".join(step.name for step in every)
        arguments.parser.error(f"no step {arguments.step} in these sizes: {known}")
    return found


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    chosen = chosen_steps(parsed(sys.argv[1:]))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    start = time.monotonic()
    try:
        with Board() as board:
            Run(board).steps(chosen)
    except KeyboardInterrupt:
        print("interrupted: what was begun is undone; run it again", file=sys.stderr)
        return 130
    return report(board, time.monotonic() - start)


if __name__ == "__main__":
    sys.exit(main())
