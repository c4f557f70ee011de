# SPDX-License-Identifier: Apache-2.0
"""A disk that answers, but serves a server only a few requests a second."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.cgroups import io_controller, limited
from tests.support.servers.cache import Unavailable
from tests.support.servers.sql import SqlServer
from tests.support.stalls.redo_sync import Device

__all__ = ["slow_device"]


@contextmanager
def slow_device(
    server: SqlServer, device: Device, *, reads: int | None = None, writes: int | None = None
) -> Iterator[None]:
    """Let the server have so many reads and writes a second of its device; None is no limit."""
    controller = io_controller()
    if controller is None:
        raise Unavailable("no cgroup controller limits the requests to a disk here")
    disk = os.stat(device.folder).st_dev
    with limited(controller) as group:
        group.limit_requests(disk, reads, writes)
        group.add(server.pid)
        try:
            yield
        finally:
            # Requests that are held back go on, and a process that waits for them can end.
            group.limit_requests(disk, None, None)
            group.remove(server.pid)
