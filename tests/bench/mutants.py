# SPDX-License-Identifier: Apache-2.0
"""Whether a test fails when one line of a product module does something else.

Own code, since `mutmut` and `cosmic-ray` change Python alone, take all places of a file, not a few
that a seed chooses, and cannot run the mutants of an earlier result on another version.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import queue
import random
import re
import resource
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from tests.bench import progress
from tests.bench.mutants_kinds import Mutant, of_c, of_python, statement
from tests.bench.mutants_map import (
    CHECKOUT,
    TestMap,
    copy_of,
    git,
    outcomes,
    pytest_words,
    test_map,
)
from tests.bench.stats import BenchError, Row, Section

__all__ = ["RESULTS", "TESTS", "WITHOUT", "Options", "add_options", "sections"]

RESULTS = CHECKOUT / "build" / "mutants"
FOLDERS = ("stallscope", "collectors", "analyzers", "scripts/lib", "pmp", "ebpf", "inproc")
TESTS = ("tests/unit", "tests/root", "tests/live")
WITHOUT = ("nightly", "alone")
CPU_SECONDS = 60.0
"""The CPU time of the tests that one mutant runs: the nearest and quickest ones."""
CPU_FACTOR = 5
"""A mutant that takes more than this much longer than the line as it was never ends."""
WALL_SECONDS = 1800.0
"""It never ends: more than pytest lets one test wait (pyproject.toml)."""
FILE_SECONDS = 0.5
"""The CPU time that reading one file of tests takes."""
FIRST = 30
"""How many of the nearest tests run first: usually one of them fails."""
DATA_LIMIT = 8 << 30
SECONDS = itertools.count(1)


def add_options(group: argparse._ArgumentGroup) -> None:
    """Add the options that no other bench has."""
    group.add_argument("--per-module", type=int, default=1, metavar="N")
    group.add_argument("--since", metavar="REV", help="modules changed since then alone")
    group.add_argument("--compare", type=Path, metavar="RESULTS", help="of an earlier run")
    group.add_argument(
        "--tests", action="append", metavar="PATH", help="default tests/unit, root, live"
    )
    group.add_argument("--without", action="append", metavar="MARK", help="default nightly, alone")
    group.add_argument("--workers", type=int, metavar="N", help="default: one a CPU")


class Options(msgspec.Struct, frozen=True):
    """What the command line says."""

    seed: int
    per_module: int
    since: str | None
    compare: Path | None
    tests: Sequence[str]
    without: Sequence[str]
    workers: int
    results: Path


class Outcome(msgspec.Struct, frozen=True):
    """What the tests say of a mutant, and which of them."""

    mutant: Mutant
    result: str
    by: str = ""


class Results(msgspec.Struct):
    """The file of results."""

    seed: int
    commit: str
    outcomes: list[Outcome]
    schema: str = "stallscope.mutants/1"


def sections(server: str, quick: bool, only: Sequence[str], options: Options) -> Iterator[Section]:
    """Yield the table of all mutants; with ``compare``, of those that are not caught any more."""
    del server, quick
    before: dict[Mutant, str] = {}
    with tempfile.TemporaryDirectory(prefix="stallscope-mutants-") as name:
        copies = [Path(name) / f"copy-{number}" for number in range(options.workers)]
        for copy in copies:
            copy_of(CHECKOUT, copy)
        if options.compare is None:
            mutants = list(_chosen(copies[0], options))
        else:
            old = msgspec.json.decode(options.compare.read_bytes(), type=Results)
            before = {_moved(copies[0], one.mutant): one.result for one in old.outcomes}
            mutants = list(before)
        wanted = [one for one in mutants if any(fnmatch(one.module, name) for name in only or "*")]
        random.Random(options.seed).shuffle(wanted)  # a part of them is a sample
        done = _run(copies, wanted, options)
    done.sort(key=lambda outcome: (outcome.mutant.module, outcome.mutant.line))
    lost = [
        outcome
        for outcome in done
        if before.get(outcome.mutant) == "caught" and outcome.result in ("survived", "unreached")
    ]
    counts = Counter(outcome.result for outcome in done)
    yield Section(
        "mutants",
        f"Mutants, by seed {options.seed}",
        tuple(
            Row(
                f"{mutant.module}:{mutant.line}",
                {
                    "result": f"{outcome.result} {outcome.by}".strip(),
                    "before": mutant.before.strip(),
                    "after": mutant.after.strip(),
                },
            )
            for outcome in (lost if before else done)
            for mutant in (outcome.mutant,)
        ),
        goals=((f"caught before and not now: {len(lost)}", not lost),) if before else (),
        notes=(", ".join(f"{count} {result}" for result, count in counts.most_common()),),
    )


def _chosen(copy: Path, options: Options) -> Iterator[Mutant]:
    """Yield some mutants of each module: the same ones of a module for the same seed."""
    names = git(copy, "ls-files", "--", *FOLDERS).splitlines()
    if options.since is not None:
        changed = git(CHECKOUT, "diff", "--name-only", options.since).splitlines()
        names = [name for name in names if name in changed]
    for name in names:
        find = {".py": of_python, ".c": of_c, ".h": of_c}.get(Path(name).suffix)
        if find is not None and not (copy / name).is_symlink():
            found = find(name, (copy / name).read_text())
            chance = random.Random(f"{options.seed} {name}")
            yield from chance.sample(found, min(options.per_module, len(found)))


def _moved(copy: Path, mutant: Mutant) -> Mutant:
    """Return a mutant of another version at the nearest line with the same text; at 0 if gone."""
    path = copy / mutant.module
    lines = path.read_text().splitlines() if path.exists() else []
    same = [number for number, line in enumerate(lines, 1) if line == mutant.before]
    line = min(same, key=lambda number: abs(number - mutant.line), default=0)
    return msgspec.structs.replace(mutant, line=line)


def _run(copies: Sequence[Path], mutants: Sequence[Mutant], options: Options) -> list[Outcome]:
    """Give all mutants to their tests; write what is known after each."""
    os.environ["STALLSCOPE_WITHOUT"] = " ".join(options.without)
    kept = Results(options.seed, git(CHECKOUT, "rev-parse", "HEAD").strip(), [])
    if options.results.exists():  # of a run that was interrupted
        old = msgspec.json.decode(options.results.read_bytes(), type=Results)
        if (old.seed, old.commit) == (kept.seed, kept.commit):
            kept.outcomes = [outcome for outcome in old.outcomes if outcome.mutant in mutants]
    known = {outcome.mutant for outcome in kept.outcomes}
    mutants = [mutant for mutant in mutants if mutant not in known]
    kept.outcomes += [Outcome(mutant, "gone") for mutant in mutants if not mutant.line]
    here = [mutant for mutant in mutants if mutant.line]
    options.results.parent.mkdir(parents=True, exist_ok=True)
    python = [mutant for mutant in here if mutant.module.endswith(".py")]
    parts = []
    if python:
        tests = test_map(copies[0], options.tests, options.workers, RESULTS)
        parts.append(_judged(functools.partial(_python, tests), python, copies))
    if len(python) < len(here):
        _build(copies[0])
        parts.append(_judged(_c, [one for one in here if one not in python], copies[:1]))
    for outcome in itertools.chain(*parts):
        kept.outcomes.append(outcome)
        progress(f"mutants: {len(kept.outcomes)} of {len(known) + len(mutants)}")
        options.results.write_bytes(msgspec.json.format(msgspec.json.encode(kept)))
    return kept.outcomes


def _judged(
    judge: Callable[[Path, Mutant], Outcome], mutants: Sequence[Mutant], copies: Sequence[Path]
) -> Iterator[Outcome]:
    """Yield what becomes of mutants, in as many at a time as there are copies."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(mutant: Mutant) -> Outcome:
        copy = free.get()
        try:
            return judge(copy, mutant)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        for done in as_completed([pool.submit(one, mutant) for mutant in mutants]):
            yield done.result()


