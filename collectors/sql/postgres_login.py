# SPDX-License-Identifier: Apache-2.0
"""How to log in to a PostgreSQL: through the socket of the server's own process, as the user that
it runs as, if nothing else is said.

PostgreSQL asks the kernel who connects (``peer``), and maps that user to the role of its name. So
no password is needed where this program may become the server's user. libpq reads the rest itself:
``PGPASSFILE``, ``PGSERVICE`` and ``PGSERVICEFILE``, ``PGSSLMODE`` and so on.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from collections.abc import Mapping

import msgspec

from stallscope.base.errors import UsageError
from stallscope.collectors import postmaster, processes, rootpath
from stallscope.collectors.paths import asking
from stallscope.collectors.processes import Server
from stallscope.collectors.sql import peers
from stallscope.collectors.sql.login import default_user
from stallscope.collectors.sql.peers import Peer
from stallscope.server.families import family

__all__ = ["DATABASE", "ROLE", "PostgresLogin", "find"]

ROLE = "postgres"
DATABASE = "postgres"
"""It is in every cluster, and nobody's own."""
SUPPLIED = ("PGUSER", "PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGSERVICE", "PGPASSWORD")
FOLDERS = ("/run/postgresql", "/tmp")  # noqa: S108
"""Of sockets, where those of the process may not be seen: of packages, and of PostgreSQL."""
MAX_PASSWD = 1 << 20
_SOCKET = re.compile(r"(.*)/\.s\.PGSQL\.(\d{1,5})")


class PostgresLogin(msgspec.Struct, frozen=True):
    """By the socket in ``folder`` where there is one, else by TCP to ``host``."""

    user: str
    password: str | None = None
    database: str = DATABASE
    folder: str | None = None
    """Of the socket, as this process sees it."""
    shown: str = ""
    """The socket's path, as the server itself sees it."""
    host: str | None = None
    port: int = 5432
    service: str | None = None
    owner: str = ROLE
    """The name of the user that the server runs as: the role that ``peer`` gives it."""
    uid: int | None = None
    gid: int | None = None
    """That user; None: not known, or that of this process."""
    uses_passfile: bool = True
    """libpq may look for a password in PGPASSFILE."""
    peer: Peer | None = None
    """The server that must answer; None: the user has named an address alone."""

    def __repr__(self) -> str:
        """Without the password: this text can get into logs."""
        return f"PostgresLogin({self})"

    def __str__(self) -> str:
        return f"{self.user!r} at {self.where}"

    @property
    def where(self) -> str:
        if self.service is not None:
            return f"service {self.service}"
        if self.folder is not None:
            return self.shown
        host = self.host or "localhost"
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def becomes(self) -> tuple[int, int] | None:
        """Return the user and group that the connecting process takes; None: it keeps its own."""
        if self.folder is None or self.user != self.owner or self.uid is None or self.gid is None:
            return None
        return self.uid, self.gid

    @property
    def instead(self) -> str | None:
        """Return the role to try where that of the server's user is not there: initdb takes any
        name."""
        return ROLE if self.user == self.owner and self.user != ROLE else None


