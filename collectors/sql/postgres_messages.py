# SPDX-License-Identifier: Apache-2.0
"""What this program and its child that asks a PostgreSQL send each other: one JSON a line.

The child is ``python -m stallscope.collectors.sql.postgres_child``. It connects as the user of the
server, which a process cannot be for a while and then cease to be, and it alone reads what the
server sends: libpq's memory is not that of an agent that runs as root.
"""

from __future__ import annotations

import msgspec

from stallscope.collectors.sql.peers import Peer

__all__ = ["MAX_LINE", "Answer", "Failed", "Hello", "Opened", "Query", "Reply"]

MAX_LINE = 64 << 20
"""Bytes of one reply: enough for 20,000 statements of 1,024 characters, escaped."""


class Hello(msgspec.Struct, frozen=True):
    """The first line to the child."""

    parameters: dict[str, str]
    """As libpq names them."""
    becomes: tuple[int, int] | None = None
    """User and group that it takes before it connects."""
    uses_passfile: bool = True
    """Without it libpq looks for no password."""
    instead: str | None = None
    """The role to try where the server does not take the first one."""
    peer: Peer | None = None
    """The server that must answer."""
    where: str = ""
    """Its address, for messages."""


class Query(msgspec.Struct, frozen=True):
    """A statement."""

    sql: str
    rows: int
    """Rows beyond are dropped."""
    database: str | None = None
    """Another one than that of the connection: asked on a connection of its own, which is closed
    then."""


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """The child has logged in."""

    version: int
    """``170010``, as libpq counts."""
    role: str
    backend: int
    """The process that serves this connection, in the server's pid namespace."""
    listener: int | None = None
    """The process that listens on the socket, in ours."""


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """Rows, each value a text or null."""

    rows: list[list[str | None]]
    left_out: int = 0


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Why there is no answer; ``lost``: there is no connection any more."""

    text: str
    state: str | None = None
    """SQLSTATE, where the server refused a statement."""
    lost: bool = False
    stranger: bool = False
    """Another program answers than the server."""


Reply = Opened | Answer | Failed
