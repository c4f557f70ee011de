# SPDX-License-Identifier: Apache-2.0
"""MariaDB 11.8 of Debian 13 with its plugins for passwords, in a root of its own."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.support.cache import cache_folder
from tests.support.servers.child import Child
from tests.support.servers.newdata import CREATE_SECONDS, new_data
from tests.support.servers.rooted import RootedServer

__all__ = ["MariaDB118"]

DATA_OPTIONS = (
    "--auth-root-authentication-method=normal",
    "--skip-test-db",
    "--force",  # also where the host has no name
    "--innodb-log-file-size=16M",
)


class MariaDB118(RootedServer):
    """The first long-term version whose accounts can have the plugin parsec."""

    name: ClassVar[str] = "mariadb118"
    program: ClassVar[str] = "mariadbd"

    @classmethod
    def root(cls) -> Path:
        return cache_folder() / "mariadb-11.8"

    def _create_data(self) -> None:
        self.give_to_server(Path(self._home))
        new_data(self.executable(), DATA_OPTIONS, self.data, self._install)

    def _install(self) -> None:
        child = self._inside(*DATA_OPTIONS, program="mariadb-install-db")
        child.succeed("mariadb-install-db", CREATE_SECONDS)

    def _start(self) -> Child:
        home = self._home_inside()
        return self._inside(
            f"--socket={home}/s.sock",
            f"--pid-file={home}/server.pid",
            "--innodb-log-file-size=16M",
            *self.common_options,
            *self.options,
        )
