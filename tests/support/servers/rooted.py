# SPDX-License-Identifier: Apache-2.0
"""Servers in a root and a mount namespace of their own, as in a container.

Seen from outside, the paths of their maps are other files, or none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from tests.support.cache import Unavailable, why_missing
from tests.support.servers.child import UNPRIVILEGED, Child
from tests.support.servers.sql import SqlServer

__all__ = ["RootedServer"]

# The bind mount: pivot_root(2) wants a mount point. The old root stays reachable in /mnt.
PIVOT = 'mount --bind "$0" "$0" && cd "$0" && pivot_root . mnt && exec "$@"'
OUTSIDE = Path("/mnt")
GET_PROC = ("sh", "-c", f'mount --rbind {OUTSIDE}/proc /proc && exec "$0" "$@"')
LIBRARIES = OUTSIDE / "lib/x86_64-linux-gnu"
# A program of the outside, with the loader and libraries that it was linked with. In a namespace
# of its own, so that the server's keeps having no /proc.
RUN_OUTSIDE = f"mount --rbind {OUTSIDE}/proc /proc && exec {LIBRARIES}/ld-linux-x86-64.so.2"
RUN_OUTSIDE += f' --library-path {LIBRARIES}:{OUTSIDE}/usr/lib/x86_64-linux-gnu "$@"'


class RootedServer(SqlServer):
    """A server that sees a root of its own. Without ``with_proc`` it has no /proc.

    Its data is in its root, or in ``parent``, which it reaches through the old root.
    """

    program: ClassVar[str]
    """In the root."""

    def __init__(self, *options: str, parent: Path | None = None, with_proc: bool = False) -> None:
        super().__init__(*options, parent=parent)
        self.with_proc = with_proc

    @classmethod
    def missing(cls) -> str | None:
        if os.geteuid() != 0:
            return "a root of its own needs root"
        if not cls.executable().is_file():
            return why_missing(cls.name)
        tried = subprocess.run([*cls.enter(), "true"], capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            return f"it cannot be given a root of its own here: {tried.stderr.strip()}"
        return None

    @classmethod
    @abstractmethod
    def root(cls) -> Path:
        """Return the folder that is its root."""

    @classmethod
    def executable(cls) -> Path:
        """Return its program, as it is outside."""
        return cls.root() / "usr/sbin" / cls.program

    @classmethod
    def enter(cls) -> tuple[str, ...]:
        """Return the command that runs another one in its root."""
        return ("unshare", "--mount", "sh", "-c", PIVOT, str(cls.root()))

    def __enter__(self) -> Self:
        if reason := self.missing():
            raise Unavailable(f"{self.name}: {reason}")
        self._home = tempfile.mkdtemp(prefix="stallscope-", dir=self.parent or self.root() / "tmp")
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        try:
            super().__exit__()
        finally:
            shutil.rmtree(self._home, ignore_errors=True)

    @property
    def data(self) -> Path:
        return Path(self._home) / "data"

    @property
    def socket(self) -> Path:
        return Path(self._home) / "s.sock"

    def inside(self, path: Path) -> Path:
        return OUTSIDE / path.relative_to("/")

    def seeing_its_files(self, *command: str) -> list[str]:
        """As the base class: in the server's mount namespace, where its paths mean its files."""
        enter = ["nsenter", f"--mount=/proc/{self.pid}/ns/mnt", "unshare", "--mount"]
        name, *arguments = command
        return [*enter, "sh", "-c", RUN_OUTSIDE, "sh", f"{OUTSIDE}{name}", *arguments]

    def _home_inside(self) -> str:
        if self.parent is not None:
            return str(self.inside(Path(self._home)))
        return "/" + str(Path(self._home).relative_to(self.root()))

    def _inside(self, *options: str, program: str | None = None) -> Child:
        # The setpriv is inside, since only root may do all this, and a change of user would
        # clear the signal.
        home = self._home_inside()
        become = [f"--reuid={UNPRIVILEGED}", "--regid=nogroup", "--clear-groups"]
        # Inside, too: what names files there means none to the programs that lead there.
        command = [
            *self.enter(),
            *(GET_PROC if self.with_proc else ()),
            "env",
            *(f"{name}={value}" for name, value in self.env.items()),
        ]
        command += ["setpriv", "--pdeathsig", "KILL", *become, program or self.program]
        command.append("--no-defaults")
        # A TMPDIR of the outside need not be there. A server that starts removes what others'
        # temporary tables have in the same folder.
        # Where the data is on a device that may hang, temporary tables are in memory.
        temporary = self.inside(self.temporary) if self.parent else home
        places = (f"--datadir={home}/data", f"--tmpdir={temporary}")
        return Child([*command, *places, *options], self.log)
