# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that are reached by TCP."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

__all__ = ["free_port", "free_ports"]

LEAST = 2048
SPREAD = 64
"""Processes of tests that run at the same time begin so many ports apart."""


def free_port() -> int:
    """Return a free port that the kernel gives to no connection meanwhile."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    own = os.getpid() * SPREAD % max(1, first - 2 * LEAST)
    for number in range(first - 1 - own, LEAST, -1):
        with socket.socket() as end, suppress(OSError):
            end.bind(("127.0.0.1", number))
            return number
    raise OSError("no port is free")


def free_ports(count: int) -> list[int]:
    """Return several that differ, for programs that know each other before they start."""
    first = free_port()
    found = [first]
    for number in range(first - 1, LEAST, -1):
        if len(found) == count:
            return found
        with socket.socket() as end, suppress(OSError):
            end.bind(("127.0.0.1", number))
            found.append(number)
    raise OSError(f"no {count} ports are free")
