# SPDX-License-Identifier: Apache-2.0
"""Collectors of the kernel's numbers about the host and the server's process."""

from __future__ import annotations

from collections.abc import Sequence

from stallscope.collectors.host.accepting import Accepting
from stallscope.collectors.host.backends import Backends
from stallscope.collectors.host.collecting import HostCollector
from stallscope.collectors.host.disks import Disks
from stallscope.collectors.host.limits import Limits
from stallscope.collectors.host.links import Links
from stallscope.collectors.host.load import Load
from stallscope.collectors.host.memory import Memory
from stallscope.collectors.host.pressure import Pressure
from stallscope.collectors.host.process import ProcessNumbers
from stallscope.collectors.host.space import Space
from stallscope.collectors.processes import Server

__all__ = [
    "Accepting",
    "Backends",
    "Disks",
    "Limits",
    "Links",
    "Load",
    "Memory",
    "Pressure",
    "ProcessNumbers",
    "Space",
    "host_collectors",
]


def host_collectors(
    pid: int,
    *,
    start_time: int | None = None,
    datadir: str | None = None,
    ports: Sequence[int] = (),
    sockets: Sequence[str] = (),
    server: Server | None = None,
) -> tuple[HostCollector, ...]:
    """Return all collectors of this folder for one server; ``datadir`` as the server sees it.
    ``server``: whose disks are asked for room."""
    return (
        ProcessNumbers(pid, start_time),
        Pressure(pid),
        Disks(pid, datadir),
        Load(),
        Memory(),
        Limits(pid),
        Links(pid, ports),
        Accepting(pid, ports, sockets),
        *(() if server is None else (Space(server),)),
    )
