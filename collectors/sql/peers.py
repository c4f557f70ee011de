# SPDX-License-Identifier: Apache-2.0
"""Who answers on a connection, as the kernel says it, before anything of a password is sent.

A server that has ended leaves its socket or port to any user's program. So a login begins only
with the user that the server runs as, or with root; over the network only where TLS has verified
the server.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stallscope.collectors import pins, processes, procfile
from stallscope.collectors.processes import PROC, Server
from stallscope.collectors.sql.failures import AbortedLoginError, ConnectError, RefusedError

__all__ = ["Peer", "check_local", "check_network", "of"]

_MAX_TABLE = 64 << 20
_TRIES = 3
"""How often a table is read: it can lose a line while it changes."""
_IP4_IN_IP6 = b"\0" * 10 + b"\xff\xff"


class Peer(msgspec.Struct, frozen=True):
    """The server that a login is for."""

    pid: int
    start_time: int
    name: str
    stranger: str | None = None
    """Why it is not known whether the user means this one."""

    def users(self) -> frozenset[int]:
        """Return of which users it may be now. Raises: ConnectError where it has ended."""
        if self.stranger is not None:
            raise RefusedError(f"not logged in: {self.stranger}")
        # In this order: another process may have the pid by now.
        uid, found = processes.user(self.pid), processes.read(self.pid)
        if found is None or found.start_time != self.start_time or uid is None:
            raise ConnectError(f"not logged in: {self.name} (pid {self.pid}) has ended")
        return frozenset({0, uid})


def of(server: Server) -> Peer:
    """Return the peer that a server must be."""
    main = server.main
    return Peer(main.pid, main.start_time, server.name, pins.stranger(server))


def check_local(end: socket.socket, peer: Peer | None, where: str) -> None:
    """Check who listens on a Unix socket. ``peer``: None: the user has named an address alone, and
    it may be any account of the system. Raises: ConnectError."""
    size = struct.calcsize("3i")
    try:
        answer = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    except OSError as error:
        raise ConnectError(f"not logged in at {where}: who listens is not known") from error
    _, uid, _ = struct.unpack("3i", answer)
    if not _is_meant(uid & 0xFFFFFFFF, peer):
        raise RefusedError(_refused(where, uid & 0xFFFFFFFF, peer))


def check_network(end: socket.socket, peer: Peer | None, where: str, *, verified: bool) -> None:
    """Check who has accepted a connection by TCP, and sent something on it. ``verified``: TLS does
    so. Raises: ConnectError."""
    if verified:
        if peer is not None and peer.stranger is not None:
            peer.users()
        return
    try:
        ours, theirs = end.getsockname(), end.getpeername()
    except OSError as error:
        raise ConnectError(f"no server answers at {where}: {error.strerror}") from error
    uid = _accepted_by(theirs, ours, peer)
    if uid is None:
        raise AbortedLoginError(
            f"not logged in at {where}: it is not known who answers there; only TLS that verifies"
            " the server can show that (ssl-mode=VERIFY_CA, or sslmode=verify-ca)"
        )
    if not _is_meant(uid, peer):
        raise AbortedLoginError(_refused(where, uid, peer))


def _is_meant(uid: int, peer: Peer | None) -> bool:
    if peer is not None:
        return uid in peer.users()
    return uid == os.geteuid() or pins.is_system(uid)


def _refused(where: str, uid: int, peer: Peer | None) -> str:
    if peer is None:
        expected = "an account of the system, or this user's own program"
    else:
        expected = f"{peer.name} (pid {peer.pid}), of {pins.user(max(peer.users()))}"
    return f"not logged in at {where}: expected is {expected}, and {pins.user(uid)} answers there"


def _accepted_by(theirs: tuple[str, int], ours: tuple[str, int], peer: Peer | None) -> int | None:
    """Return the user who has accepted a connection; None: it ends on another host, or that is not
    known. A server in a network namespace of its own is in that one's table."""
    tables = ["self"] if peer is None else ["self", str(peer.pid)]
    needles = list(_needles(theirs, ours))
    for _ in range(_TRIES):
        for process in tables:
            for table, needle in needles:
                uid = _in_table(PROC / process / "net" / table, needle)
                if uid is not None:
                    return uid
    return None


def _needles(theirs: tuple[str, int], ours: tuple[str, int]) -> Iterator[tuple[str, bytes]]:
    """Yield the tables that can have the peer's end of a connection, and the line's beginning."""
    try:
        hosts = [socket.inet_pton(socket.AF_INET, end[0]) for end in (theirs, ours)]
        yield "tcp", _line(hosts, theirs[1], ours[1])
        hosts = [_IP4_IN_IP6 + host for host in hosts]
    except OSError:
        texts = [end[0].partition("%")[0] for end in (theirs, ours)]
        hosts = [socket.inet_pton(socket.AF_INET6, text) for text in texts]
    yield "tcp6", _line(hosts, theirs[1], ours[1])


def _line(hosts: list[bytes], *ports: int) -> bytes:
    """Return both addresses as in /proc/net/tcp: words of the host's own byte order."""
    words = ["".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", host)) for host in hosts]
    return " ".join(f"{word}:{port:04X}" for word, port in zip(words, ports, strict=True)).encode()


def _in_table(table: Path, needle: bytes) -> int | None:
    """Return the user of a socket that a process has; one that nobody has accepted yet, or that is
    closed, has no inode, and not always its user."""
    try:
        with table.open("rb") as file:
            data = procfile.take(file, _MAX_TABLE)
    except OSError:
        return None
    at = data.find(b": " + needle + b" ")
    if at < 0:
        return None
    fields = data[at : at + 400].split(b"\n", 1)[0].split()
    if len(fields) < 10 or fields[9] == b"0":
        return None
    return int(fields[7])