def find(
    server: Server | None, *, environment: Mapping[str, str] | None = None
) -> tuple[PostgresLogin, tuple[str, ...]]:
    """Return how to log in to this server, and notes on what was ignored. Raises: UsageError."""
    env = os.environ if environment is None else environment
    given = {name: env[name] for name in SUPPLIED if env.get(name)}
    login = PostgresLogin(user="")
    if server is not None:
        login = _of_process(server, login)
    host = given.get("PGHOSTADDR") or given.get("PGHOST")
    if "PGSERVICE" in given:
        login = msgspec.structs.replace(login, service=given["PGSERVICE"], folder=None)
    elif host is not None and not host.startswith("/"):
        # A folder in the environment is the socket of one server: it need not be this one.
        login = msgspec.structs.replace(
            login, host=host, folder=None, port=_port(given.get("PGPORT"), 5432)
        )
    elif login.folder is None and host is not None:
        port = _port(given.get("PGPORT"), login.port)
        shown = f"{host.rstrip('/')}/.s.PGSQL.{port}"
        login = msgspec.structs.replace(login, folder=host, shown=shown, port=port)
    may_become = os.geteuid() in (0, login.uid)
    login = msgspec.structs.replace(
        login,
        user=given.get("PGUSER") or (login.owner if may_become else default_user()),
        password=given.get("PGPASSWORD"),
        database=given.get("PGDATABASE") or DATABASE,
    )
    if not _has_own_root(login):
        return login, ()
    # A program that is called postgres in a container must not get a password.
    notes: tuple[str, ...] = ()
    if login.password is not None:
        notes = (
            "the server has its own root, so the password of the environment is not sent to it:"
            " name one in a configuration",
        )
    return msgspec.structs.replace(login, password=None, uses_passfile=False), notes


def _has_own_root(login: PostgresLogin) -> bool:
    """Return whether the server's socket is not where this process sees that path."""
    if login.folder is None or not login.folder.startswith("/proc/"):
        return False
    try:
        return not asking.is_same(login.folder, os.path.dirname(login.shown))
    except OSError:
        return True


def _of_process(server: Server, login: PostgresLogin) -> PostgresLogin:
    """Add the socket and the user of the process: of a backend, those of its parent."""
    parent = processes.read(server.main.ppid)
    if parent is not None and family(parent.exe, parent.comm) == "postgres":
        above = processes.find_server(str(parent.pid), processes.Selector())
        server = msgspec.structs.replace(above, chosen=server.chosen)
    login = msgspec.structs.replace(login, peer=peers.of(server))
    pid = server.main.pid
    owner = processes.owner(pid)
    if owner is not None:
        uid, gid = owner
        name = _name_of(pid, uid) or ROLE
        login = msgspec.structs.replace(login, owner=name, uid=uid, gid=gid)
    path = next(filter(_SOCKET.fullmatch, server.sockets), None)
    said = None
    if path is None and server.datadir is not None:
        with contextlib.suppress(asking.SilentDiskError):
            said = postmaster.read(pid, server.datadir)
        path = None if said is None else said.socket
    if path is not None and (parts := _SOCKET.fullmatch(path)) is not None:
        return msgspec.structs.replace(
            login, folder=_seen(pid, parts[1]), shown=path, port=int(parts[2])
        )
    if server.ports:
        return msgspec.structs.replace(login, host="127.0.0.1", port=server.ports[0])
    port = login.port if said is None or said.port is None else said.port
    for folder in FOLDERS:
        shown = f"{folder}/.s.PGSQL.{port}"
        if _is_there(shown):
            return msgspec.structs.replace(login, folder=folder, shown=shown, port=port)
    return msgspec.structs.replace(login, host="127.0.0.1", port=port)


def _seen(pid: int, folder: str) -> str:
    """Return where this process finds a folder of the server."""
    try:
        seen = rootpath.inside(pid, folder)
        # Another user's root may not be entered.
        return seen if asking.is_folder(seen) else folder
    except asking.SilentDiskError:  # connecting says so
        return f"/proc/{pid}/root{folder}"


def _is_there(path: str) -> bool:
    try:
        return asking.exists(path)
    except asking.SilentDiskError:
        return True  # connecting says so


def _name_of(pid: int, uid: int) -> str | None:
    """Return the name of a user, by the passwd file that the process sees: it is the server that
    turns the number into a name."""
    try:
        data = rootpath.read(pid, "/etc/passwd", MAX_PASSWD) or b""
    except asking.SilentDiskError:
        return None
    for line in data.decode("utf-8", "replace").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2] == str(uid):
            return fields[0] or None
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return None


def _port(text: str | None, default: int) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 65_536):
        raise UsageError(f"PGPORT={text} of the environment is no port")
    return int(text)
