# SPDX-License-Identifier: Apache-2.0
"""Clients hang in their login: DNS does not answer, or all threads of the pool are busy."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pymysql.constants import COMMAND

from tests.support.servers import MEMORY, MariaDB, program
from tests.support.servers.child import UNPRIVILEGED, Child, primary_group
from tests.support.servers.clients import idle_connections, socket_of
from tests.support.servers.sql import SqlServer
from tests.support.servers.waiting import wait_until

__all__ = [
    "LOGGED_IN",
    "POOL_OPTIONS",
    "POOL_SIZE",
    "WAITING",
    "NamedHosts",
    "busy_pool",
    "tcp_clients",
]

ADDRESS = "10.99.0.1"
PORT = 3306
CLIENTS = 12
WAITING = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'unauthenticated user'"
LOGGED_IN = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'shop'"

# $0: a resolv.conf; $1: Python. The server is the child of what never answers a question.
_NAMED = f"""\
set -e
ip link set lo up
ip addr add {ADDRESS}/24 dev lo
mount --bind $0 /etc/resolv.conf
python=$1; shift
setpriv --pdeathsig KILL --reuid={UNPRIVILEGED} --regid={primary_group(UNPRIVILEGED)} \
  --clear-groups "$@" &
exec $python -c 'import signal, socket
end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
end.bind(("{ADDRESS}", 53))
signal.pause()'
"""
_RESOLVER = f"nameserver {ADDRESS}\noptions timeout:30 attempts:5\n"
_CLIENTS = f"""\
import pymysql, signal, threading
def login(kept):
    kept.append(pymysql.connect(host="{ADDRESS}", port={PORT}, user="shop", read_timeout=600,
                                connect_timeout=600, ssl_disabled=True))
kept = []
for _ in range({CLIENTS}):
    threading.Thread(target=login, args=(kept,), daemon=True).start()
signal.pause()
"""
SILENCE = 1.0
"""Seconds in which a server that is not stalled greets a client."""
POOL_SIZE = 6
POOL_OPTIONS = (
    "--thread-handling=pool-of-threads",
    "--thread-pool-size=1",
    f"--thread-pool-max-threads={POOL_SIZE}",
)


class NamedHosts(MariaDB):
    """A MariaDB in a network of its own, whose resolver never answers."""

    def __init__(self, *options: str) -> None:
        network = ("--skip-networking=OFF", f"--bind-address={ADDRESS}", f"--port={PORT}")
        super().__init__(*network, *options, parent=MEMORY)

    @classmethod
    def missing(cls) -> str | None:
        for name in ("ip", "unshare", "nsenter", "mount"):
            if program(name) is None:
                return f"no {name} here"
        return super().missing()

    def _create_data(self) -> None:
        super()._create_data()
        resolver = self.folder / "resolv.conf"
        resolver.write_text(_RESOLVER)
        names = ("unshare", "--net", "--mount", "sh", "-c", _NAMED)
        self.wrapper = (*names, str(resolver), sys.executable)

    def inside_network(self, argv: Sequence[str]) -> list[str]:
        """Return a command line that runs in its network."""
        return ["nsenter", "--target", str(self.pid), "--net", *argv]


@contextmanager
def tcp_clients(server: NamedHosts, state: str) -> Iterator[None]:
    """Let clients log in by TCP, until ``state`` counts all of them."""
    server.execute("CREATE USER IF NOT EXISTS shop@'%' IDENTIFIED BY ''")
    argv = server.inside_network([sys.executable, "-c", _CLIENTS])
    clients = Child(argv, server.folder / "clients.log")
    try:
        clients.wait_until(lambda: server.query(state) == ((CLIENTS,),), "the clients are there")
        yield
    finally:
        clients.end()


@contextmanager
def busy_pool(server: SqlServer, busy: int, answers: bool) -> Iterator[None]:
    """Keep so many threads of the pool busy, until it ``answers`` a new client or does not."""
    with idle_connections(server, busy) as connections:
        for connection in connections:
            connection._execute_command(COMMAND.COM_QUERY, "SELECT SLEEP(3600)")  # type: ignore[attr-defined]
        wait_until(lambda: _greets(server) is answers, "the pool is as busy as it is to be")
        yield
        for connection in connections:
            socket_of(connection).close()  # closing it well would wait for an answer


def _greets(server: SqlServer) -> bool:
    with socket.socket(socket.AF_UNIX) as end:
        end.settimeout(SILENCE)
        end.connect(str(server.socket))
        try:
            return bool(end.recv(1))
        except TimeoutError:
            return False
