# SPDX-License-Identifier: Apache-2.0
"""Tables as CSV and Parquet, read back by DuckDB and by Python."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

import duckdb
import msgspec
import pytest

from stallscope.model.capture import Frame, Thread
from stallscope.reporters.export import csvfile, parquet
from stallscope.reporters.export.source import Entry, Options
from stallscope.reporters.export.tables import MAX_TEXT, TABLES, Table
from tests.unit.captures import convoy
from tests.unit.exports import counted, dumps, entry, history, hostile, series, total

FORMS = {"csv": csvfile.render, "parquet": parquet.render}
Value = object


def write(form: str, table: Table, entries: Iterable[Entry], folder: Path) -> Path:
    path = folder / f"{table.name}.{form}"
    rows = table.rows(entries, (history(),), Options())
    path.write_bytes(b"".join(FORMS[form](table, rows)))
    return path


def ask(question: str) -> list[tuple[Value, ...]]:
    with duckdb.connect() as connection:
        return connection.execute(question).fetchall()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("entries", [series(3), list(dumps()), [counted()]])
def test_total(form: str, entries: list[Entry], tmp_path: Path) -> None:
    for name in ("threads", "groups"):
        path = write(form, TABLES[name], entries, tmp_path)
        assert ask(f"SELECT sum(count) FROM '{path}'") == [(total(entries),)]
    path = write(form, TABLES["captures"], entries, tmp_path)
    assert ask(f"SELECT sum(threads), count(*) FROM '{path}'") == [(total(entries), len(entries))]
    path = write(form, TABLES["findings"], entries, tmp_path)
    findings = sum(len(item.analysis.findings) for item in entries)
    assert ask(f"SELECT count(*) FROM '{path}'") == [(findings,)]


@pytest.mark.parametrize("name", TABLES)
def test_both_say_the_same(name: str, tmp_path: Path) -> None:
    table = TABLES[name]
    entries = [*series(2), entry(hostile("plain"))]
    one = write("parquet", table, entries, tmp_path)
    other = write("csv", table, entries, tmp_path)
    columns = ", ".join(f"'{key}': '{kind}'" for key, kind in table.columns.items())
    read = (
        f"read_csv('{other}', header = true, allow_quoted_nulls = false, columns = {{{columns}}})"
    )
    rows = ask(f"SELECT * FROM '{one}'")
    assert rows
    assert rows == ask(f"SELECT * FROM {read}")
    described = ask(f"DESCRIBE SELECT * FROM '{one}'")
    assert {row[0]: row[1] for row in described} == table.columns


def test_one_thread_in_full(tmp_path: Path) -> None:
    path = write("csv", TABLES["threads"], series(1), tmp_path)
    with path.open(newline="") as file:
        rows = {row["tid"]: row for row in csv.DictReader(file)}
    waiter = rows["101"]
    assert waiter["time"] == "2025-11-21 08:46:36.123456"
    assert (waiter["lock"], waiter["owner_tid"], waiter["state"]) == ("LOCK_open", "100", "waiting")
    assert waiter["stack"] == "__lll_lock_wait < pthread_mutex_lock < open_table"
    assert (waiter["query"], waiter["waited_ms"], waiter["on_cpu"]) == ("", "", "false")


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\uff1d1", "  =1"]
)
def test_formulas_are_text(text: str, tmp_path: Path) -> None:
    path = write("csv", TABLES["threads"], [entry(hostile(text))], tmp_path)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["count"] for row in rows} == {"1"}
    for row in rows:
        for name, kind in TABLES["threads"].columns.items():
            if kind == "VARCHAR" and row[name]:
                assert not row[name].lstrip().startswith(("=", "+", "-", "@", "\uff1d"))
    first = next(row for row in rows if row["tid"] == "1")
    assert first["query"].removeprefix("'") == text.replace("\t", "\\t").replace("\r", "\\r")


def test_numbers_stay_numbers(tmp_path: Path) -> None:
    table = Table("t", {"a": "DOUBLE", "b": "BIGINT"}, lambda *_: iter([(-1.5, -3)]))
    assert b"".join(csvfile.render(table, table.rows((), (), Options()))) == (
        b'"a","b"\r\n-1.5,-3\r\n'
    )


@pytest.mark.parametrize("form", FORMS)
def test_numbers_that_have_no_place(form: str, tmp_path: Path) -> None:
    rows = [(float("nan"), 1 << 64), (float("inf"), -(1 << 70)), (1e308, (1 << 63) - 1)]
    table = Table("t", {"a": "DOUBLE", "b": "BIGINT"}, lambda *_: iter(rows))
    path = write(form, table, (), tmp_path)
    assert ask(f"SELECT * FROM '{path}'") == [(None, None), (None, None), (1e308, (1 << 63) - 1)]


@pytest.mark.parametrize("form", FORMS)
def test_long_and_deep(form: str, tmp_path: Path) -> None:
    frames = tuple(Frame(symbol=f"f{number}" + "x" * 4000) for number in range(1000))
    thread = Thread(tid=1, frames=frames, query='"' * 1_000_000)
    capture = msgspec.structs.replace(hostile("f"), threads=(thread,))
    path = write(form, TABLES["threads"], [entry(capture)], tmp_path)
    assert ask(f"SELECT length(query), length(stack) FROM '{path}'") == [(MAX_TEXT, MAX_TEXT)]


def test_samples_are_rows(tmp_path: Path) -> None:
    path = write("parquet", TABLES["samples"], (), tmp_path)
    rows = ask(f"SELECT name, sum(value) FROM '{path}' GROUP BY name ORDER BY name")
    assert rows == [("LOCK_open", 10.0), ("Threads_running", 25.0), ("Uptime_always", 5.0)]
    path = write("parquet", TABLES["triggers"], (), tmp_path)
    assert ask(f"SELECT trigger, value FROM '{path}'") == [("threads-running", 187.0)]


def test_a_lock_that_only_the_server_reports_has_no_address(tmp_path: Path) -> None:
    capture = convoy()
    locks = tuple(msgspec.structs.replace(lock, address=0) for lock in capture.locks)
    entries = [entry(msgspec.structs.replace(capture, locks=locks))]
    for name, column in (("locks", "address"), ("threads", "lock_address")):
        path = write("parquet", TABLES[name], entries, tmp_path)
        assert ask(f"SELECT DISTINCT {column} FROM '{path}'") == [(None,)]
    assert ask(f"SELECT count(*) FROM '{path}' WHERE lock IS NOT NULL") != [(0,)]


def test_lines_end_as_the_rfc_has_it() -> None:
    data = b"".join(csvfile.render(TABLES["threads"], iter(())))
    assert data.endswith(b"\r\n")
    assert next(csv.reader(io.StringIO(data.decode()))) == list(TABLES["threads"].columns)
