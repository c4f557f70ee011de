# SPDX-License-Identifier: Apache-2.0
"""Files of a process with a root of its own, by links that lead to our root otherwise."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.collectors import postmaster, rootpath

__all__: list[str] = []

pytestmark = pytest.mark.needs("root")


@pytest.fixture
def contained(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Yield the pid of a process in a root of its own, and that root: ``/var/run`` is a link."""
    (tmp_path / "run" / "postgresql").mkdir(parents=True)
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "run").symlink_to("/run")
    (tmp_path / "data").symlink_to("/run/postgresql")
    ready, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.chroot(tmp_path)
            os.chdir("/")
            os.write(said, b"x")
            signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(ready, 1) == b"x"
        yield pid, tmp_path
    finally:
        os.close(ready)
        os.close(said)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_absolute_links_stay_in_it(contained: tuple[int, Path]) -> None:
    pid, root = contained
    found = rootpath.inside(pid, "/var/run/postgresql")
    assert os.path.samefile(found, root / "run" / "postgresql")
    assert os.path.samefile(rootpath.inside(pid, "/data/../.."), root)


def test_postmaster_pid_is_read_in_it(contained: tuple[int, Path]) -> None:
    pid, root = contained
    file = root / "run" / "postgresql" / "postmaster.pid"
    file.write_text(f"{pid}\n/data\n1\n5433\n/var/run/postgresql\n")
    found = postmaster.read(pid, "/data")
    assert found is not None
    assert found.socket == "/var/run/postgresql/.s.PGSQL.5433"
    file.unlink()
    file.symlink_to("/etc/passwd")
    assert postmaster.read(pid, "/data") is None
