# SPDX-License-Identifier: Apache-2.0
"""A server as in a hardened container: no capability, and no tool inside.

tests/targets/jail.c says what a jail is.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers import PATIENCE, MySQL55
from tests.support.targets import TargetError, target_path

__all__ = ["Jail", "jail_missing", "jailed", "python"]

FIRST = 1
"""The server's pid in the jail's own namespace."""


def python() -> list[str]:
    """Return a command line of a Python that the jail's user may run, with our packages.

    That of a virtual environment can be one of root's own.
    """
    here = Path(sys.executable).resolve()
    if all(folder.stat().st_mode & stat.S_IXOTH for folder in here.parents):
        return [sys.executable]
    packages = ":".join(path for path in sys.path if path.endswith("site-packages"))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return ["env", f"PYTHONPATH={packages}", f"/usr/bin/python{version}"]


def jail_missing() -> str | None:
    """Return why nobody can be jailed here, or None."""
    if os.geteuid() != 0:
        return "not root"
    try:
        path = target_path("jail")
    except TargetError as error:
        return str(error)
    tried = subprocess.run(
        [str(path), *python(), "-c", "import msgspec"], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip() or "it failed" if tried.returncode != 0 else None


class Jail:
    """The jail of a server that runs in one."""

    pid = FIRST

    def __init__(self, server: MySQL55) -> None:
        self._server = server

    def command(self, *words: object) -> list[str]:
        """Return a command line that runs a program in the jail, as the server's user."""
        inside = [str(target_path("jail")), "--join", str(self._server.pid)]
        return [*inside, *(str(word) for word in words)]

    def run(
        self, *words: object, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the jail to its end; ``env`` is added to this process's."""
        return subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env={**os.environ, **(env or {})},
            cwd=cwd,
        )


@contextmanager
def jailed(server: MySQL55) -> Iterator[Jail]:
    """Jail a server that is started inside of the block; what it preloads is set already."""
    before = server.env
    server.wrapper = (str(target_path("jail")),)
    preloaded = [before.get("LD_PRELOAD"), str(target_path("undumpable.so"))]
    server.env = {**before, "LD_PRELOAD": ":".join(path for path in preloaded if path)}
    try:
        yield Jail(server)
    finally:
        server.wrapper, server.env = (), before
