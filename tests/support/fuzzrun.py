# SPDX-License-Identifier: Apache-2.0
"""``./scripts/fuzz``: run the fuzzers of C and of Python for hours (docs/testing.md)."""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["TARGETS", "Slice", "executions_of", "main", "share"]

CHECKOUT = Path(__file__).resolve().parents[2]
FUZZ = CHECKOUT / "tests/fuzz"
BUILD = CHECKOUT / "build-fuzz"
FOUND = BUILD / "corpus"
"""A folder a target: inputs that reach new code, with which the next run begins."""
CRASHES = BUILD / "crashes"
OPTIONS = (
    "-Dtests=true",
    "-Dfuzz=true",
    "-Db_sanitize=address,undefined",
    "-Db_lundef=false",
    "-Doptimization=1",
    "-Dc_args=-g1",
)
READERS = ("captures", "formats", "importers", "lines")
IN_C = tuple(sorted(path.stem.removeprefix("fuzz_") for path in FUZZ.glob("fuzz_*.c")))
TARGETS = (*IN_C, *(f"py-{name}" for name in READERS))
MOST_JOBS = 2
SLICE_SECONDS = 600.0
"""The longest turn of a target: a run that is interrupted has tried all of them alike."""
KEPT_BYTES = 64 << 10
"""Larger inputs are not for the tree."""
SAID = re.compile(r"^(\d+) executions", re.M)


class Slice(NamedTuple):
    """A turn of one target."""

    target: str
    seconds: float


def share(targets: Sequence[str], hours: float, jobs: int) -> list[Slice]:
    """Share the time of all jobs out evenly, in turns."""
    seconds = hours * 3600 * jobs / len(targets)
    turns = max(1, round(seconds / SLICE_SECONDS))
    return [Slice(target, seconds / turns) for _ in range(turns) for target in targets]


def executions_of(said: str) -> int:
    """Return the number of executions that a fuzzer reported, 0 if it crashed."""
    found = SAID.findall(said)
    return int(found[-1]) if found else 0


def _examples() -> dict[str, list[str]]:
    """Return what Meson gives each fuzzer of C: the examples that it made, and the corpus."""
    listed = subprocess.run(
        ["meson", "introspect", "--tests", BUILD], capture_output=True, text=True, check=True
    ).stdout
    return {
        test["name"].removeprefix("fuzz-"): [str(BUILD / path) for path in test["cmd"][3:]]
        for test in json.loads(listed)
        if test["name"].startswith("fuzz-")
    }


def _build(targets: Sequence[str]) -> dict[str, list[str]]:
    in_c = [target for target in targets if target in IN_C]
    if not in_c:
        return {}
    if not (BUILD / "build.ninja").exists():
        subprocess.run(["meson", "setup", *OPTIONS, BUILD], check=True, cwd=CHECKOUT)
    # A fuzzer that is new since the last run is listed only afterwards.
    subprocess.run(["ninja", "build.ninja"], check=True, cwd=BUILD)
    examples = _examples()
    files = {
        file for target in in_c for file in examples[target] if Path(file).is_relative_to(BUILD)
    }
    wanted = [f"tests/fuzz/fuzz-{target}" for target in in_c]
    wanted += sorted(str(Path(file).relative_to(BUILD)) for file in files)
    subprocess.run(["ninja", *wanted], check=True, cwd=BUILD)
    return examples


def _command(turn: Slice, examples: dict[str, list[str]]) -> list[str | Path]:
    seconds = ("--seconds", f"{turn.seconds:.0f}")
    if turn.target not in IN_C:
        reader = turn.target.removeprefix("py-")
        return [sys.executable, "-P", FUZZ / "fuzz_readers.py", reader, *seconds]
    found = FOUND / turn.target
    found.mkdir(parents=True, exist_ok=True)
    fuzzer = BUILD / "tests/fuzz" / f"fuzz-{turn.target}"
    return [fuzzer, *seconds, "--keep", found, *examples[turn.target], found]


def _run(turn: Slice, examples: dict[str, list[str]]) -> tuple[Slice, int, str]:
    done = subprocess.run(
        _command(turn, examples),
        cwd=CRASHES,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return turn, done.returncode, done.stdout


def _minimise(targets: Sequence[str], examples: dict[str, list[str]]) -> None:
    """Move what reaches more than the tree's examples do into the tree, and nothing else."""
    for target in targets:
        if target not in IN_C or not (FOUND / target).is_dir():
            continue
        fuzzer = BUILD / "tests/fuzz" / f"fuzz-{target}"
        given = [argument for example in examples[target] for argument in ("--given", example)]
        subprocess.run([fuzzer, "--minimise", *given, FOUND / target], check=True, cwd=CRASHES)
        corpus = FUZZ / "corpus" / target
        corpus.mkdir(exist_ok=True)
        for path in (FOUND / target).iterdir():
            if path.stat().st_size <= KEPT_BYTES:
                path.replace(corpus / path.name)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument(
        "--hours", type=float, default=1.0, help="of all targets together, on idle CPUs"
    )
    parser.add_argument("--jobs", type=int, choices=range(1, MOST_JOBS + 1), default=MOST_JOBS)
    parser.add_argument(
        "--minimise",
        action="store_true",
        help="afterwards, move new inputs that reach more than the others into tests/fuzz/corpus",
    )
    parser.add_argument("target", nargs="*", help=f"all, or of: {', '.join(TARGETS)}")
    asked = parser.parse_args(argv)
    if unknown := set(asked.target) - set(TARGETS):
        parser.error(f"no target: {', '.join(sorted(unknown))}")
    return asked


def main(argv: Sequence[str]) -> int:
    """Run the targets in turns, and print how often each was executed."""
    asked = _arguments(argv)
    targets = asked.target or list(TARGETS)
    os.nice(19)
    CRASHES.mkdir(parents=True, exist_ok=True)
    examples = _build(targets)
    executions = dict.fromkeys(targets, 0)
    crashed: set[str] = set()
    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        turns = share(targets, asked.hours, asked.jobs)
        for turn, code, said in pool.map(lambda turn: _run(turn, examples), turns):
            executions[turn.target] += executions_of(said)
            print(f"{turn.target}: {executions[turn.target]:,} executions", flush=True)
            if code:
                crashed.add(turn.target)
                print(said[-4000:], flush=True)
    if asked.minimise:
        _minimise(targets, examples)
    for target, count in executions.items():
        print(f"{target:14} {count:13,}{'  CRASHED' if target in crashed else ''}")
    print(f"{'all':14} {sum(executions.values()):13,} executions, {len(crashed)} targets crashed")
    if crashed:
        print(f"their inputs are in {CRASHES}; fuzz-TARGET --seconds 0 FILE runs one again")
    return 1 if crashed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
