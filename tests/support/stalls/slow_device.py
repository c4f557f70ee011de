# SPDX-License-Identifier: Apache-2.0
"""A disk that answers, but gives a server only a little in each second."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.cache import Unavailable
from tests.support.cgroups import io_controller, limited
from tests.support.servers.sql import SqlServer
from tests.support.stalls.redo_sync import Device

__all__ = ["slow_device"]


@contextmanager
def slow_device(
    server: SqlServer,
    device: Device,
    *,
    reads: int | None = None,
    writes: int | None = None,
    read_bytes: int | None = None,
    write_bytes: int | None = None,
) -> Iterator[None]:
    """Let the server have so much of its device in a second; None is no limit."""
    controller = io_controller()
    if controller is None:
        raise Unavailable("no cgroup controller limits the requests to a disk here")
    disk = os.stat(device.folder).st_dev
    with limited(controller) as group:
        group.limit_io(disk, reads, writes, read_bytes, write_bytes)
        group.add(server.pid)
        try:
            yield
        finally:
            # Requests that are held back go on, and a process that waits for them can end.
            group.limit_io(disk, None, None, None)
            group.remove(server.pid)
