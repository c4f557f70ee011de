# SPDX-License-Identifier: Apache-2.0
"""Families of database servers by the names of their programs."""

from __future__ import annotations

__all__ = ["family"]

_FAMILIES = {
    "mysqld": "mysql",
    "mysqld-debug": "mysql",
    "mariadbd": "mariadb",
    "postgres": "postgres",
    "postmaster": "postgres",
    "mongod": "mongodb",
    "mongos": "mongodb",
}


def family(exe: str | None, comm: str | None = None) -> str | None:
    """Return ``mysql``, ``mariadb``, ``postgres`` or ``mongodb``; by the program where known."""
    if exe:
        return _FAMILIES.get(exe.rsplit("/", 1)[-1])
    return _FAMILIES.get(comm or "")
