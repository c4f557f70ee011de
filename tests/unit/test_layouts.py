# SPDX-License-Identifier: Apache-2.0
"""Layouts of servers by version: the table, and the options of the probe."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stallscope.collectors import probe
from stallscope.collectors import versionlayouts as arguments
from stallscope.server import layouts
from tests.support.servers.waiting import PATIENCE

__all__: list[str] = []

LONGEST_KEY = 95
MOST_ENTRIES = 512
"""Limits of pmp/base/layout.c."""


def test_rows_are_sound() -> None:
    """Each row has versions in order; rows of one server do not mix."""
    for row in layouts.rows():
        assert layouts.numbers(row.first) <= layouts.numbers(row.until), row
        assert 0 < len(layouts.layout(row.server, row.first)) <= MOST_ENTRIES
        for key in layouts.layout(row.server, row.first):
            assert re.fullmatch(r"[!-~]+", key), key
            assert "=" not in key
            assert len(key) <= LONGEST_KEY


def test_layout_of_a_version() -> None:
    found = layouts.layout("mysql", "5.5.9-log")
    assert found["MDL_ticket.m_ctx"] == 48
    assert found["rw_lock_struct.writer_thread"] == 24
    assert found["mdl.object.7"] == 0xFE
    assert layouts.layout("mariadb", "11.4.5-MariaDB")["trx_t.lock.wait_trx"] == 136
    assert layouts.layout("mariadb", "5.5.9") == {}
    assert layouts.layout("mysql", "5.5") == {}
    assert layouts.layout("mysql", "") == {}
    assert layouts.layout("mysql", "99.0.0") == {}


def test_rows_that_overlap_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        layouts.Row("mysql", "5.6.0", "8.0.999", "a", {"x": 1, "y": (1, 2)}),
        layouts.Row("mysql", "5.7.10", "5.7.999", "b", {"x": 2}),
    )
    monkeypatch.setattr(layouts, "rows", lambda: rows)
    assert layouts.layout("mysql", "5.6.51") == {"x": 1, "y.0": 1, "y.1": 2}
    assert layouts.layout("mysql", "5.7.9") == {"x": 1, "y.0": 1, "y.1": 2}
    assert layouts.layout("mysql", "5.7.44") == {"x": 2, "y.0": 1, "y.1": 2}
    assert layouts.by_version() == (
        "mysql 5.6.0 8.0.999 x=1 y.0=1 y.1=2",
        "mysql 5.7.10 5.7.999 x=2",
    )


def test_only_servers_that_have_layouts_get_them(tmp_path: Path) -> None:
    assert arguments.arguments((os.getpid(),)) == []
    program = tmp_path / "mysqld"
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as server:
        try:
            words = arguments.arguments((os.getpid(), server.pid))
        finally:
            server.kill()
    assert words[::2] == ["--layout-of"] * len(layouts.rows())
    assert words[1::2] == list(layouts.by_version())


@pytest.mark.needs("probe")
def test_the_probe_takes_every_row() -> None:
    """Its own check of the text comes before all else: the process is not there."""
    words = [word for row in layouts.by_version() for word in ("--layout-of", row)]
    command = [str(probe.find()), "snap", "--pid", str(2**31 - 1), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert "--layout" not in done.stderr
    assert "process" in done.stderr
    command[-1] = "mysql 5.5.9 5.5 x=1"
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2
    assert "--layout-of" in done.stderr
