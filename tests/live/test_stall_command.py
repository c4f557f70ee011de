# SPDX-License-Identifier: Apache-2.0
"""scripts/stall keeps what it says, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.shots import CHECKOUT, take
from tests.support.servers import PATIENCE, wait_until

pytestmark = pytest.mark.nightly

STALL = [sys.executable, "-P", "-m", "tests.support.stall"]
LIBRARY = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
TRIES = 10


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Return a folder that a server's unprivileged user can enter, short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="stallscope-stall-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    assert list(folder.iterdir()) == []
    folder.rmdir()


@contextmanager
def kept(name: str, folder: Path) -> Iterator[int]:
    """Keep a stall; yield the pid of its server, which must be gone at the end."""
    environment = {**LIBRARY, "TMPDIR": str(folder)}
    with subprocess.Popen(
        [*STALL, name], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if "until Ctrl-C" in line:
                break
        found = re.search(r"pid (\d+), in", printed)
        assert found is not None, printed
        pid = int(found[1])
        try:
            yield pid
        finally:  # or the wait for its end would never finish
            process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 128 + signal.SIGINT
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the server is gone")


@pytest.mark.needs("root", "bpf", "mariadb")
def test_keeps_a_stall_with_a_busy_holder(short_folder: Path, tmp_path: Path) -> None:
    """The holder is likely and no more: it is the one statement that runs, others are idle."""
    with kept("metadata-lock-select", short_folder) as pid:
        # On a busy host a statement of the capture's own SQL can run at the same time: then there
        # are two that run, and none of them is likely.
        for _ in range(TRIES):
            shot = take(tmp_path, "-p", pid)
            verdict = shot.analysis["findings"][0]
            assert verdict["signature"] == "metadata-lock"
            if not verdict["blocker"]["certain"]:
                break
    assert verdict["blocker"]["certain"] is False, (verdict["blocker"], shot.stderr)
    assert "Item_func_sleep::val_int" in " ".join(verdict["blocker"]["frames"])
    assert any("idle connections" in text for text in verdict["against"])


@pytest.mark.needs("root", "bpf", "mysql55", "freeze")
def test_keeps_a_stall_of_a_disk(short_folder: Path, tmp_path: Path) -> None:
    with kept("file-extend", short_folder) as pid:
        wait_until(
            lambda: take(tmp_path, "-p", pid).signatures[:1] == ["innodb-file-extend"],
            "its verdict is that a file is extended",
        )


def test_a_stall_that_is_not_known_is_refused() -> None:
    done = subprocess.run(
        [*STALL, "boredom"],
        env=LIBRARY,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert "metadata-lock-select" in done.stderr
