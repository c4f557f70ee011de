# SPDX-License-Identifier: Apache-2.0
"""postmaster.pid: what a PostgreSQL writes, and what others could put in its place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.collectors import postmaster
from stallscope.collectors.paths import asking
from stallscope.collectors.postmaster import Postmaster, parse

__all__: list[str] = []

WHOLE = b"""\
4711
/var/lib/postgresql/15/main
1764321000
5433
/var/run/postgresql
localhost
    12345    98304
ready   
"""  # noqa: W291  # as the server pads it


def test_all_lines() -> None:
    found = parse(WHOLE)
    assert found == Postmaster(4711, 5433, "/var/run/postgresql", "ready")
    assert found.socket == "/var/run/postgresql/.s.PGSQL.5433"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"abc\n",
        b"-4711\n/data\n1\n5432\n/tmp\n",
        b"0\n",
        b"9" * 5000,
        b"\0",
        b"4711x\n",
    ],
)
def test_what_is_none_of_a_postmaster(data: bytes) -> None:
    assert parse(data) is None


def test_a_file_that_is_being_written() -> None:
    assert parse(WHOLE[:5]) == Postmaster(4711)
    assert parse(WHOLE[:5]).socket is None  # type: ignore[union-attr]
    assert parse(WHOLE.replace(b"/var/run/postgresql", b"")) == Postmaster(
        4711, 5433, None, "ready"
    )


@pytest.mark.parametrize("port", [b"0", b"65536", b"-1", b"99999999999", b"5432 ", b"5,432"])
def test_a_port_is_a_port(port: bytes) -> None:
    found = parse(WHOLE.replace(b"5433", port))
    assert found is not None
    assert found.port == (5432 if port == b"5432 " else None)


@pytest.mark.parametrize("folder", [b"run", b"/x\0y", b"/" + b"x" * 2000, b"@abstract"])
def test_a_folder_is_a_path(folder: bytes) -> None:
    found = parse(WHOLE.replace(b"/var/run/postgresql", folder))
    assert found is not None
    assert found.folder is None


@given(st.binary(max_size=6000))
def test_no_bytes_break_it(data: bytes) -> None:
    _check(parse(data))


@given(st.lists(st.integers(0, 7)), st.binary(max_size=40), st.integers(0, 200))
def test_no_change_breaks_it(lines: list[int], junk: bytes, cut: int) -> None:
    parts = WHOLE.split(b"\n")
    for number in lines:
        parts[number] = junk
    _check(parse(b"\n".join(parts)[: len(WHOLE) - cut]))


def _check(found: Postmaster | None) -> None:
    if found is None:
        return
    assert found.pid > 0
    assert found.port is None or 0 < found.port < 65_536
    assert found.folder is None or found.folder.startswith("/")
    assert found.status is None or found.status.isprintable()


def test_the_file_of_a_process(tmp_path: Path) -> None:
    me = os.getpid()
    file = tmp_path / "postmaster.pid"
    assert postmaster.read(me, str(tmp_path)) is None
    file.write_bytes(WHOLE)
    assert postmaster.read(me, str(tmp_path)) is None, "of another process"
    file.write_bytes(WHOLE.replace(b"4711", str(me).encode()))
    found = postmaster.read(me, str(tmp_path))
    assert found is not None
    assert found.port == 5433
    file.unlink()
    os.mkfifo(file)
    assert postmaster.read(me, str(tmp_path)) is None, "nobody writes to it"
    file.unlink()
    file.symlink_to("/etc/passwd")
    assert postmaster.read(me, str(tmp_path)) is None


def test_links_stay_inside_of_the_root(tmp_path: Path) -> None:
    """``/var/run -> /run`` of a container is not our ``/run``."""
    links = {"var/run": "/run", "loop": "/loop", "up": "../../etc", "run/x": "y"}
    for link, target in links.items():
        (tmp_path / link).parent.mkdir(exist_ok=True)
        (tmp_path / link).symlink_to(target)
    for path, found in (
        ("/var/run/postgresql", "/run/postgresql"),
        ("/var/run/x/z", "/run/y/z"),
        ("/up/passwd", "/etc/passwd"),
        ("/a/../../..//./b", "/b"),
        ("/loop", "/loop"),
    ):
        assert asking.inside(str(tmp_path), path) == f"{tmp_path}{found}"
