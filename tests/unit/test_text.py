# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.base.text import clean, end_of_name, one_line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("open_table(THD*)", "open_table(THD*)"),
        ("Grüße", "Grüße"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b31m", "\\x9b31m"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2028", "\\u2028"),
        ("\ud800", "\\ud800"),
        ("\0", "\\x00"),
        ("\x7f", "\\x7f"),
    ],
)
def test_what_steers_a_terminal_is_escaped(text: str, expected: str) -> None:
    assert clean(text) == expected


@given(st.text(st.characters()))
def test_clean_text_is_printable_and_stays_as_it_is(text: str) -> None:
    assert clean(text).isprintable()
    assert clean(clean(text)) == clean(text)


def test_one_line() -> None:
    assert one_line("a\n  b\tc ") == "a b c"
    assert one_line("x" * 700) == "x" * 599 + "…"


@pytest.mark.parametrize(
    ("name", "room", "expected"),
    [
        ("/var/lib/mysql/ib_logfile0", 26, "/var/lib/mysql/ib_logfile0"),
        ("/var/lib/mysql/ib_logfile0", 25, "…/lib/mysql/ib_logfile0"),
        ("/var/lib/mysql/ib_logfile0", 8, "…ogfile0"),
        (".../mysql/ib_logfile0", 20, "…/mysql/ib_logfile0"),
        ("/var/lib/mysql/", 8, "…/mysql/"),
        ("fil_system->mutex", 8, "fil_sys…"),
        ("/a/b", 0, "…"),
    ],
)
def test_a_path_keeps_its_end_and_a_name_its_beginning(name: str, room: int, expected: str) -> None:
    assert end_of_name(name, room) == expected
