# SPDX-License-Identifier: Apache-2.0
"""Clients that queue at a server's listening sockets, because it does not accept them.

They see a connect(2) that succeeds, or hangs, and no greeting; the server's processlist does not
have them. The kernel counts them: /proc/PID/net/tcp, and sock_diag(7) for Unix sockets.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.collectors.host.collecting import HostCollector

__all__ = ["Accepting", "unix_queues"]

MAX_TABLE = 1 << 16
"""The kernel lists the sockets that listen before all others."""
MAX_ANSWER = 1 << 20
SECONDS = 0.2
_LISTEN = b"0A"  # include/net/tcp_states.h
# include/uapi/linux/netlink.h, sock_diag.h, unix_diag.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x1 | 0x300
_DONE, _ERROR = 3, 2
_SHOW_NAME_AND_QUEUE = 0x01 | 0x10
_ATTRIBUTE_NAME, _ATTRIBUTE_QUEUE = 0, 4
_HEADER = struct.Struct("=IHHII")
_ASK = struct.Struct("=BBHIIIII")
_SAID = struct.Struct("=BBBBIII")
_ATTRIBUTE = struct.Struct("=HH")


class Accepting(HostCollector):
    """``accept.queued``: clients in the longest queue of a socket that the server listens on; not
    there where none of them can be seen."""

    name = "accept"

    def __init__(
        self,
        pid: int,
        ports: Sequence[int],
        paths: Sequence[str],
        *,
        proc: Path = Path("/proc"),
        queues: Callable[[], Iterable[tuple[str, int]]] | None = None,
    ) -> None:
        """``pid``: whose network namespace; ``paths``: of Unix sockets, as the server names
        them."""
        super().__init__()
        self._ports = frozenset(ports)
        self._paths = frozenset(paths)
        self._tables = [
            self.keep(proc / str(pid) / "net" / name, MAX_TABLE) for name in ("tcp", "tcp6")
        ]
        self._ours, self._theirs = (proc / who / "ns" / "net" for who in ("self", str(pid)))
        self._queues = queues or unix_queues

    def read(self, clock_ns: int) -> dict[str, float]:
        found: list[int] = []
        if self._ports:
            for table in self._tables:
                with contextlib.suppress(StallscopeError):
                    found += _queued(table.read().splitlines()[1:], self._ports)
        # sock_diag(7) shows those of our own namespace.
        if self._paths and _same(self._ours, self._theirs):
            found += [count for path, count in self._queues() if path in self._paths]
        return {"accept.queued": float(max(found))} if found else {}


def _same(one: Path, other: Path) -> bool:
    try:
        return one.readlink() == other.readlink()
    except OSError:
        return False


def _queued(lines: Iterable[bytes], ports: frozenset[int]) -> Iterator[int]:
    """Yield how many clients wait at each of these ports: of a socket that listens, the kernel
    shows them as bytes to be read."""
    for line in lines:
        words = line.split()
        if len(words) < 5 or words[3] != _LISTEN:
            continue
        with contextlib.suppress(ValueError):
            if int(words[1].rpartition(b":")[2], 16) in ports:
                yield int(words[4].partition(b":")[2], 16)


def unix_queues() -> Iterator[tuple[str, int]]:
    """Yield the path of each Unix socket of our network namespace that listens, and how many
    clients queue there. Raises: StallscopeError."""
    ask = _ASK.pack(socket.AF_UNIX, 0, 0, 1 << int(_LISTEN, 16), 0, _SHOW_NAME_AND_QUEUE, 0, 0)
    head = _HEADER.pack(_HEADER.size + len(ask), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as end:
            end.settimeout(SECONDS)
            end.sendto(head + ask, (0, 0))
            data = bytearray()
            while not (piece := _Messages(end.recv(MAX_TABLE))).last:
                data += piece.data
                if len(data) > MAX_ANSWER:
                    raise StallscopeError("sock_diag lists more sockets than are read")
            data += piece.data
    except OSError as error:
        raise StallscopeError(f"sock_diag does not answer: {error.strerror or error}") from error
    for body in _Messages(bytes(data)).bodies:
        attributes = dict(_attributes(body[_SAID.size :]))
        queue = attributes.get(_ATTRIBUTE_QUEUE, b"")
        if len(queue) >= 4:
            name = attributes.get(_ATTRIBUTE_NAME, b"").rstrip(b"\0")
            yield name.decode("utf-8", "surrogateescape"), int(struct.unpack_from("=I", queue)[0])


class _Messages:
    """The messages of netlink in one piece of an answer."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.bodies: list[bytes] = []
        self.last = False
        at = 0
        while at + _HEADER.size <= len(data):
            length, kind, *_ = _HEADER.unpack_from(data, at)
            if length < _HEADER.size:
                self.last = True
                break
            if kind in (_DONE, _ERROR):
                self.last = True
            elif kind == _SOCK_DIAG_BY_FAMILY:
                self.bodies.append(data[at + _HEADER.size : at + length])
            at += length + -length % 4


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[at + _ATTRIBUTE.size : at + length]
        at += length + -length % 4
