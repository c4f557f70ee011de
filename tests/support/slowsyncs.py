# SPDX-License-Identifier: Apache-2.0
"""File systems that are slow by a known time, or answer no more (tests/targets/slow_sync_fs.c)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.cache import Unavailable
from tests.support.servers.waiting import PATIENCE
from tests.support.targets import target_path

__all__ = ["dead_disk", "slow_syncs"]


@contextmanager
def slow_syncs(milliseconds: float, parent: Path | None = None) -> Iterator[Path]:
    """Mount a folder of ``parent`` in which each sync takes so much longer.

    Raises: Unavailable where it cannot be mounted here.
    """
    with _mounted(str(round(milliseconds * 1000)), parent) as (mounted, _):
        yield mounted


@contextmanager
def dead_disk(
    *, opens: bool = False
) -> Iterator[tuple[Path, Callable[[], None], Callable[[], None]]]:
    """Mount a folder, and give what makes it answer no more, and what ends it.

    With ``opens`` it still opens files, and shows their status. Who waits for it then cannot be
    killed, and gets an error when it has ended.
    Raises: Unavailable where it cannot be mounted here.
    """
    with _mounted("plain", None) as (mounted, process):

        def stop() -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"reads\n" if opens else b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"stopped\n"

        def end() -> None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(PATIENCE)

        yield mounted, stop, end


@contextmanager
def _mounted(how: str, parent: Path | None) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    if os.geteuid() != 0:
        raise Unavailable("mounting a file system needs root")
    home = Path(tempfile.mkdtemp(prefix="stallscope-slow-", dir=parent))
    try:
        home.chmod(0o755)
        folder, mounted = home / "folder", home / "slow"
        folder.mkdir()
        mounted.mkdir()
        command = [str(target_path("slow_sync_fs")), str(folder), str(mounted), how]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                if process.stdout.readline() != b"ready\n":
                    raise Unavailable(process.stderr.read().decode(errors="replace").strip())
                yield mounted, process
            finally:
                process.stdin.close()
                process.wait(PATIENCE)
    finally:
        shutil.rmtree(home, ignore_errors=True)
