# SPDX-License-Identifier: Apache-2.0
"""Saved reports of ``storage writes``: compared, drawn, and as hostile input."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope import main
from stallscope.analyzers import storagewrites as analysis
from stallscope.analyzers.storagewritesdiff import diff
from stallscope.base.errors import StallscopeError
from stallscope.model import storagewrites as model
from stallscope.model.storagecounters import Commits, StorageChanges
from stallscope.model.storagewrites import Point, WritesReport
from stallscope.reporters import storagewrites, storagewritesdiff
from stallscope.reporters.html import storagepage
from stallscope.reporters.html.assets import Assets
from tests.unit import writesfacts
from tests.unit.writesfacts import CHANGES, MIB

GOLDEN = Path(__file__).parent.parent / "data" / "storagewrites"
ASSETS = Assets("", ":root { --card: #fff; }", "")


def with_doublewrite() -> WritesReport:
    return analysis.report(writesfacts.mysql(), CHANGES)


def without(commits: float = 13_000.0) -> WritesReport:
    """Return the same server without its doublewrite buffer."""
    made = writesfacts.measured(
        writesfacts.line(
            writesfacts.file("/data/t/a.ibd", "data", 320 * MIB),
            writesfacts.file("/data/ib_logfile0", "redo", 60 * MIB),
        )
    )
    changes: StorageChanges = msgspec.structs.replace(
        CHANGES,
        commits=Commits(commits, "Binlog_cache_use", exact=True),
        rows=commits * 5,
        counters={},
        settings={**CHANGES.settings, "innodb_doublewrite": "OFF"},
    )
    return analysis.report(made, changes)


def by_class(a: WritesReport, b: WritesReport) -> dict[str, Any]:
    return {change.file_class: change for change in diff(a, b).changes}


def test_golden() -> None:
    found = diff(with_doublewrite(), without())
    rows = storagewritesdiff.render(found, width=80, names=("before.json", "after.json"))
    text = "".join(f"{row.text}\n" for row in rows)
    assert all(len(row.text) <= 80 for row in rows)
    for name, said in (("diff.txt", text), ("diff.json", storagewritesdiff.dumps(found) + "\n")):
        path = GOLDEN / name
        if os.environ.get("STALLSCOPE_UPDATE_GOLDEN"):
            path.write_text(said, encoding="utf-8")
        assert said == path.read_text(encoding="utf-8")


def test_factors() -> None:
    found = by_class(with_doublewrite(), without())
    assert found["database files"].factor_per_second == pytest.approx(320 / 640)
    assert found["database files"].factor_per_commit == pytest.approx(320 / 640 * 12 / 13)
    assert found["doublewrite"].factor_per_commit == 0
    assert found["redo"].factor_per_second == 1
    assert "undo" not in found


def test_settings_that_differ() -> None:
    assert diff(with_doublewrite(), without()).settings == (("innodb_doublewrite", "ON", "OFF"),)


def test_nothing_differs() -> None:
    found = diff(with_doublewrite(), with_doublewrite())
    assert found.settings == ()
    assert found.warnings == ()
    assert all(change.factor_per_commit == 1 for change in found.changes)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"commits": 1.0}, "commits a second"),
        ({"commits": 0.0}, "commits a second"),
        ({"commits": None}, "commits are not known in both"),
        ({"commits_exact": False}, "commits are not exact"),
        ({"server": "mysqld"}, "A is of mariadbd"),
        ({"version": "11.8"}, "B of mariadbd 11.8"),
        ({"seconds": 600.0}, "A covers 60 s, B 600 s"),
        ({"bytes": None}, "B: charged bytes are not known"),
        ({"lost": {"keys-full": 2}}, "B: events were lost"),
    ],
)
def test_warnings(change: dict[str, Any], expected: str) -> None:
    other = msgspec.structs.replace(with_doublewrite(), **change)
    assert any(expected in text for text in diff(with_doublewrite(), other).warnings)


def test_without_sql_the_bytes_a_second_are_compared() -> None:
    plain = analysis.report(writesfacts.mysql(), None)
    rows = storagewritesdiff.render(diff(plain, plain), width=80, names=("a", "b"))
    assert "1.00 times as much a second" in rows[0].text
    assert any(row.text.startswith("Class") and "A, /s" in row.text for row in rows)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "a.json", tmp_path / "b.json"
    for path, report in zip(paths, (with_doublewrite(), without()), strict=True):
        path.write_text(storagewrites.dumps(report) + "\n")
    return paths


def test_the_command_diff(saved: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["diff", *map(str, saved)]) == 0
    assert capsys.readouterr().out.startswith("B writes 0.47 times as much a commit as A.")
    assert main.main(["diff", "--json", *map(str, saved)]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == storagewritesdiff.SCHEMA


def test_a_report_and_something_else(
    saved: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "stacks.txt"
    other.write_text("Thread 1 (Thread 0x7f):\n#0  0x1 in f ()\n")
    for names in ((saved[0], other), (other, saved[0])):
        assert main.main(["diff", *map(str, names)]) == 1
        said = capsys.readouterr().err
        assert f"{saved[0]} is a report of storage writes, and {other} is not" in said


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Script and style of the report are bundled by the build, which tests do without."""
    folder = tmp_path / "web"
    folder.mkdir()
    for name in ("report.js", "report.css", "licences.txt"):
        (folder / name).write_text("")
    monkeypatch.setenv("STALLSCOPE_WEB", str(folder))
    return folder


