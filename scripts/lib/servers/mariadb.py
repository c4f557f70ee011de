# SPDX-License-Identifier: Apache-2.0
"""MariaDB as Debian packages it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from servers.child import Child, program
from servers.newdata import new_data
from servers.sql import UNPRIVILEGED, SqlServer

__all__ = ["MariaDB"]

INSTALL_OPTIONS = (
    "--auth-root-authentication-method=normal",
    "--skip-test-db",
    "--force",  # also where the host has no name
    "--innodb-log-file-size=16M",
)


class MariaDB(SqlServer):
    """The installed mariadbd (or, where ``executable`` is set, a copy of it)."""

    name: ClassVar[str] = "mariadb"

    def __init__(
        self, *options: str, parent: Path | None = None, executable: str | None = None
    ) -> None:
        super().__init__(*options, parent=parent)
        self.executable = executable

    @classmethod
    def missing(cls) -> str | None:
        for name in ("mariadbd", "mariadb-install-db", "setpriv"):
            if program(name) is None:
                return f"no {name} here: run scripts/setup"
        return None

    def _create_data(self) -> None:
        self.give_to_server(self.folder)
        new_data(Path(str(program("mariadbd"))), INSTALL_OPTIONS, self.data, self._install)

    def _install(self) -> None:
        command = [str(program("mariadb-install-db")), "--no-defaults", f"--datadir={self.data}"]
        command += INSTALL_OPTIONS
        Child(command, self.log, user=UNPRIVILEGED).succeed("mariadb-install-db")

    def _start(self) -> Child:
        command = [
            self.executable or str(program("mariadbd")),
            "--no-defaults",
            f"--datadir={self.data}",
            f"--socket={self.socket}",
            f"--pid-file={self.folder / 'server.pid'}",
            f"--tmpdir={self.temporary}",
            "--innodb-log-file-size=16M",
            *self.common_options,
            *self.options,
        ]
        return Child(command, self.log, user=UNPRIVILEGED, env=self.env)
