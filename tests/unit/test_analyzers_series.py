# SPDX-License-Identifier: Apache-2.0
"""Several captures: what persists, moves, comes and goes; what changed between two sets."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from stallscope.analyzers import catalog, engine
from stallscope.analyzers.diff import diff
from stallscope.analyzers.series import Sample, related, sample, series
from stallscope.main import main
from tests.unit.scenes import FUTEX, IDLE_SESSION, Scenery

WAIT = f"{FUTEX}, open_table, open_tables, mysql_execute_command, do_command"
HOLD = "pread64, my_pread, open_table_def, get_table_share, open_table, do_command"
SCAN = "row_search_mvcc, ha_innobase::rnd_next, mysql_execute_command, do_command"

GDB = """\
Thread 2 (Thread 0x7f01 (LWP 12)):
#0  0x01 in {leaf} () from /lib/libc.so.6
#1  0x02 in work ()
#2  0x03 in do_command ()
Thread 1 (Thread 0x7f00 (LWP 11)):
#0  0x01 in poll () from /lib/libc.so.6
#1  0x02 in handle_connections_sockets ()
#2  0x03 in main ()
"""


def taken(
    signatures: catalog.Catalog, name: str, threads: dict[int, str], time_ns: int | None = None
) -> Sample:
    scenery = Scenery()
    for tid, stack in threads.items():
        scenery.add(stack, tid=tid, state="?")
    capture = msgspec.structs.replace(scenery.capture(), time_ns=time_ns)
    return sample(engine.analyze(capture, signatures), name)


def stalled(waiters: int) -> dict[int, str]:
    return {1: IDLE_SESSION, 2: HOLD, **dict.fromkeys(range(10, 10 + waiters), WAIT)}


def test_what_persists_moves_comes_and_goes(signatures: catalog.Catalog) -> None:
    one = taken(signatures, "a", stalled(12), 1)
    two = taken(signatures, "b", {**stalled(8), 18: SCAN, 30: SCAN}, 2)
    three = taken(signatures, "c", stalled(8), 3)
    report = series([three, one, two])
    assert report.names == ("a", "b", "c")
    (verdict,) = report.verdicts
    assert (verdict.signature, verdict.samples) == ("table-open-lock", 3)
    assert verdict.blockers == {2: 3}
    assert [stuck.tids for stuck in report.stuck] == [tuple(range(10, 18)), (2,)]
    assert (report.moved, report.came, report.went) == (1, 1, 5)
    assert [course.counts for course in report.persists] == [(12, 8, 8), (1, 1, 1)]
    assert [course.counts for course in report.comes_and_goes] == [(0, 2, 0)]


def test_samples_without_times_stay_in_their_order(signatures: catalog.Catalog) -> None:
    items = [taken(signatures, name, {1: SCAN}, time) for name, time in (("b", 2), ("a", None))]
    assert series(items).names == ("b", "a")
    assert series(items).quiet == 2


def test_dumps_of_strangers_are_not_related(signatures: catalog.Catalog) -> None:
    one, other = ({1: SCAN, 2: SCAN}, {7: SCAN, 8: SCAN})
    assert not related([taken(signatures, "a", one), taken(signatures, "b", other)])
    assert related([taken(signatures, "a", one), taken(signatures, "b", one)])
    assert not related([taken(signatures, "a", one)])


def test_diff(signatures: catalog.Catalog) -> None:
    quiet = [taken(signatures, "a", {1: IDLE_SESSION, 2: SCAN, 3: SCAN, 4: HOLD})]
    stall = [taken(signatures, name, stalled(12)) for name in ("b", "c")]
    report = diff(quiet, stall)
    assert report.before.quiet == 1
    assert report.after.verdicts == (("table-open-lock", 2),)
    assert [(change.frames[-2], change.after) for change in report.new] == [
        ("mysql_execute_command", 12)
    ]
    assert [(change.before, change.after) for change in report.gone] == [(2, 0)]
    assert not report.more
    assert not report.fewer
    assert diff(stall, stall).new == ()
    assert diff(stall, stall).stuck == tuple(stalled(12))[1:]


def test_diff_by_the_first_frames(signatures: catalog.Catalog) -> None:
    before = [taken(signatures, "a", {1: "a, b, c", 2: "a, b, d"})]
    after = [taken(signatures, "b", {1: "a, b, e", 2: "a, b, f", 3: "a, b, f"})]
    (change,) = diff(before, after, frames=2).more
    assert (change.frames, change.before, change.after) == (("a", "b"), 2, 3)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, leaf in (("1.txt", "read"), ("2.txt", "read"), ("3.txt", "fsync")):
        (tmp_path / name).write_text(GDB.format(leaf=leaf))
    assert main(["analyze", "--series", "--json", str(tmp_path)]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == "stallscope.series/1"
    assert value["samples"] == 3
    assert main(["analyze", str(tmp_path)]) == 0
    assert "Over 3 samples" in capsys.readouterr().out
    assert main(["diff", "--json", str(tmp_path / "1.txt"), str(tmp_path / "3.txt")]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == "stallscope.diff/1"
    assert value["new"][0]["frames"][0] == "fsync"
    assert main(["diff", str(tmp_path / "1.txt"), str(tmp_path)]) == 0
    assert "3 samples" in capsys.readouterr().out


def test_diff_with_a_folder_without_stacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "1.txt").write_text("nothing here\n")
    assert main(["diff", str(tmp_path), str(tmp_path)]) == 1
    assert "none of its files contains stacks" in capsys.readouterr().err
