# SPDX-License-Identifier: Apache-2.0
"""Who talks to whom: what stallscope calls itself in a server's lists, and who listens on a
socket."""

from __future__ import annotations

import contextlib
import socket
import struct

from stallscope.base import package

__all__ = ["PROGRAM", "TAG", "listener"]

PROGRAM = "stallscope"
"""What its connections say of themselves."""
TAG = f"/* stallscope {package.version()} */ "
"""The beginning of every statement, so that people recognize it in a processlist or a log."""


def listener(end: socket.socket) -> int | None:
    """Return the process that called listen(2) for a Unix socket, 0 being one of another pid
    namespace; None where the kernel does not say."""
    with contextlib.suppress(OSError):
        size = struct.calcsize("3i")
        pid, _, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        return int(pid)
    return None
