# SPDX-License-Identifier: Apache-2.0
"""What partitions and the mentions of a UNION take in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from tests.bench import progress
from tests.bench.barchart import Bar, Bars, Group
from tests.bench.experiments.measures import memory_of, watched
from tests.bench.experiments.model import Case, Drawing, Experiment, Found, Sizes, Verdict
from tests.bench.stats import Row, Section
from tests.support.servers import MySQL55, MySQL97, SqlServer

__all__ = ["PARTITIONS"]

PARTS = 1000
MENTIONS = 200
WIDE = "id INT, v VARCHAR(32000), w VARCHAR(32000)"
"""A row of 64 KB."""
MIB, KIB = 1 << 20, 1 << 10
MADE: dict[str, Callable[[], SqlServer]] = {
    "MySQL 5.5.9": lambda: MySQL55("--open-files-limit=8192"),
    "MySQL 9.7": MySQL97,
}
PARTED, WHOLE, UNION = "partitioned", "not partitioned", "UNION"


class Grown(NamedTuple):
    """By how many bytes a server has grown: what is in memory, and what it asked for."""

    resident: int
    asked: int


def _tables(server: SqlServer, parts: int) -> None:
    server.execute(
        "CREATE DATABASE big",
        f"CREATE TABLE big.whole ({WIDE}) ENGINE=InnoDB CHARACTER SET latin1",
        f"CREATE TABLE big.parted ({WIDE}) ENGINE=InnoDB CHARACTER SET latin1"
        f" PARTITION BY HASH (id) PARTITIONS {parts}",
        "INSERT INTO big.whole VALUES (1, '', '')",
        "FLUSH TABLES",
    )


def _grown(server: SqlServer, cursor: Any, statement: str) -> Grown:
    before = memory_of(server.pid)
    cursor.execute(statement)
    after = memory_of(server.pid)
    return Grown(after[0] - before[0], after[1] - before[1])


def measure(sizes: Sizes) -> Found:
    parts, mentions = sizes.of(PARTS, 50), sizes.of(MENTIONS, 20)
    grown: dict[tuple[str, str], Grown] = {}
    verdict: Verdict | None = None
    names = list(MADE)[: sizes.of(2, 1)]
    for name in names:
        with MADE[name]() as server:
            progress(f"partitions: {name} makes {parts} partitions")
            _tables(server, parts)
            with closing(server.connect("big")) as connection, connection.cursor() as cursor:
                whole, parted = (f"SELECT id FROM {one} LIMIT 1" for one in ("whole", "parted"))
                grown[name, WHOLE] = _grown(server, cursor, whole)
                if verdict is None:
                    grown[name, PARTED], verdict = watched(
                        ["memory", "-p", str(server.pid), "--seconds", "60", "--top", "1"],
                        "stallscope memory -p PID --seconds 60 --top 1",
                        partial(_grown, server, cursor, parted),
                    )
                else:
                    grown[name, PARTED] = _grown(server, cursor, parted)
                union = " UNION ALL ".join(["SELECT * FROM whole"] * mentions)
                grown[name, UNION] = _grown(server, cursor, union)
    assert verdict is not None
    return _found(names, parts, mentions, grown, verdict)


def _found(
    names: Sequence[str],
    parts: int,
    mentions: int,
    grown: Mapping[tuple[str, str], Grown],
    verdict: Verdict,
) -> Found:
    old = names[0]
    parted, whole = grown[old, PARTED], grown[old, WHOLE]
    mention = grown[old, UNION].asked / mentions / KIB
    new = grown[names[-1], PARTED]
    return Found(
        ours=f"{parted.asked / MIB:.0f} MB asked for, {parted.resident / MIB:.0f} MB of it touched,"
        f" for {parts:,} partitions; {mention:.0f} KB a mention (5.5.9)",
        after=f"{whole.asked / MIB:.1f} MB for the same table without partitions;"
        f" 9.7: {new.asked / MIB:.1f} MB for {parts:,} partitions",
        shows="yes" if parted.asked > 100 * MIB and mention > 100 else "no",
        verdicts=(verdict,),
        tables=(
            Section(
                "partitions",
                "What a server asks for (VmData) and touches (VmRSS), rows of 64 KB",
                tuple(
                    Row(
                        f"{name}, {what}",
                        {
                            "asked for": f"{grown[name, kind].asked / unit / count:.1f} {of}",
                            "touched": f"{grown[name, kind].resident / unit / count:.1f} {of}",
                        },
                    )
                    for name in names
                    for what, kind, unit, count, of in (
                        (f"{parts:,} partitions opened", PARTED, MIB, 1, "MiB"),
                        ("the same table without, opened", WHOLE, MIB, 1, "MiB"),
                        (f"a mention in a UNION of {mentions}", UNION, KIB, mentions, "KiB"),
                    )
                ),
            ),
        ),
        drawings=(
            Drawing(
                "partitions",
                f"5.5.9 asks for {parted.asked / MIB:.0f} MB for a table of {parts:,} partitions,"
                f" 9.7 for {new.asked / MIB:.1f} MB",
                bars=Bars(
                    f"Memory that opening a table asks for, {parts:,} partitions",
                    "MiB",
                    [
                        Group(
                            name,
                            [
                                Bar(kind, *[grown[name, kind].asked / MIB] * 3)
                                for kind in (PARTED, WHOLE)
                            ],
                        )
                        for name in names
                    ],
                ),
            ),
        ),
        why="The kernel gives memory when it is touched. 5.5.9 asks for three row buffers of 64 KB"
        " for each partition at once, and touches them as partitions are read: the seed's number"
        " is what was asked for. `stallscope memory` counts what was touched.",
    )


PARTITIONS = Experiment(
    "partitions",
    "Partitions and UNION",
    Case(
        "191 MB for 1,000 partitions; 200 KB a mention in a UNION",
        "Mituzas 2011, memory (bugs 62536, 44626, 62535)",
    ),
    "A connection opens a table of 1,000 partitions whose rows can have 64 KB, the same table"
    " without partitions, and runs a UNION of 200 mentions of that one.",
    "fewer partitions; 5.7 and later, where InnoDB has partitions of its own",
    measure,
    ("mysql55", "mysql97"),
)
