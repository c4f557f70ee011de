# SPDX-License-Identifier: Apache-2.0
"""MySQL 5.5.9 with all its symbols, from a Maven artifact that scripts/setup unpacks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import ClassVar

from tests.support.cache import cache_folder, why_missing
from tests.support.servers.child import Child, server_user
from tests.support.servers.sql import SqlServer

__all__ = ["MySQL55"]


def base_folder() -> Path:
    """Return the folder with ``mysqld``, ``share/`` and the system tables in ``mysql/``."""
    return cache_folder() / "mysql-5.5.9"


class MySQL55(SqlServer):
    """Not PIE, no build-id, full symtab and DWARF.

    ``template`` is a data folder to start from instead of an empty one.
    """

    name: ClassVar[str] = "mysql55"

    def __init__(
        self, *options: str, parent: Path | None = None, template: Path | None = None
    ) -> None:
        super().__init__(*options, parent=parent)
        self.template = template

    @classmethod
    def missing(cls) -> str | None:
        return None if (base_folder() / "mysqld").is_file() else why_missing(cls.name)

    def _create_data(self) -> None:
        source = self.template or base_folder() / "data"
        shutil.copytree(source, self.data)
        for path in (self.folder, self.data, *self.data.rglob("*")):
            self.give_to_server(path)

    def _start(self) -> Child:
        base = base_folder()
        command = [
            *self.wrapper,
            str(base / "mysqld"),
            "--no-defaults",
            f"--basedir={base}",
            f"--datadir={self.data}",
            f"--lc-messages-dir={base / 'share'}",
            f"--character-sets-dir={base / 'share/charsets'}",
            f"--socket={self.socket}",
            f"--pid-file={self.folder / 'server.pid'}",
            f"--tmpdir={self.temporary}",
            *self._as_root(),
            *self.common_options,
            *self.options,
        ]
        user = None if self.wrapper else server_user()
        return Child(command, self.log, user=user, env=self.env)