@contextlib.contextmanager
def _mutated(copy: Path, mutant: Mutant) -> Iterator[None]:
    """Have a mutant in the place of its line."""
    path = copy / mutant.module
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    lines[mutant.line - 1] = lines[mutant.line - 1].replace(mutant.before, mutant.after)
    try:
        _write(path, "".join(lines))
        yield
    finally:
        _write(path, text)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    if path.suffix == ".py":  # byte code is known by the second of its source: one of its own
        os.utime(path, (next(SECONDS),) * 2)


def _python(tests: TestMap, copy: Path, mutant: Mutant) -> Outcome:
    lines = tests.lines.get(mutant.module, {})
    span = statement((copy / mutant.module).read_text(), mutant.line)
    chosen = {test for line in span for test in lines.get(line, ())}
    if not chosen and any(line in lines for line in span):  # it runs at the import
        chosen = {test for reached in lines.values() for test in reached}
    if not chosen:
        return Outcome(mutant, "unreached")
    words = set(re.split(r"\W|_", mutant.module))

    def far(number: int) -> tuple[int, float]:
        file = tests.tests[number].partition("::")[0]
        return -len(words & set(re.split(r"\W|_", file))), tests.seconds[number]

    names: list[str] = []
    cost = 0.0
    files = set()
    for number in sorted(chosen, key=far):
        files.add(tests.tests[number].partition("::")[0])
        cost += tests.seconds[number]
        if names and cost + len(files) * FILE_SECONDS > CPU_SECONDS:
            break
        names.append(tests.tests[number])
    with _mutated(copy, mutant):
        for some in (names[:FIRST], names[FIRST:]):
            if some and (outcome := _tested(copy, mutant, some, cost)) is not None:
                return outcome
    return Outcome(mutant, "survived")


