# SPDX-License-Identifier: Apache-2.0
"""Offsets of a connection's object that a pack has from debug information. They are tried first,
and checked as others are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.collectors import packs

__all__ = ["of_build"]

_MEMBERS = {
    "self": ("real_id",),
    "id": ("thread_id", "m_thread_id"),
    "query": ("query_string.string.str", "m_query_string.str"),
    "user": ("main_security_ctx.user", "m_main_security_ctx.m_user.m_ptr"),
    "host": ("main_security_ctx.host_or_ip", "m_main_security_ctx.m_host_or_ip.m_ptr"),
    "database": ("db.str", "db", "m_db.str"),
    "state": ("proc_info", "m_proc_info"),
    "command": ("command", "m_command"),
    "status": ("server_status",),
    "start": ("start_utime",),
}
"""Members of THD by field: MySQL 5.x and MariaDB, then MySQL from 5.7 on."""


def of_build(build: str, directories: Sequence[Path]) -> Mapping[str, Sequence[int]]:
    """Return offsets by field; none where no directory has a pack of the build that can be read."""
    path = packs.find(build, packs.directories(directories))
    if path is None:
        return {}
    try:
        layout = packs.layout(path)
    except StallscopeError:
        return {}
    return {
        field: [layout[key] for member in members if (key := f"THD.{member}") in layout]
        for field, members in _MEMBERS.items()
    }
