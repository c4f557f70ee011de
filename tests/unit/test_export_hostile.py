# SPDX-License-Identifier: Apache-2.0
"""Names that a target chose reach no format in a form in which they could do anything."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import duckdb
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stallscope.reporters.export import (
    chrometrace,
    csvfile,
    firefox,
    folded,
    parquet,
    pprof,
    speedscope,
    svg,
)
from stallscope.reporters.export.source import Entry, Options
from stallscope.reporters.export.tables import TABLES
from tests.unit.exports import entry, history, hostile, pprof_program, raw, run, total

pytestmark = pytest.mark.large

OPTIONS = Options(title="\x1b]0;title\x07<&", kernel=True, threads=True, states=True)
SLOW = settings(max_examples=60, suppress_health_check=list(HealthCheck))

# What some format, terminal or spreadsheet gives a meaning.
_PIECES = (
    *(
        "\x1b[2J",
        "\x9b",
        "\0",
        "\t",
        "\n",
        "\r\n",
        "\u2028",
        "\u202e",
        "\ufffe",
        "\ud800",
        "\udcff",
    ),
    *(
        ";",
        ",",
        '"',
        "'",
        "=",
        "@",
        "--",
        " 7",
        " 7.5",
        "_[k]",
        "#",
        "{{",
        "%s",
        "\\",
        "]]>",
        "&amp;",
    ),
    *("<script>alert(1)</script>", "a", " ", "漢字", "🔥"),
)
# Any code point is one that a target can name, lone surrogates too.
NASTY = st.one_of(
    st.text(st.characters(), max_size=40),
    st.lists(st.sampled_from(_PIECES), max_size=8).map("".join),
)
EXAMPLES = [
    ("\x1b]52;c;aGk=\x07", "\ud83d"),
    ("a 1", ";"),
    ("", " "),
    ("=cmd|' /C calc'!A0", "<svg onload=alert(1)>"),
]


def entries(one: str, other: str) -> list[Entry]:
    return [entry(hostile(one, other), one), raw(one, other)]


def check(data: bytes) -> str:
    """Return the text of an export, in which there is nothing that steers a terminal."""
    text = data.decode("utf-8")
    bad = {c for c in text if not c.isprintable()} - {"\n", "\r"}
    assert not bad
    return text


@SLOW
@given(NASTY, NASTY)
@example(*EXAMPLES[0])
@example(*EXAMPLES[1])
@example(*EXAMPLES[2])
def test_folded(one: str, other: str) -> None:
    made = entries(one, other)
    for options in (Options(), OPTIONS):
        lines = check(b"".join(folded.render(made, options))).split("\n")
        assert lines.pop() == ""
        assert "\r" not in "".join(lines)
        count = 0
        for line in lines:
            stack, _, number = line.rpartition(" ")
            count += int(number)
            assert stack
            assert all(part.strip() for part in stack.split(";"))
            # flamegraph.pl would take a second number for a stack of before.
            last = stack.rsplit(None, 1)
            assert len(last) == 1 or not last[1].replace(".", "", 1).isdecimal()
        assert count == total(made[:1]) + 1


@SLOW
@given(NASTY, NASTY)
@example(*EXAMPLES[0])
@example(*EXAMPLES[3])
def test_json(one: str, other: str) -> None:
    made = entries(one, other)
    for render in (speedscope.render, firefox.render):
        value = json.loads(check(b"".join(render(made, OPTIONS))))
        assert all(text.isprintable() for text in strings(value))
    events = b"".join(chrometrace.render(made, [history(one)], OPTIONS))
    assert all(text.isprintable() for text in strings(json.loads(check(events))))


def strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from strings(key)
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


@SLOW
@given(NASTY, NASTY)
@example(*EXAMPLES[0])
@example(*EXAMPLES[3])
def test_svg(one: str, other: str) -> None:
    root = ElementTree.fromstring(check(b"".join(svg.render(entries(one, other), OPTIONS))))
    for element in root.iter():
        assert element.tag.rpartition("}")[2] in ("svg", "title", "style", "rect", "text", "g")
        assert not [name for name in element.attrib if name.startswith("on") or "href" in name]
    (style,) = root.iter("{http://www.w3.org/2000/svg}style")
    assert style.text == svg._STYLE


@SLOW
@given(NASTY, NASTY)
@example(*EXAMPLES[0])
@example(*EXAMPLES[3])
def test_csv(one: str, other: str) -> None:
    for table in TABLES.values():
        rows = table.rows(entries(one, other), [history(one)], OPTIONS)
        text = check(b"".join(csvfile.render(table, rows)))
        read = list(csv.DictReader(io.StringIO(text, newline="")))
        assert len(read) == text.count("\n") - 1
        for row in read:
            assert set(row) == set(table.columns)
            for name, kind in table.columns.items():
                if kind == "VARCHAR":
                    assert not row[name].lstrip().startswith(("=", "+", "-", "@"))


@settings(SLOW, max_examples=15)
@given(NASTY, NASTY)
@example(*EXAMPLES[0])
@example(*EXAMPLES[3])
def test_parquet(tmp_path_factory: pytest.TempPathFactory, one: str, other: str) -> None:
    table = TABLES["threads"]
    path = tmp_path_factory.mktemp("parquet") / "threads.parquet"
    made = entries(one, other)[:1]
    path.write_bytes(b"".join(parquet.render(table, table.rows(made, (), OPTIONS))))
    with duckdb.connect() as connection:
        rows = connection.execute(f"SELECT * FROM '{path}'").fetchall()
    assert len(rows) == 3
    assert all(cell.isprintable() for row in rows for cell in row if isinstance(cell, str))


@pytest.mark.needs("go")
@settings(SLOW, max_examples=15)
@given(NASTY, NASTY)
@example(*EXAMPLES[0])
@example(*EXAMPLES[3])
def test_pprof(tmp_path_factory: pytest.TempPathFactory, one: str, other: str) -> None:
    made = entries(one, other)
    path: Path = tmp_path_factory.mktemp("pprof") / "a.pb.gz"
    path.write_bytes(b"".join(pprof.render(made, OPTIONS)))
    shown = run(*pprof_program(), "-symbolize=none", "-raw", path)
    assert {c for c in shown if not c.isprintable()} <= {"\n", "\t"}
    shown = run(*pprof_program(), "-symbolize=none", "-top", path)
    assert f"of {total(made[:1]) + 1} total" in shown
