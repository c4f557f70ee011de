# SPDX-License-Identifier: Apache-2.0
"""MySQL 9.7 of Debian sid."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.support.cache import cache_folder
from tests.support.servers.child import Child
from tests.support.servers.newdata import CREATE_SECONDS, new_data
from tests.support.servers.rooted import RootedServer

__all__ = ["MySQL97"]

DATA_OPTIONS = ("--innodb-redo-log-capacity=16M", "--innodb-undo-log-truncate=OFF")


def root_folder() -> Path:
    """Return the folder of the sid installation that debootstrap made."""
    return cache_folder() / "sid"


class MySQL97(RootedServer):
    """Stripped but for ``.dynsym``, with a build-id, PIE."""

    name: ClassVar[str] = "mysql97"
    program: ClassVar[str] = "mysqld"

    @classmethod
    def root(cls) -> Path:
        return root_folder()

    def _create_data(self) -> None:
        self.give_to_server(Path(self._home))
        new_data(self.executable(), DATA_OPTIONS, self.data, self._initialize)
        # Each server has an id of its own.
        (self.data / "auto.cnf").unlink()

    def _initialize(self) -> None:
        child = self._inside("--initialize-insecure", *DATA_OPTIONS)
        child.succeed("mysqld --initialize", CREATE_SECONDS)

    def _start(self) -> Child:
        home = self._home_inside()
        return self._inside(
            "--secure-file-priv=",
            "--mysqlx=OFF",
            "--skip-log-bin",
            f"--socket={home}/s.sock",
            f"--pid-file={home}/server.pid",
            *DATA_OPTIONS,
            *self.common_options,
            *self.options,
        )
