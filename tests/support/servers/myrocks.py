# SPDX-License-Identifier: Apache-2.0
"""MariaDB with the engine MyRocks, whose plugin is not stripped of RocksDB's names."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.support.cache import cache_folder, why_missing
from tests.support.servers.child import Child
from tests.support.servers.mariadb import MariaDB

__all__ = ["MyRocks"]


class MyRocks(MariaDB):
    """The installed mariadbd with the plugin; ``device`` is a folder for the engine's tables.

    Their log is with the server's other data: on a device that hangs, writers would wait for it.
    """

    name: ClassVar[str] = "myrocks"

    def __init__(
        self, *options: str, parent: Path | None = None, device: Path | None = None
    ) -> None:
        super().__init__(*options, parent=parent)
        self.device = device
        self.env = {"LD_LIBRARY_PATH": str(files() / "lib")}

    @classmethod
    def missing(cls) -> str | None:
        if reason := super().missing():
            return reason
        return None if files().is_dir() else why_missing(cls.name)

    @property
    def frozen(self) -> Path:
        return (self.device or self.folder.parent).with_name("below")

    def _start(self) -> Child:
        engine = ["--plugin-load-add=ha_rocksdb", f"--plugin-dir={files() / 'plugin'}"]
        if self.device is not None:
            tables = self.device / "tables"
            tables.mkdir(exist_ok=True)
            self.give_to_server(tables)
            engine += [f"--rocksdb-datadir={tables}", f"--rocksdb-wal-dir={self.data}"]
        self.options = [*engine, *self.options]
        return super()._start()


def files() -> Path:
    """Return the folder of the plugin and of the library it needs."""
    return cache_folder() / "myrocks"
