# SPDX-License-Identifier: Apache-2.0
"""Where the bytes went: what was measured in, exactly this text and JSON out.

``STALLSCOPE_UPDATE_GOLDEN=1 pytest tests/unit/test_storage_writes.py`` writes the files: read the
difference before you keep it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from stallscope.analyzers import storagewrites as analysis
from stallscope.model import storagewrites as model
from stallscope.model.storage import ProcessIo
from stallscope.model.storagecounters import StorageChanges
from stallscope.model.storagewrites import Measured, WritesReport
from stallscope.reporters import storagewrites
from tests.unit import writesfacts
from tests.unit.writesfacts import CHANGES, MIB

GOLDEN = Path(__file__).parent.parent / "data" / "storagewrites"
CASES: dict[str, tuple[Callable[[], Measured], StorageChanges | None, str]] = {
    "mysql": (writesfacts.mysql, CHANGES, ""),
    "without-sql": (writesfacts.mysql, None, "--no-sql"),
    "idle": (writesfacts.idle, CHANGES, ""),
    "unknown": (writesfacts.unknown, None, "access denied"),
    "hostile": (writesfacts.hostile, None, "no\x1b[1m"),
}


def report_of(name: str) -> WritesReport:
    made, changes, why = CASES[name]
    return analysis.report(made(), changes, why)


def by_class(report: WritesReport) -> dict[str, model.ClassWrites]:
    return {item.file_class: item for item in report.classes}


def texts(value: object) -> Iterator[str]:
    """Yield all texts of a JSON document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts(item)


