# SPDX-License-Identifier: Apache-2.0
"""From option files and the environment to a Login."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from stallscope.base.errors import UsageError
from stallscope.collectors import rootpath
from stallscope.collectors.paths import asking
from stallscope.collectors.processes import Server
from stallscope.collectors.sql import peers
from stallscope.collectors.sql.login import DEFAULT_PORT, TLS_MODES, Login, Tls, default_user
from stallscope.collectors.sql.optionfiles import GROUPS, Setting, Sources, read

__all__ = ["DEFAULTS_FILE_VARIABLE", "OWN_GROUP", "find", "options"]

OWN_GROUP = "stallscope"
"""The group that only this program reads, after those of all clients."""
DEFAULTS_FILE_VARIABLE = "STALLSCOPE_DEFAULTS_FILE"
DEFAULT_SOCKETS = ("/run/mysqld/mysqld.sock", "/var/lib/mysql/mysql.sock")

_KNOWN = frozenset(
    {"user", "password", "host", "port", "socket", "protocol", "connect-timeout"}
    | {"ssl", "ssl-mode", "ssl-ca", "ssl-capath", "ssl-cert", "ssl-key", "ssl-cipher", "ssl-crl"}
    | {"ssl-verify-server-cert", "cleartext-plugin"}
)
_TLS_FILES = ("ca", "capath", "cert", "key", "cipher", "crl")
_ON = frozenset({"1", "on", "true", "yes"})
_OFF = frozenset({"0", "off", "false", "no"})
_MODES = {mode.replace("-", "_"): mode for mode in TLS_MODES}


def find(
    sources: Sources,
    server: Server | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    folders: Sequence[str] | None = None,
) -> tuple[Login, tuple[str, ...]]:
    """Return how to log in, and notes on what was ignored.

    ``server`` is the process to examine: where no option says otherwise, it is reached by
    the socket that it listens on itself, seen through its own root.

    Raises: UsageError.
    """
    env = os.environ if environment is None else environment
    if sources.defaults_file is None and env.get(DEFAULTS_FILE_VARIABLE):
        sources = msgspec.structs.replace(sources, defaults_file=env[DEFAULTS_FILE_VARIABLE])
    found = read(sources, groups=(*GROUPS, OWN_GROUP), environment=env, folders=folders)
    given = options(found.settings)
    login = _login(given, env, found.files)
    if server is not None:
        login = msgspec.structs.replace(login, peer=peers.of(server))
    by_default = sources.defaults_file is None and sources.defaults_extra_file is None
    if login.host is None and server is not None and (by_default or login.socket is None):
        # Packages set a socket in the default files: it may be that of another server.
        login = _own_socket(login, server)
    notes = list(found.notes)
    if by_default and login.socket_shown is not None and login.password:
        # A program that is called mysqld in a container must not get the password.
        login = msgspec.structs.replace(login, password=None)
        notes.append(
            "the server has its own root, so the password of the default option files is not"
            " sent to it: name its file with --defaults-file"
        )
    if login.host is None and login.socket is None:
        present = (path for path in DEFAULT_SOCKETS if _is_there(path))
        login = msgspec.structs.replace(login, socket=next(present, DEFAULT_SOCKETS[0]))
    return login, tuple(notes)


def options(settings: Iterable[Setting]) -> dict[str, str]:
    """Return the last value of each known option, by its name in the clients."""
    given: dict[str, str] = {}
    for setting in settings:
        name, value = _meant(setting.name, setting.value)
        if name in _KNOWN:
            given[name] = value
    return given


def _meant(name: str, value: str | None) -> tuple[str, str]:
    """Resolve ``loose-``, ``skip-``, ``disable-``, ``enable-`` and underscores."""
    name = name.replace("_", "-").removeprefix("loose-")
    for prefix, off in (("skip-", True), ("disable-", True), ("enable-", False)):
        if name.startswith(prefix):
            turned_off = off and (value is None or value.lower() not in _OFF)
            return name.removeprefix(prefix), "0" if turned_off else value or "1"
    return name, "1" if value is None and name.startswith(("ssl", "clear")) else value or ""


def _login(given: Mapping[str, str], env: Mapping[str, str], files: Sequence[str]) -> Login:
    host = given.get("host") or env.get("MYSQL_HOST") or None
    socket = given.get("socket") or env.get("MYSQL_UNIX_PORT") or None
    password = given.get("password")
    if password is None:
        password = env.get("MYSQL_PWD")
    login = Login(
        user=given.get("user") or default_user(),
        password=password,
        host=host,
        port=_number("port", given.get("port") or env.get("MYSQL_TCP_PORT"), DEFAULT_PORT, 65535),
        tls=_tls(given),
        connect_seconds=float(_number("connect-timeout", given.get("connect-timeout"), 5, 3600)),
        cleartext=_is_on(given.get("cleartext-plugin")),
        sources=tuple(files),
    )
    if _by_tcp(given.get("protocol"), host):
        return msgspec.structs.replace(login, host=host or "localhost")
    return msgspec.structs.replace(login, socket=socket, host=None)


def _by_tcp(protocol: str | None, host: str | None) -> bool:
    """As the clients do: connect to a host other than localhost by TCP."""
    if protocol:
        word = protocol.lower()
        if word in ("tcp", "socket"):
            return word == "tcp"
        if word != "default":
            raise UsageError(f"protocol={protocol} of the options is neither tcp nor socket")
    return host not in (None, "localhost")


def _own_socket(login: Login, server: Server) -> Login:
    """Connect to a socket or port on which the server listens."""
    for path in server.sockets:
        # The X Protocol has its own socket.
        if "mysqlx" in os.path.basename(path):
            continue
        try:
            seen = rootpath.inside(server.main.pid, path)
            is_same = _is_same_file(path, seen)
        except asking.SilentDiskError:  # the login says so, and gets no password
            seen, is_same = f"/proc/{server.main.pid}/root{path}", False
        if is_same:
            return msgspec.structs.replace(login, socket=path)
        return msgspec.structs.replace(login, socket=seen, socket_shown=path)
    if server.ports and login.socket is None:
        return msgspec.structs.replace(login, host="127.0.0.1", port=server.ports[0])
    return login


def _is_same_file(path: str, other: str) -> bool:
    try:
        return asking.is_same(path, other)
    except asking.SilentDiskError:
        raise
    except OSError:
        return False


def _is_there(path: str) -> bool:
    try:
        return asking.exists(path)
    except asking.SilentDiskError:
        return True  # the login says so


def _number(name: str, text: str | None, default: int, limit: int) -> int:
    if not text:
        return default
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits) <= limit):
        raise UsageError(f"{name}={text} of the options is no number up to {limit}")
    return int(digits) or default


def _is_on(text: str | None) -> bool:
    return text is not None and text.lower() in _ON


def _tls(given: Mapping[str, str]) -> Tls:
    """Read the options of MySQL (ssl-mode) and MariaDB (ssl, ssl-verify-server-cert)."""
    files = {
        name: given.get(f"ssl-{name}") or None
        for name in ("ca", "capath", "cert", "key", "cipher", "crl")
    }
    mode = "preferred"
    said = given.get("ssl-mode")
    if said:
        mode = _MODES.get(said.lower().replace("-", "_"), "")
        if not mode:
            raise UsageError(f"ssl-mode={said} of the options is none of {', '.join(_MODES)}")
    elif "ssl" in given or any(files.values()):
        mode = "required" if _is_on(given.get("ssl", "1")) else "disabled"
        if mode == "required" and (files["ca"] or files["capath"]):
            mode = "verify-ca"
    if _is_on(given.get("ssl-verify-server-cert")) and mode != "disabled":
        mode = "verify-identity"
    return Tls(mode=mode, **files)
