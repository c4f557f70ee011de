# SPDX-License-Identifier: Apache-2.0
"""The options by which the probe knows where servers keep connections and locks in memory."""

from __future__ import annotations

from collections.abc import Sequence

from stallscope.collectors import processes
from stallscope.server import layouts
from stallscope.server.families import family

__all__ = ["arguments"]

_SERVERS = frozenset({"mysql", "mariadb"})


def arguments(pids: Sequence[int], servers: Sequence[processes.Server] = ()) -> list[str]:
    """Return the options of ``snap`` and ``serve`` with the layouts of these processes.

    The probe chooses from the built-in ones by the version in the memory of the process. What is
    known of the build itself comes as ``--layout``, which wins.
    """
    if not any(_family(pid) in _SERVERS for pid in pids):
        return []
    return [word for row in layouts.by_version() for word in ("--layout-of", row)]


def _family(pid: int) -> str | None:
    process = processes.read(pid)
    return None if process is None else family(process.exe, process.comm)
