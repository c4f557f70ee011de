# SPDX-License-Identifier: Apache-2.0
"""Unpack MySQL 5.5.9 from the Maven artifact mysql-connector-mxj-db-files 5.0.12.

scripts/setup runs it with whichever Python there is: ``python3 unpack_mysql55.py JAR FOLDER``.
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

__all__ = ["unpack"]

SERVER = "5-5-9/Linux-x86_64/mysqld"
INNER_JARS = {"5-5-9/share_dir.jar": "share/", "5-5-9/data_dir.jar": "mysql/"}


def unpack(jar: Path, folder: Path) -> None:
    """Write ``mysqld``, ``share/`` and ``data/mysql/`` into a new folder; whole or absent."""
    aside = folder.with_name(folder.name + ".part")
    with zipfile.ZipFile(jar) as outer:
        for inner, prefix in INNER_JARS.items():
            target = aside / "data" if prefix == "mysql/" else aside
            with zipfile.ZipFile(io.BytesIO(outer.read(inner))) as files:
                files.extractall(target, [n for n in files.namelist() if n.startswith(prefix)])
        server = aside / "mysqld"
        server.write_bytes(outer.read(SERVER))
    server.chmod(0o755)
    aside.rename(folder)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
