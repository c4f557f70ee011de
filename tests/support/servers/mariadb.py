# SPDX-License-Identifier: Apache-2.0
"""MariaDB as Debian packages it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.support.cache import cache_folder, why_missing
from tests.support.servers.child import Child, program, server_user
from tests.support.servers.newdata import CREATE_SECONDS, new_data
from tests.support.servers.sql import SqlServer

__all__ = [
    "MariaDB",
    "lock_plugin_missing",
    "lock_plugin_options",
    "plugins_missing",
    "plugins_options",
]

PLUGINS = Path("/usr/lib/mysql/plugin")
"""Where a whole installation has them."""
LOCK_PLUGIN = "metadata_lock_info"
INSTALL_OPTIONS = (
    "--auth-root-authentication-method=normal",
    "--skip-test-db",
    "--force",  # also where the host has no name
    "--innodb-log-file-size=16M",
)


def lock_plugin_options() -> tuple[str, ...]:
    """Return options for a server that reports who holds metadata locks."""
    return plugins_options(LOCK_PLUGIN)


def plugins_options(*names: str) -> tuple[str, ...]:
    """Return options for a server that loads these plugins of its packages."""
    return (f"--plugin-dir={_plugins()}", *(f"--plugin-load-add={name}" for name in names))


def plugins_missing(*names: str) -> str | None:
    """Return why they cannot be loaded here, or None."""
    found = all((_plugins() / f"{name}.so").is_file() for name in names)
    return None if found else why_missing("mariadb-plugins")


def lock_plugin_missing() -> str | None:
    """Return why that plugin cannot be loaded here, or None."""
    return plugins_missing(LOCK_PLUGIN)


def _plugins() -> Path:
    """Return the folder of the plugins, which mariadb-server-core comes without."""
    if (PLUGINS / f"{LOCK_PLUGIN}.so").is_file():
        return PLUGINS
    return cache_folder() / "mariadb-plugins" / "plugin"


class MariaDB(SqlServer):
    """The installed mariadbd (or, where ``executable`` is set, a copy of it)."""

    name: ClassVar[str] = "mariadb"
    where: tuple[str, ...] = ()
    """Options of an installation that is not in its usual place."""

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
        server = Path(self._program("mariadbd"))
        new_data(server, INSTALL_OPTIONS, self.data, self._install)

    def _program(self, name: str) -> str:
        return str(program(name))

    def _install(self) -> None:
        command = [self._program("mariadb-install-db"), "--no-defaults", *self.where]
        command += [f"--datadir={self.data}", *INSTALL_OPTIONS]
        child = Child(command, self.log, user=server_user())
        child.succeed("mariadb-install-db", CREATE_SECONDS)

    def _start(self) -> Child:
        command = [
            *self.wrapper,
            self.executable or self._program("mariadbd"),
            "--no-defaults",
            *self.where,
            f"--datadir={self.data}",
            f"--socket={self.socket}",
            f"--pid-file={self.folder / 'server.pid'}",
            f"--tmpdir={self.temporary}",
            "--innodb-log-file-size=16M",
            *self._as_root(),
            *self.common_options,
            *self.options,
        ]
        user = None if self.wrapper else server_user()
        return Child(command, self.log, user=user, env=self.env)