def _tested(copy: Path, mutant: Mutant, names: Sequence[str], cost: float) -> Outcome | None:
    """Run tests until one fails; return nothing where none does."""
    with tempfile.TemporaryDirectory(prefix="stallscope-mutant-") as folder:
        arguments = Path(folder) / "tests"
        arguments.write_text("\n".join(names))
        ended = Path(folder) / "outcomes"
        process = subprocess.Popen(
            [*pytest_words([f"@{arguments}"]), "-x"],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "STALLSCOPE_OUTCOMES": str(ended)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        seconds = int(CPU_SECONDS + CPU_FACTOR * cost)
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (seconds, seconds))
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (DATA_LIMIT, DATA_LIMIT))
        try:
            code = process.wait(WALL_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        failed = [test for test, outcome, _ in outcomes(ended) if outcome == "failed"]
    if failed or code == 1:
        return Outcome(mutant, "caught", "".join(failed[:1]))
    if code < 0:
        return Outcome(mutant, "caught", "it did not end")
    return Outcome(mutant, "broken") if code else None


def _build(copy: Path) -> None:
    """Make a build of its own for a copy, which has a link to that of the checkout."""
    (copy / "build").unlink(missing_ok=True)
    done = _run_in(copy, "meson", "setup", "build", "-Dtests=true")
    if done.returncode or (done := _ninja(copy)).returncode:
        raise BenchError(f"the C tests cannot be built: {done.stdout[-400:]}")


def _run_in(copy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=copy, capture_output=True, text=True)


def _ninja(copy: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Build the C tests."""
    known = _run_in(copy, "ninja", "-C", "build", "-t", "targets", "all").stdout
    names = re.findall(r"^(tests/c/test-\w+):", known, re.MULTILINE)
    return _run_in(copy, "ninja", "-C", "build", *options, *names)


def _c(copy: Path, mutant: Mutant) -> Outcome:
    with _mutated(copy, mutant):
        outcome = _c_tested(copy, mutant)
    _ninja(copy)
    return outcome


def _c_tested(copy: Path, mutant: Mutant) -> Outcome:
    """Build and run the C tests that are linked with what the mutant is in."""
    names = re.findall(r"Linking target tests/c/test-(\S+)", _ninja(copy, "-n").stdout)
    if not names:
        return Outcome(mutant, "unreached")
    if _ninja(copy).returncode:
        return Outcome(mutant, "broken")
    stem = Path(mutant.module).stem
    names.sort(key=lambda name: (name not in stem and stem not in name, name))
    words = ("meson", "test", "-C", "build", "--no-rebuild", "--maxfail=1", "-t", "0.2", *names)
    done = _run_in(copy, *words)
    if done.returncode:
        failed = re.search(r" (\S+) +(?:FAIL|TIMEOUT|ERROR|INTERRUPT)", done.stdout)
        return Outcome(mutant, "caught", f"tests/c: {failed[1] if failed else '?'}")
    return Outcome(mutant, "survived")
