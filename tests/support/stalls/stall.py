# SPDX-License-Identifier: Apache-2.0
"""A stall by name: the server that shows it, what makes it, and what its verdict must be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.servers import Unavailable
from tests.support.stalls.full_disks import small_disk
from tests.support.stalls.redo_sync import Device, device_missing, loop_device

__all__ = ["HEALTHY", "DiskStall", "Expected", "NamedStall", "SmallDiskStall", "Stall"]

Server = Any
"""SqlServer or Postgres: each stall knows which it makes."""


class Expected(NamedTuple):
    """The right verdict: one of ``signatures``, of a confidence of 0.5 or more.

    Where ``make`` yields a connection id (of PostgreSQL, a pid), that connection is the blocker.
    Else one of ``holder`` must be among the functions of the blocker; without both, there is no
    blocker to name.
    """

    signatures: tuple[str, ...] = ()
    holder: tuple[str, ...] = ()


HEALTHY = Expected()
"""No finding of 0.5 or more: the fixed twin of a stall."""


class Stall(NamedTuple):
    """A stall, and the server that shows it."""

    server: Callable[[], Server]
    make: Callable[[Server], AbstractContextManager[object]]
    story: str
    expected: Expected = HEALTHY

    @contextmanager
    def started(self) -> Iterator[tuple[Server, AbstractContextManager[object]]]:
        """Start the server; yield it and what makes the stall in it."""
        with self.server() as server:
            yield server, self.make(server)


class DiskStall(NamedTuple):
    """A stall of a server whose data is on a device that can be made to stop answering."""

    server: Callable[[Path], Server]
    make: Callable[[Server, Device], AbstractContextManager[object]]
    story: str
    expected: Expected = HEALTHY

    @contextmanager
    def started(self) -> Iterator[tuple[Server, AbstractContextManager[object]]]:
        """Start the server on such a device; yield it and what makes the stall in it."""
        if reason := device_missing():
            raise Unavailable(reason)
        with loop_device() as device, self.server(device.folder) as server:
            yield server, self.make(server, device)


class SmallDiskStall(NamedTuple):
    """A stall of a server that has some of its files on a disk of a few MB."""

    server: Callable[[Path], Server]
    make: Callable[[Server, Path], AbstractContextManager[object]]
    story: str
    expected: Expected = HEALTHY
    size: str = "16m"

    @contextmanager
    def started(self) -> Iterator[tuple[Server, AbstractContextManager[object]]]:
        """Start the server with such a disk; yield it and what makes the stall in it."""
        with small_disk(self.size) as disk, self.server(disk) as server:
            yield server, self.make(server, disk)


NamedStall = Stall | DiskStall | SmallDiskStall
