# SPDX-License-Identifier: Apache-2.0
"""gdb's text of real servers: some of tests/data/corpus, of each server and most ways to wait."""

from __future__ import annotations

from pathlib import Path

from stallscope.model import capturefile
from tests.bench.labelled import OWN

__all__ = ["IDLE", "INDEX_LOCK", "NAMES", "TABLE_OPEN", "dump", "path_of"]

IDLE = "healthy-idle-mysql97"
INDEX_LOCK = "index-lock-mysql55"
TABLE_OPEN = "table-open-lock-mysql55"
NAMES = (
    "deadlock-check-mysql55",
    "file-extend-mysql55",
    "global-read-lock-mariadb",
    "healthy-idle-mysql55",
    IDLE,
    INDEX_LOCK,
    "metadata-lock-mariadb",
    "metadata-lock-mysql97-mysql97",
    "metadata-lock-select-mariadb",
    "redo-sync-mysql97-mysql97",
    "row-lock-mariadb-mariadb",
    TABLE_OPEN,
)
"""Sorted; of a stall and a server each."""


def path_of(name: str) -> Path:
    return OWN / name / "gdb.txt.zst"


def dump(name: str) -> bytes:
    return capturefile.decompress(path_of(name).read_bytes(), name)