def check(path: Path, text: str) -> None:
    if os.environ.get("STALLSCOPE_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    report = report_of(name)
    text = "".join(f"{row.text}\n" for row in storagewrites.render(report, width=80))
    check(GOLDEN / f"{name}.txt", text)
    check(GOLDEN / f"{name}.json", storagewrites.dumps(report) + "\n")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("full", [True, False])
def test_lines_fit_and_control_nothing(name: str, full: bool) -> None:
    for row in storagewrites.render(report_of(name), width=80, full=full):
        assert len(row.text) <= 80, row.text
        assert row.text.isprintable()


@pytest.mark.parametrize("name", CASES)
def test_a_saved_report_is_read_again(name: str) -> None:
    report = report_of(name)
    data = storagewrites.dumps(report).encode()
    assert model.is_saved(data)
    assert model.loads(data, "x") == report
    found = json.loads(data)
    contract = {"schema", "seconds", "classes", "process_write_bytes"}
    assert contract <= found.keys()
    assert all({"class", "bytes", "requests"} <= item.keys() for item in found["classes"])
    assert all(text.isprintable() for text in texts(found))


def test_the_doublewrite_buffer_is_taken_from_the_system_tablespace() -> None:
    found = by_class(report_of("mysql"))
    assert found["doublewrite"].bytes == 20_000 * 16_384
    assert found["doublewrite"].requests == 320
    assert found["data"].bytes == 640 * MIB - 20_000 * 16_384
    assert found["data"].estimated == "Innodb_dblwr_pages_written"
    without = by_class(report_of("without-sql"))
    assert without["doublewrite"].bytes == 0
    assert without["data"].bytes == 640 * MIB


def test_one_with_files_of_its_own_is_left_alone() -> None:
    made = writesfacts.measured(
        writesfacts.line(
            writesfacts.file("/d/#ib_16384_0.dblwr", "doublewrite", 9 * MIB),
            writesfacts.file("/d/ibdata1", "data", 10 * MIB),
        )
    )
    found = by_class(analysis.report(made, CHANGES))
    assert (found["doublewrite"].bytes, found["data"].bytes) == (9 * MIB, 10 * MIB)
    assert found["data"].estimated is None


def test_ratios() -> None:
    report = report_of("mysql")
    found = report.amplification
    assert found.database_bytes == 640 * MIB
    assert found.database_per_row_byte == pytest.approx(640 / 12)
    assert found.all_per_row_byte == pytest.approx(750 / 12)
    assert found.all_per_log_byte == pytest.approx(750 / 20)
    assert found.doublewrite_factor == pytest.approx(640 / (640 - 20_000 / 64))
    assert report_of("without-sql").amplification.doublewrite_factor is None
    assert report_of("without-sql").amplification.database_per_row_byte is None


def test_nothing_known_is_null_and_never_0() -> None:
    report = report_of("unknown")
    assert report.bytes is None
    assert report.process_write_bytes is None
    assert report.process is None
    found = by_class(report)["data"]
    assert found.bytes is None
    assert found.share is None
    assert found.requested_bytes == 3 * MIB
    assert (report.commits, report.rows, found.bytes_per_commit) == (None, None, None)
    assert report.unaccounted[0].bytes is None


def test_charged_bytes_that_no_device_got() -> None:
    """Large folios: much is charged for little, and the disk of the made host got 1 GiB."""
    large = writesfacts.file("/pg/pg_wal/1", "redo", 4096 * MIB, requested_bytes=60 * MIB)
    report = analysis.report(writesfacts.measured(writesfacts.line(large)), None)
    assert any("charged is far more" in note for note in report.notes)
    plain = writesfacts.file("/pg/pg_wal/1", "redo", 900 * MIB, requested_bytes=60 * MIB)
    report = analysis.report(writesfacts.measured(writesfacts.line(plain)), None)
    assert not any("charged is far more" in note for note in report.notes)


def test_an_idle_server() -> None:
    report = report_of("idle")
    assert report.bytes == 0
    assert report.accounted is None
    assert all(item.share is None for item in report.classes)
    assert storagewrites.render(report, width=80)[0].text.endswith("wrote nothing.")


def test_processes_that_ended_are_in_their_parent() -> None:
    """What 78 had written before is taken from what its parent got when it ended."""
    report = report_of("hostile")
    # 77 has 12 MiB + 8192 of its own; 5000 were of 78 before; 3 MiB are of a process that began.
    assert report.process_write_bytes == 12 * MIB + 8192 - 5000 + 3 * MIB


def test_a_process_that_ended_and_was_never_read_makes_it_unknown() -> None:
    made = writesfacts.hostile()
    first = msgspec.structs.replace(made.first, io={})
    report = analysis.report(msgspec.structs.replace(made, first=first), None)
    assert report.process_write_bytes is None


def test_files_of_several_processes_are_one() -> None:
    one = writesfacts.file("/base/1/2", "data", MIB)
    made = writesfacts.measured(writesfacts.line(one), writesfacts.line(one, pid=78))
    report = analysis.report(made, None)
    assert [file.bytes for file in report.files] == [2 * MIB]
    assert by_class(report)["data"].files == 1


def test_devices() -> None:
    found = report_of("mysql").devices
    assert [(device.name, device.dev) for device in found] == [("vda1", "254:1"), (None, "0:40")]
    assert found[0].bytes == 1024 * MIB
    assert found[0].flushes == 1000
    assert found[1].bytes is None
    assert found[1].server_bytes == 8 * MIB


def test_a_file_system_without_a_device_of_its_own() -> None:
    made = writesfacts.measured(
        writesfacts.line(writesfacts.file("/b/x.ibd", "data", MIB, dev="0:33")),
        sources={"0:33": "vda1"},
    )
    (found,) = analysis.report(made, None).devices
    assert (found.name, found.bytes) == ("vda1", 1024 * MIB)


def test_other_processes() -> None:
    assert report_of("mysql").other_processes_bytes == 5 * MIB - 500
    made = writesfacts.mysql()
    hidden = msgspec.structs.replace(made.last, others={}, hidden=80)
    report = analysis.report(msgspec.structs.replace(made, last=hidden), None)
    assert report.other_processes_bytes is None


def test_the_course() -> None:
    half, last = report_of("mysql").series
    assert (half.seconds, last.seconds) == (30.0, 60.0)
    assert half.bytes["redo"] == last.bytes["redo"] == 30 * MIB


def test_bytes_beyond_the_classes_are_named() -> None:
    found = {item.what: item.bytes for item in report_of("mysql").unaccounted}
    assert found == {"beyond the files": 8192, "mmap": 2 * MIB, "cancelled": 4096}
    found = {item.what: item.bytes for item in report_of("hostile").unaccounted}
    assert found["new processes"] == 3 * MIB


def test_blocks_of_the_file_system_are_named() -> None:
    made = writesfacts.line(writesfacts.file(None, "other", MIB, metadata=True))
    report = analysis.report(writesfacts.measured(made), None)
    assert report.files[0].metadata
    found = {item.what: item.bytes for item in report.unaccounted}
    assert found["metadata"] == MIB
    text = [row.text for row in storagewrites.render(report, width=80)]
    assert any("blocks of the file system" in row for row in text)


def test_classes_that_have_more_than_the_process_are_named() -> None:
    made = writesfacts.line(
        writesfacts.file("/d/a.ibd", "data", 10 * MIB), io=ProcessIo(1, 1, 5 * MIB, 0)
    )
    found = analysis.report(writesfacts.measured(made), None).unaccounted
    assert [(item.what, item.bytes) for item in found] == [("more than /proc/PID/io", 5 * MIB)]


def test_bytes_of_a_file_that_gets_its_class_late_are_counted_once() -> None:
    before = {"other": 5 * 4096, "data": 100 * 4096}
    total = {"other": 3 * 4096, "data": 110 * 4096, "redo": 4096}
    grown = analysis._grown(total, before)
    assert grown == {"other": 0, "data": 8 * 4096, "redo": 4096}
    assert sum(grown.values()) == sum(total.values()) - sum(before.values())
