# SPDX-License-Identifier: Apache-2.0
"""A client of the agent's HTTP, which can also be slow, large or wrong."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from http.client import HTTPResponse

import msgspec

from stallscope.agent.http.address import Address
from tests.support.servers.waiting import PATIENCE

__all__ = ["Reply", "connected", "get", "reply_to"]


class Reply(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def connected(address: Address) -> socket.socket:
    """Return a connection."""
    if address.path is not None:
        end = socket.socket(socket.AF_UNIX)
        end.settimeout(PATIENCE)
        end.connect(address.path)
        return end
    return socket.create_connection((address.host, address.port), PATIENCE)


def reply_to(end: socket.socket, method: str = "GET") -> Reply:
    """Read a reply to its end."""
    response = HTTPResponse(end, method=method)
    response.begin()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Reply(response.status, headers, response.read())


def get(
    address: Address, path: str, headers: Mapping[str, str] | None = None, *, method: str = "GET"
) -> Reply:
    """Make a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    with connected(address) as end:
        end.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode())
        return reply_to(end, method)
