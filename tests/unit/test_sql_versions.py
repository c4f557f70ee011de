# SPDX-License-Identifier: Apache-2.0
"""Versions of servers as they print them, those that do not exist yet included."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.collectors.sql.versions import parse

CASES = [
    ("5.5.9", "", "mysql", "mysql", (5, 5, 9)),
    ("5.5.9-log", "MySQL Community Server (GPL)", "mysql", "mysql", (5, 5, 9)),
    ("5.5.68-MariaDB", "", "mariadb", "mariadb", (5, 5, 68)),
    ("10.11.14-MariaDB-0+deb12u2", "Debian 12", "mariadb", "mariadb", (10, 11, 14)),
    ("5.5.5-10.6.12-MariaDB-log", "", "mariadb", "mariadb", (10, 6, 12)),
    ("5.5.5-10.1.9", "", "mariadb", "mariadb", (10, 1, 9)),
    ("5.5.5-m3-log", "", "mysql", "mysql", (5, 5, 5)),
    ("5.5.5", "", "mysql", "mysql", (5, 5, 5)),
    ("8.0.36-28", "", "mysql", "percona", (8, 0, 36)),
    ("8.0.36-28", "Percona Server (GPL), Release 28", "mysql", "percona", (8, 0, 36)),
    ("5.6.51-rel91.0-log", "", "mysql", "percona", (5, 6, 51)),
    ("8.4.3-3.1", "", "mysql", "percona", (8, 4, 3)),
    ("8.0.36-0ubuntu0.22.04.1", "(Ubuntu)", "mysql", "mysql", (8, 0, 36)),
    ("9.7.4-2", "(Debian)", "mysql", "mysql", (9, 7, 4)),
    ("9.7.0", "", "mysql", "mysql", (9, 7, 0)),
    ("26.7.0", "", "mysql", "mysql", (26, 7, 0)),
    ("26.7", "", "mysql", "mysql", (26, 7, 0)),
    ("127.12.99-MariaDB", "", "mariadb", "mariadb", (127, 12, 99)),
    ("8.0.11-TiDB-v7.5.0", "", "mysql", "mysql", (8, 0, 11)),
    ("", "", "mysql", "mysql", (0, 0, 0)),
    ("unknown", "", "mysql", "mysql", (0, 0, 0)),
]


@pytest.mark.parametrize(("text", "comment", "family", "vendor", "numbers"), CASES)
def test_versions(
    text: str, comment: str, family: str, vendor: str, numbers: tuple[int, int, int]
) -> None:
    version = parse(text, comment)
    assert (version.family, version.vendor, version.numbers) == (family, vendor, numbers)
    assert version.text == text
    assert version.mariadb is (family == "mariadb")


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_text_is_a_version(text: str, comment: str) -> None:
    version = parse(text, comment)
    assert len(version.numbers) == 3
    assert len(version.text) <= 200