@pytest.mark.usefixtures("web")
def test_the_command_report(
    saved: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "x.html"
    assert main.main(["report", *map(str, saved), "-o", str(page)]) == 1
    assert "name only that" in capsys.readouterr().err
    assert main.main(["report", "--compare", *map(str, saved), "-o", str(page)]) == 1
    assert main.main(["report", str(saved[0]), "-o", str(page)]) == 0
    assert "where the bytes went" in capsys.readouterr().out
    assert page.stat().st_mode & 0o777 == 0o600
    assert page.read_text().startswith("<!doctype html>")
    assert main.main(["report", str(saved[0]), "-o", str(page)]) == 1
    assert "--force" in capsys.readouterr().err


def test_the_page_runs_nothing_and_loads_nothing() -> None:
    text = storagepage.render(analysis.report(writesfacts.hostile(), None), ASSETS).decode()
    assert "<script" not in text
    assert not re.search(r'(src|href)=|style="|url\(', text)
    assert "default-src 'none'; style-src 'sha256-" in html.unescape(text)
    assert "\x1b" not in text
    names = storagepage.render(
        analysis.report(
            writesfacts.measured(
                writesfacts.line(writesfacts.file("/<script>alert(1)</script>", "<b>", MIB))
            ),
            None,
        ),
        ASSETS,
    ).decode()
    assert "<script>" not in names
    assert "&lt;script&gt;" in names


def test_the_bars_are_the_numbers() -> None:
    series = (
        Point(10.0, {"data": 10 * MIB, "redo": 30 * MIB}),
        Point(20.0, {"data": 80 * MIB, "redo": 0}),
    )
    drawing = storagepage.bars(series)
    assert drawing is not None
    assert drawing.classes == ("redo", "data")
    first, second = drawing.columns
    assert sum(part.height for part in second.parts) == storagepage.HEIGHT
    assert [part.height for part in first.parts] == [
        storagepage.HEIGHT * 30 / 80,
        storagepage.HEIGHT * 10 / 80,
    ]
    assert first.cells == ("3 MiB/s", "1 MiB/s")
    assert second.cells == ("-", "8 MiB/s")
    assert drawing.grid[-1] == (0.0, "8 MiB/s")
    assert storagepage.bars(series[:1]) is None
    assert storagepage.bars(()) is None


def test_many_intervals_are_drawn_as_fewer() -> None:
    drawing = storagepage.bars([Point(float(n), {"data": n}) for n in range(1, 4001)])
    assert drawing is not None
    assert len(drawing.columns) <= storagepage.MAX_COLUMNS


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "stallscope.storage-writes/2"},
        {"seconds": -1.0},
        {"seconds": 1e300},
        {"classes": [{"class": "x" * 5000, "bytes": 1, "requests": 1}]},
        {"classes": [{"class": "data", "bytes": -1, "requests": 1}]},
        {"classes": [{"class": "data", "bytes": 2**70, "requests": 1}]},
        {"series": [{"seconds": 1, "bytes": {"data": "many"}}]},
        {"series": [{"seconds": 1, "bytes": {}}] * 5000},
        {"notes": ["x" * 5000]},
        {"classes": None},
    ],
)
def test_damaged_reports_get_one_line(change: dict[str, Any]) -> None:
    document = json.loads(storagewrites.dumps(with_doublewrite())) | change
    with pytest.raises(StallscopeError) as caught:
        model.loads(json.dumps(document).encode(), "a.json")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("a.json")


