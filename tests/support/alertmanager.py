# SPDX-License-Identifier: Apache-2.0
"""A real Alertmanager, whose own receiver is a webhook of the test."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.receivers import Receiver
from tests.support.servers.child import Child, program
from tests.support.servers.waiting import wait_until

__all__ = ["Alertmanager", "alertmanager"]

CONFIG = """\
route:
  receiver: test
  group_by: ['...']
  group_wait: 0s
  group_interval: 1s
  repeat_interval: 1h
receivers:
- name: test
  webhook_configs:
  - url: {url}
    send_resolved: true
"""


class Alertmanager:
    """``url`` is its address; ``alerts()`` what it has now."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self._get("/-/ready")[0] == 200
        return False

    def alerts(self) -> list[Any]:
        found: list[Any] = json.loads(self._get("/api/v2/alerts")[1])
        return found

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@contextlib.contextmanager
def alertmanager(folder: Path, receiver: Receiver) -> Iterator[Alertmanager]:
    """Run one until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = folder / "alertmanager.yml"
    config.write_text(CONFIG.format(url=receiver.url))
    command = program("prometheus-alertmanager")
    assert command is not None
    child = Child(
        [
            command,
            f"--config.file={config}",
            f"--storage.path={folder / 'alertmanager'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ],
        folder / "alertmanager.log",
    )
    found = Alertmanager(port)
    try:
        wait_until(found.ready, "Alertmanager is ready")
        yield found
    finally:
        child.end()
