# SPDX-License-Identifier: Apache-2.0
"""Write a file in another process: a disk that does not answer blocks only that one.

``python -m stallscope.commands._save FILE keep|replace SIZE`` writes its standard input there.
"""

from __future__ import annotations

import select
import subprocess
import sys
import tempfile
from pathlib import Path

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.base.package import module_command
from stallscope.base.text import one_line

__all__ = ["SECONDS", "main", "save"]

SECONDS = 5.0
"""How long to wait, once the process runs, for the file to be on disk."""
START_SECONDS = 60.0
BEGUN = "begun"
MEMORY = "/dev/shm"  # noqa: S108 (files there are unnamed)
"""The data must be passed without waiting for a disk."""


def save(path: Path, data: bytes, *, force: bool, seconds: float = SECONDS) -> str | None:
    """Have a file written and synced; return why that is not done in time. Where the disk does not
    answer, the process continues: a write in that state cannot be interrupted, and the file is
    valuable.
    """
    argv, environment = module_command(__name__)
    argv += [str(path), "replace" if force else "keep", str(len(data))]
    try:
        with tempfile.TemporaryFile(dir=MEMORY) as given:
            given.write(data)
            given.seek(0)
            process = subprocess.Popen(
                argv,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # neither Ctrl-C nor a hangup may end it
            )
    except OSError as error:
        return f"cannot write {path}: {error.strerror}"
    assert process.stdout is not None
    # A late start on a busy machine says nothing about the disk.
    select.select([process.stdout], [], [], START_SECONDS)
    try:
        _, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return (
            f"{path} is not written yet: its file system has not answered for {seconds:g} s;"
            f" process {process.pid} keeps trying"
        )
    if process.returncode == 0:
        return None
    said = one_line(err.decode("utf-8", "backslashreplace"), 1000)
    return said or f"cannot write {path}: the writing process ended with {process.returncode}"


def main(arguments: list[str]) -> int:
    """Write the input if it is complete: its sender may be killed."""
    path, how, size = arguments
    data = sys.stdin.buffer.read()
    print(BEGUN, flush=True)
    if len(data) != int(size):
        return 1
    try:
        atomicfile.write(Path(path), [data], force=how == "replace")
    except StallscopeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