def test_a_file_that_is_too_large() -> None:
    with pytest.raises(StallscopeError, match="larger than 16 MiB"):
        model.loads(b" " * (model.MAX_BYTES + 1), "a.json")


def test_nesting_without_end() -> None:
    with pytest.raises(StallscopeError):
        model.loads(b'{"schema":"stallscope.storage-writes/1","notes":' + b"[" * 100_000, "a")


NUMBERS = st.one_of(st.integers(-5, 2**63 - 1), st.floats(0, 1e18), st.none())
TEXTS = st.text(max_size=30) | st.just("\x1b[31m\u202e<b>")


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A report in which some values are others."""
    document: dict[str, Any] = json.loads(storagewrites.dumps(with_doublewrite()))
    for name in draw(st.lists(st.sampled_from(sorted(document)), max_size=4)):
        if isinstance(document[name], (int, float)):
            document[name] = draw(NUMBERS)
        elif isinstance(document[name], str) and name != "schema":
            document[name] = draw(TEXTS)
        elif isinstance(document[name], dict):
            document[name] = draw(st.dictionaries(TEXTS, NUMBERS | TEXTS, max_size=4))
    for item in document["classes"] + document["files"] + document["devices"]:
        for name in draw(st.lists(st.sampled_from(sorted(item)), max_size=2)):
            item[name] = draw(NUMBERS) if isinstance(item[name], int) else draw(TEXTS | st.none())
    for point in document["series"]:
        point["seconds"] = draw(st.floats(0, 1e17))
        point["bytes"] = draw(st.dictionaries(TEXTS, st.integers(0, 2**63 - 1), max_size=5))
    return document


def shown(report: WritesReport) -> Iterator[str]:
    """Yield all lines that can be made of a report."""
    for row in storagewrites.render(report, width=80, full=True):
        yield row.text
    other = with_doublewrite()
    for pair in ((report, other), (other, report)):
        found = diff(*pair)
        storagewritesdiff.dumps(found)
        for row in storagewritesdiff.render(found, width=80, names=("a", "b")):
            yield row.text


@settings(max_examples=40)
@given(documents())
def test_any_report_that_is_read_can_be_shown(document: dict[str, Any]) -> None:
    try:
        report = model.loads(json.dumps(document).encode(), "a.json")
    except StallscopeError:
        return
    for text in shown(report):
        assert text.isprintable()
        assert len(text) <= 80
    page = storagepage.render(report, ASSETS)
    assert b"\x1b" not in page
    assert b"<b>" not in page


@given(st.binary(max_size=300))
def test_any_bytes_get_one_line(data: bytes) -> None:
    model.is_saved(data)
    with pytest.raises(StallscopeError) as caught:
        model.loads(data, "a.json")
    assert "\n" not in str(caught.value)
