# SPDX-License-Identifier: Apache-2.0
"""Programs with a server's name that any user of a host can start (tests/targets/impostor.c)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.targets import target_path

__all__ = ["PERSON", "SERVICE", "Impostor", "impostor", "open_folder"]

PERSON = 12_345
"""A user who is no account of the system, and has no name."""
SERVICE = 65_534
"""As which servers run here."""


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder in which all users may do what they like."""
    with tempfile.TemporaryDirectory(prefix="stallscope-", dir="/tmp") as name:
        os.chmod(name, 0o777)
        yield Path(name)


class Impostor:
    """One of them; it ends with the block that started it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert self._line() == "ready"

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self) -> bytes:
        """End it; return all that it was sent. A second call returns nothing."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if self.process.stdin.closed:
            return b""
        self.process.stdin.close()
        lines = self.process.stdout.read().split("\n")
        self.process.wait()
        return b"".join(bytes.fromhex(line.removeprefix("got ")) for line in lines)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")


@contextmanager
def impostor(
    folder: Path, program: str, *, user: int = PERSON, port: int = 0, words: tuple[str, ...] = ()
) -> Iterator[Impostor]:
    """Run one as ``user``. ``folder`` has its socket, its file, which is root's where ``user`` is a
    service, and its own data. Needs root."""
    postgres = program == "postgres"
    place = folder / str(user) / program
    if not place.exists():
        place.parent.mkdir(exist_ok=True)
        shutil.copy(target_path("impostor"), place)
        os.chmod(place.parent, 0o755)
        os.chown(place.parent, user, user)
        if user == PERSON:
            os.chown(place, user, user)
    path = folder / (".s.PGSQL.5432" if postgres else "s.sock")
    path.unlink(missing_ok=True)
    pipe = subprocess.PIPE
    argv = [str(place), "postgres" if postgres else "mysql", str(path), str(port), *words]
    with subprocess.Popen(
        argv,
        stdin=pipe,
        stdout=pipe,
        text=True,
        cwd=place.parent,
        user=user,
        group=user,
        extra_groups=[],
    ) as process:
        started = Impostor(process)
        try:
            yield started
        finally:
            started.end()
