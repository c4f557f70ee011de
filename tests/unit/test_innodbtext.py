# SPDX-License-Identifier: Apache-2.0
"""InnoDB's report without the data in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from stallscope.server.innodbtext import MAX_STATEMENTS, redact
from stallscope.server.statements import Statement, normalize
from tests.support.chance import SEED

__all__: list[str] = []

DATA = Path(__file__).parents[1] / "data"
REPORTS = [
    *(DATA / "deadlocks").glob("*.status"),
    *(DATA / "importers").glob("innodb-row-lock*.in"),
]
DATA_LINE = re.compile(r"\s*\d+: (?:len|SQL)|UPDATE |INSERT |SHOW ENGINE")
HEAD = """\
=====================================
2026-11-21 15:32:43 140275807086272 INNODB MONITOR OUTPUT
=====================================
------------
TRANSACTIONS
------------
---TRANSACTION 1564, ACTIVE 0 sec starting index read
MySQL thread id 11, OS thread handle 140275804972736, query id 25 localhost root updating
"""
TAIL = """
--------
FILE I/O
--------
874 OS file reads, 254 OS file writes, 77 OS fsyncs
"""


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.name)
def test_all_but_data_is_kept(path: Path) -> None:
    report = path.read_text()
    redacted = redact(report, normalize)
    assert "SECRET" not in redacted
    assert "hex " not in redacted
    kept = redacted.splitlines()
    lost = [line for line in report.splitlines() if line not in kept and not DATA_LINE.match(line)]
    assert lost == []
    assert "UPDATE" not in report or "WHERE a = ?" in redacted


def test_a_statement_of_many_lines_is_normalized_as_a_whole() -> None:
    sql = "INSERT INTO t VALUES\n('one\n\n----\n\nSECRET', 4111111111111111),\n(2, 'three')"
    lines = redact(HEAD + sql + TAIL, normalize).splitlines()
    assert lines[8] == normalize(sql).text
    assert lines[-1] == "874 OS file reads, 254 OS file writes, 77 OS fsyncs"


CARD = "4111111111111111"
PIECES = ["SECRET", "'", '"', "\\", "\n", "\n\n", " ", ";", "`", CARD, "read ", "----"]
LITERALS = st.lists(st.sampled_from([*PIECES, *TAIL.splitlines()]), max_size=12).map("".join)


@pytest.mark.large
@seed(SEED)
@settings(max_examples=300)
@given(LITERALS)
def test_whatever_a_literal_holds_does_not_come_out(literal: str) -> None:
    quoted = literal.replace("\\", "\\\\").replace("'", "\\'")
    redacted = redact(f"{HEAD}UPDATE t SET a = '{quoted}' WHERE b = 5{TAIL}", normalize)
    assert "SECRET" not in redacted
    assert CARD not in redacted


@seed(SEED)
@given(st.text(max_size=300))
@pytest.mark.large
def test_any_text_is_survived(text: str) -> None:
    redact(text, normalize)
    redact(HEAD + text + TAIL, normalize)


@pytest.mark.parametrize(
    "line",
    [
        "Trx read view will not see trx with id >= 27, sees < 27",
        "Trx read view will not see trx with id >= 55D026BA1, sees < 55D026B83",
        "Trx #rec lock waits 3 #table lock waits 0",
        "ROLLING BACK 3 lock struct(s), heap size 1136, 2 row lock(s), undo log entries 3",
        "Purge done for trx's n:o < 55D026B83 undo n:o < 0 state: running but idle",
        "Mutex at 0x7f00, Mutex DICT_SYS created dict0dict.cc:1001, lock var 1",
        "SX-lock on RW-latch at 0x7f0e created in file dict0dict.cc line 2687",
        "Process ID=1, Main thread ID=2, state: sleeping",
    ],
)
def test_lines_of_other_versions_are_kept(line: str) -> None:
    assert redact(line, normalize) == line + "\n"


def test_unknown_lines_are_left_out_and_counted() -> None:
    redacted = redact("Log sequence number 5\nmy secret 5\nread 5 of it, Alice\n\n", normalize)
    assert redacted.splitlines() == ["Log sequence number 5", "<left out: 2 lines>", ""]


def test_no_more_statements_are_read_than_that() -> None:
    asked = []

    def counted(text: str) -> Statement:
        asked.append(text)
        return Statement("x", "")

    transaction = "\n".join([*HEAD.splitlines()[-2:], "DELETE FROM t", ""])
    redact(transaction * (MAX_STATEMENTS + 7), counted)
    assert len(asked) == MAX_STATEMENTS
