# SPDX-License-Identifier: Apache-2.0
"""Run the experiments, keep what they found, and write the page from it."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from stallscope.model import capturefile
from tests.bench import progress
from tests.bench.experiments.acid import ACID, ROWS_PER_TRANSACTION
from tests.bench.experiments.doublewrite import DOUBLEWRITE
from tests.bench.experiments.fatrows import FAT_ROWS
from tests.bench.experiments.jemalloc import JEMALLOC
from tests.bench.experiments.model import SCHEMA, Experiment, Result, Sizes
from tests.bench.experiments.onerow import ONE_ROW
from tests.bench.experiments.page import PAGE, PICTURES, write_page
from tests.bench.experiments.partitions import PARTITIONS
from tests.bench.experiments.postgres import CONNECTIONS, SNAPSHOTS
from tests.bench.experiments.ranges import FORCE_INDEX, THREAD_CONCURRENCY
from tests.bench.experiments.readahead import READ_AHEAD
from tests.bench.experiments.tables import LOCK_OPEN, OPENING_TABLES
from tests.bench.stats import BenchError, Row, Section
from tests.support.servers import Unavailable

if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

__all__ = ["EXPERIMENTS", "Places", "kept", "sections"]

CHECKOUT = Path(__file__).resolve().parents[3]
KEPT = CHECKOUT / "tests" / "data" / "experiments.jsonl.zst"
"""The results that docs/experiments.md was made of."""
EXPERIMENTS: tuple[Experiment, ...] = (
    ONE_ROW,
    OPENING_TABLES,
    FAT_ROWS,
    ACID,
    ROWS_PER_TRANSACTION,
    DOUBLEWRITE,
    READ_AHEAD,
    PARTITIONS,
    THREAD_CONCURRENCY,
    LOCK_OPEN,
    FORCE_INDEX,
    SNAPSHOTS,
    CONNECTIONS,
    JEMALLOC,
)
QUICK = Sizes(seconds=0.5, windows=1, quick=True)


class Places(NamedTuple):
    """Where results go, and whether the page is to be written from them; nothing is measured
    then."""

    results: Path
    page: bool = False


def sections(server: str, quick: bool, only: Sequence[str], places: Places) -> Iterator[Section]:
    """Run the experiments whose names begin with one of ``only``, or all; yield their tables."""
    del server
    chosen = [
        experiment
        for experiment in EXPERIMENTS
        if not only or any(experiment.name.startswith(name) for name in only)
    ]
    if not chosen:
        names = ", ".join(experiment.name for experiment in EXPERIMENTS)
        raise BenchError(f"no experiment {', '.join(only)}: there are {names}")
    if places.page:
        _write_page(places.results)
        return
    places.results.mkdir(parents=True, exist_ok=True)
    for experiment in chosen:
        yield from _run(experiment, QUICK if quick else Sizes(), places.results)


def _run(experiment: Experiment, sizes: Sizes, folder: Path) -> Iterator[Section]:
    start, load = time.monotonic(), os.getloadavg()[0]
    try:
        found = experiment.measure(sizes)
    except Unavailable as error:
        yield Section(experiment.name, experiment.title, (), left_out=(str(error),))
        return
    progress("")
    result = Result(
        SCHEMA,
        experiment.name,
        time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        platform.release(),
        os.cpu_count() or 0,
        round(time.monotonic() - start, 1),
        round(load, 2),
        sizes.quick,
        found,
    )
    file = folder / f"{experiment.name}.json"
    file.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    yield from found.tables
    yield Section(
        f"{experiment.name}-summary",
        experiment.title,
        (
            Row("the seed", {"": experiment.seed.number}),
            Row("here", {"": found.ours}),
            Row("after the fix", {"": found.after}),
            Row("shows the effect", {"": found.shows}),
            *(
                Row(verdict.command, {"": " / ".join(verdict.says) or verdict.missing})
                for verdict in found.verdicts
            ),
        ),
        notes=(f"{result.seconds:.0f} s; kept in {file}",),
    )


def _write_page(folder: Path) -> None:
    """Write the page from the results of a folder, and of before where it has none."""
    new = {path.stem: path for path in folder.glob("*.json")}
    try:
        results = kept() | {
            item.name: msgspec.json.decode(new[item.name].read_bytes(), type=Result)
            for item in EXPERIMENTS
            if item.name in new
        }
    except msgspec.MsgspecError as error:
        raise BenchError(f"{folder}: {error}") from None
    write_page(EXPERIMENTS, results, PAGE, PICTURES)
    KEPT.write_bytes(zstd.compress(msgspec.json.Encoder().encode_lines(results.values()), 19))


def kept() -> dict[str, Result]:
    """Return the results that the page was made of, by experiment."""
    decoder = msgspec.json.Decoder(Result)
    results = decoder.decode_lines(capturefile.read_bytes(KEPT))
    return {result.experiment: result for result in results}
