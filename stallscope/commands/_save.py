# SPDX-License-Identifier: Apache-2.0
"""Write a file in a process of its own: a disk that does not answer keeps that one, and not us.

``python -m stallscope.commands._save FILE keep|replace SIZE`` writes its standard input there.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from stallscope import atomicfile
from stallscope.collectors.agent.verdicts import module_command
from stallscope.errors import StallscopeError
from stallscope.text import one_line

__all__ = ["SECONDS", "main", "save"]

SECONDS = 5.0
"""For the file to be on disk, until somebody is told that it is not."""


def save(path: Path, data: bytes, *, force: bool, seconds: float = SECONDS) -> str | None:
    """Have a file written and synced; return why that is not done by then.

    Where the disk does not answer, the process goes on for as long as that takes. A write in that
    state cannot be ended, and what it writes is wanted all the more.
    """
    argv, environment = module_command("stallscope.commands._save")
    argv += [str(path), "replace" if force else "keep", str(len(data))]
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # neither Ctrl-C nor the end of the terminal is meant for it
        )
    except OSError as error:
        return f"cannot write {path}: cannot run {argv[0]}: {error.strerror}"
    try:
        _, err = process.communicate(data, timeout=seconds)
    except subprocess.TimeoutExpired:
        return (
            f"{path} is not written yet: its file system has not answered for {seconds:g} s;"
            f" process {process.pid} goes on with it"
        )
    if process.returncode == 0:
        return None
    said = one_line(err.decode("utf-8", "backslashreplace"), 1000)
    return said or f"cannot write {path}: the writing process ended with {process.returncode}"


def main(arguments: list[str]) -> int:
    """Write what comes, if it is whole: who sends it may be killed."""
    path, how, size = arguments
    data = sys.stdin.buffer.read()
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
