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
from pathlib import Path

import pytest
from servers import wait_until

from tests.live.shots import CHECKOUT, take

STALL = [sys.executable, str(CHECKOUT / "scripts/lib/stall.py")]
LIBRARY = {**os.environ, "PYTHONPATH": str(CHECKOUT / "scripts/lib")}


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Return a folder that a server's unprivileged user can enter, short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="stallscope-stall-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    assert list(folder.iterdir()) == []
    folder.rmdir()


@pytest.mark.needs("root", "bpf", "mariadb")
def test_keeps_a_stall_with_a_busy_holder(short_folder: Path, tmp_path: Path) -> None:
    """The holder is likely and no more: it is the one statement at work, others are idle."""
    environment = {**LIBRARY, "TMPDIR": str(short_folder)}
    with subprocess.Popen(
        [*STALL, "metadata-lock-select"], env=environment, stdout=subprocess.PIPE, text=True
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
        shot = take(tmp_path, "-p", pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 128 + signal.SIGINT
    verdict = shot.analysis["findings"][0]
    assert verdict["signature"] == "metadata-lock"
    assert verdict["blocker"]["certain"] is False
    assert "Item_func_sleep::val_int" in " ".join(verdict["blocker"]["frames"])
    assert any("idle connections" in text for text in verdict["against"])
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the server is gone", 10)


def test_a_stall_that_is_not_known_is_refused() -> None:
    done = subprocess.run(
        [*STALL, "boredom"], env=LIBRARY, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert "metadata-lock-select" in done.stderr
