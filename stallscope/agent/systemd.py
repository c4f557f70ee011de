# SPDX-License-Identifier: Apache-2.0
"""Report to systemd how the service is: sd_notify(3) without a library, a datagram to a socket."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping

from stallscope.base.text import one_line

__all__ = ["ServiceManager"]

_SEND_SECONDS = 1.0


class ServiceManager:
    """The service manager that started this process; without one, nothing is sent.

    Its variables are removed from the environment: children of the agent are not the service.
    """

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        env = os.environ if environment is None else environment
        self._address = env.pop("NOTIFY_SOCKET", "")
        pid = env.pop("WATCHDOG_PID", "")
        microseconds = env.pop("WATCHDOG_USEC", "")
        meant = self._address and pid in ("", str(os.getpid())) and microseconds.isdecimal()
        self.watchdog_seconds = int(microseconds) / 1e6 if meant else None
        """Without a sign of life for so long, the service is restarted; None: nobody waits."""
        self._status = ""

    def ready(self, status: str) -> None:
        """Report that the start, or a reload, is complete."""
        self._send("READY=1", f"STATUS={self._remember(status)}")

    def status(self, text: str) -> None:
        """Report what the service does, where that has changed."""
        if one_line(text) != self._status:
            self._send(f"STATUS={self._remember(text)}")

    def reloading(self) -> None:
        """Report that a reload has begun; ``ready`` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def alive(self) -> None:
        """Give the watchdog its sign of life."""
        if self.watchdog_seconds is not None:
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Report that the service ends."""
        self._send("STOPPING=1")

    def _remember(self, text: str) -> str:
        self._status = one_line(text)
        return self._status

    def _send(self, *lines: str) -> None:
        if not self._address.startswith(("/", "@")):
            return
        # A name with @ is in the abstract namespace, whose names begin with a null byte.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as end,
        ):
            end.settimeout(_SEND_SECONDS)
            end.sendto("\n".join(lines).encode(), address)
