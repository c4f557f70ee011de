# SPDX-License-Identifier: Apache-2.0
"""Which tests reach which lines: one run of all tests under coverage, kept by what was run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from tests.bench import progress
from tests.bench.stats import BenchError

__all__ = ["CHECKOUT", "PRODUCT", "TestMap", "copy_of", "outcomes", "pytest_words", "test_map"]

CHECKOUT = Path(__file__).resolve().parents[2]
PRODUCT = ("stallscope", "collectors", "analyzers", "scripts/lib")
LINKED = (".venv", "build")
WARNINGS = "no-data-collected, module-not-measured, module-not-imported, trace-changed"

LINES = """\
select path, context, numbits from line_bits
join file on file.id = file_id join context on context.id = context_id"""


class TestMap(msgspec.Struct, frozen=True):
    """The seconds of each test that passed, and the tests of each line by file.

    Tests are numbers here: places in ``tests``. Lines that run at an import have no tests.
    """

    __test__ = False

    tests: tuple[str, ...]
    seconds: tuple[float, ...]
    lines: Mapping[str, Mapping[int, tuple[int, ...]]]


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True)
    if done.returncode:
        raise BenchError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout


def copy_of(checkout: Path, folder: Path) -> None:
    """Make a clone of a checkout with what is not committed there, and links to what is built."""
    git(checkout, "clone", "-q", "--shared", str(checkout), str(folder))
    changed = git(checkout, "diff", "--name-only", "-z", "HEAD").split("\0")
    changed += git(checkout, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    for name in set(changed) - {"", *LINKED}:
        (folder / name).unlink(missing_ok=True)
        if (checkout / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((checkout / name).read_bytes())
            (folder / name).chmod((checkout / name).stat().st_mode)
    for name in LINKED:
        if (checkout / name).exists():
            (folder / name).symlink_to((checkout / name).resolve())


def pytest_words(tests: Sequence[str]) -> list[str]:
    """Return the command that runs tests, always in the same way."""
    words = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    words += ["-p", "tests.bench.mutants_plugin", "--hypothesis-seed=0"]
    return [*words, *tests]


def outcomes(file: Path) -> Iterator[tuple[str, str, float]]:
    """Yield what tests.bench.mutants_plugin wrote of each phase: test, outcome, seconds of CPU."""
    if file.exists():
        for line in file.read_text().splitlines():
            yield tuple(json.loads(line))


def test_map(copy: Path, tests: Sequence[str], workers: int, cache: Path) -> TestMap:
    """Return the map of a copy of the checkout, from an earlier run where nothing changed."""
    out = cache / f"map-{_key(copy, tests)}"
    kept = out.with_suffix(".json")
    if kept.exists():
        return msgspec.json.decode(kept.read_bytes(), type=TestMap)
    shutil.rmtree(out, ignore_errors=True)  # of a run that was interrupted
    out.mkdir(parents=True)
    rc = out / "coveragerc"
    rc.write_text(
        f"[run]\ndata_file = {out}/data\nparallel = true\ncontext = ${{STALLSCOPE_TEST-}}\n"
        f"disable_warnings = {WARNINGS}\nsource =\n"
        + "".join(f"    {copy / folder}\n" for folder in PRODUCT)
    )
    shards: list[list[Path]] = [[] for _ in range(workers)]
    found = [copy / name for name in tests if (copy / name).is_file()]
    found += [file for name in tests for file in sorted((copy / name).rglob("test_*.py"))]
    for file in sorted(found, key=lambda file: -file.stat().st_size):
        shards.sort(key=lambda shard: sum(file.stat().st_size for file in shard))
        shards[0].append(file)
    progress(f"mutants: which lines the tests of {len(found)} files reach")
    running = []
    for number, shard in enumerate(shards):
        env = {**os.environ, "PYTHONPATH": str(copy), "COVERAGE_PROCESS_START": str(rc)}
        env["STALLSCOPE_OUTCOMES"] = str(out / f"outcomes-{number}")
        words = pytest_words([str(file.relative_to(copy)) for file in shard])
        with open(out / f"output-{number}", "w") as output:
            running.append(subprocess.Popen(words, cwd=copy, env=env, stdout=output, stderr=output))
    if any(process.wait() not in (0, 1, 5) for process in running):
        raise BenchError(f"tests did not run to their end: {out}/output-*")
    made = _read(copy, out)
    kept.write_bytes(msgspec.json.encode(made))
    return made


def _key(copy: Path, tests: Sequence[str]) -> str:
    git(copy, "add", "-A")
    files = git(copy, "ls-files", "-s", "--", *PRODUCT, "tests", "pyproject.toml")
    run = [files, os.environ["STALLSCOPE_WITHOUT"], *tests]
    return hashlib.sha256(json.dumps(run).encode()).hexdigest()[:16]


def _read(copy: Path, out: Path) -> TestMap:
    from coverage.numbits import numbits_to_nums

    seconds: dict[str, float] = {}
    bad = set()
    for file in out.glob("outcomes-*"):
        for test, outcome, used in outcomes(file):
            seconds[test] = used
            if outcome != "passed":
                bad.add(test)
    good = sorted(seconds.keys() - bad)
    numbers = {test: number for number, test in enumerate(good)}
    lines: dict[str, dict[int, set[int]]] = {}
    for file in out.glob("data.*"):
        base = sqlite3.connect(file)
        for path, context, bits in base.execute(LINES):
            number = numbers.get(context)
            of_file = lines.setdefault(str(Path(path).relative_to(copy)), {})
            for line in numbits_to_nums(bits):
                of_line = of_file.setdefault(line, set())
                if number is not None:
                    of_line.add(number)
        base.close()
    return TestMap(
        tuple(good),
        tuple(seconds[test] for test in good),
        {
            path: {line: tuple(sorted(tests)) for line, tests in of_file.items()}
            for path, of_file in lines.items()
        },
    )
