# SPDX-License-Identifier: Apache-2.0
"""A file system whose syncs take longer by a known time (tests/targets/slow_sync_fs.c)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.cache import Unavailable
from tests.support.servers.waiting import PATIENCE
from tests.support.targets import target_path

__all__ = ["slow_syncs"]


@contextmanager
def slow_syncs(milliseconds: float, parent: Path | None = None) -> Iterator[Path]:
    """Mount a folder of ``parent`` in which each sync takes so much longer.

    Raises: Unavailable where it cannot be mounted here.
    """
    if os.geteuid() != 0:
        raise Unavailable("mounting a file system needs root")
    home = Path(tempfile.mkdtemp(prefix="stallscope-slow-", dir=parent))
    try:
        home.chmod(0o755)
        folder, mounted = home / "folder", home / "slow"
        folder.mkdir()
        mounted.mkdir()
        delay = str(round(milliseconds * 1000))
        command = [str(target_path("slow_sync_fs")), str(folder), str(mounted), delay]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                if process.stdout.readline() != b"ready\n":
                    raise Unavailable(process.stderr.read().decode(errors="replace").strip())
                yield mounted
            finally:
                process.stdin.close()
                process.wait(PATIENCE)
    finally:
        shutil.rmtree(home, ignore_errors=True)
