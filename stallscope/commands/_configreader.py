# SPDX-License-Identifier: Apache-2.0
"""Read a configuration file: its own tables are checked by the options that have their names; all
mistakes are found, each with its line. What remains is the trigger file's.
"""

from __future__ import annotations

import argparse
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stallscope.base import secretfiles
from stallscope.base.errors import UsageError
from stallscope.base.text import one_line
from stallscope.base.tomlfile import Reader, nearest
from stallscope.collectors.triggers import triggerfile
from stallscope.fleet.settings import has_password
from stallscope.notify.settings import SECRETS

if TYPE_CHECKING:
    from stallscope.collectors.sql.servers import ServerLogin

__all__ = [
    "ACCOUNT_KEYS",
    "SECRET_KEY",
    "TABLES",
    "Account",
    "ConfigError",
    "ConfigReader",
    "ServerTable",
    "Tables",
]

TABLES = ("server", "sql", "agent")
ACCOUNT_KEYS = ("user", "password", "password-file")
"""Keys of ``[sql]`` that are no options: all users of a host can read a command line."""
SECRET_KEY = re.compile(
    rf"{'|'.join(map(re.escape, (*SECRETS, 'webhook')))}|.*authorization|.*(api|auth).?key", re.I
)
"""Keys whose values are not shown; also those of headers."""

MAX_SERVERS = 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_VARIABLE = re.compile(r"\$(\$?)\{([^}]*)\}")
_CREDENTIAL = "credential:"
_NOT_HERE = {
    "url": "https://unknown.invalid/",
    "webhook": "https://unknown.invalid/",
    "to": "unknown@unknown.invalid",
    "sender": "unknown@unknown.invalid",
    "run": "/unknown",
}
"""Values that pass the checks, in place of those that only the agent's environment has."""
_NOT_HERE_SHIP = {"url": "file:///unknown", "spool-size": "1M"}


class ConfigError(UsageError):
    """A configuration file is wrong: file, line, what is wrong and what to do."""


class Account(msgspec.Struct, frozen=True):
    """A SQL account of the configuration; None: that of the option files."""

    user: str | None = None
    password: str | None = None

    def applied(self, login: ServerLogin) -> ServerLogin:
        """Return a login with this account in place of that of the option files."""
        changes = {"user": self.user, "password": self.password}
        given = {key: value for key, value in changes.items() if value is not None}
        return msgspec.structs.replace(login, **given)

    def __repr__(self) -> str:
        """Without the password: this text can get into logs."""
        return f"Account(user={self.user!r})"


class ServerTable(msgspec.Struct, frozen=True):
    """One server: options by their names in the parser's namespace."""

    name: str
    options: Mapping[str, Any]
    sql: Mapping[str, Any]
    account: Account


class Tables(msgspec.Struct, frozen=True):
    """The tables of a configuration that the trigger file does not have."""

    servers: tuple[ServerTable, ...]
    agent: Mapping[str, Any]


class _NotHereError(Exception):
    """A variable or credential that only the agent's own environment has."""


_reader = Reader("configuration", ConfigError, {"server": "name"})


class ConfigReader:
    """A file that was read. ``errors`` and ``warnings`` are complete sentences with their line.

    ``keys``: options by table and key. ``for_now``: variables and credentials must exist; otherwise
    a missing one is a warning. Raises: ConfigError where the file cannot be read at all.
    """

    def __init__(
        self, path: Path, keys: Mapping[str, Mapping[str, argparse.Action]], *, for_now: bool
    ) -> None:
        self._path = path
        self._keys = keys
        self._for_now = for_now
        self._secrets = False
        """Whether a secret is written in the file itself."""
        self.errors: list[str] = []
        self.warnings: list[str] = []
        data = _reader.load(path)
        self._several = isinstance(data.get("server"), list)
        self.rest = {key: value for key, value in data.items() if key not in TABLES}
        """The tables of the trigger file."""
        for key in [key for key in self.rest if key not in triggerfile.KEYS]:
            self._unknown([], key, (*triggerfile.KEYS, *TABLES))
            del self.rest[key]
        for key in ("destination", "notify", "ship"):
            if key in self.rest:
                self.rest[key] = self._resolved([key], self.rest[key])
        self.tables = self._tables(data)
        self._check_mode()

    def located(self, message: str) -> str:
        """Return a message with the line of the option that it names."""
        match = re.search(r"--([a-z-]+)", message)
        place = [match.group(1)] if match is not None else []
        return str(_reader.mistake(self._path, place, message))

    def missing_target(self, number: int) -> str:
        """Return the message for a server that nothing identifies."""
        place: list[str | int] = ["server", number] if self._several else ["server"]
        return str(
            _reader.mistake(
                self._path,
                place,
                "server: which one? give target (the name of a program, or a pid), socket, port or"
                " datadir",
            )
        )

    def _tables(self, data: Mapping[str, Any]) -> Tables:
        sql = self._of_kind(data, [], "sql", dict)
        agent = self._options(["agent"], self._of_kind(data, [], "agent", dict), "agent")
        if self._several:
            servers = self._of_kind(data, [], "server", list)
        else:
            servers = [self._of_kind(data, [], "server", dict)]
        if not servers or len(servers) > MAX_SERVERS:
            self._error(["server"], f"server: {len(servers)} servers, not 1 to {MAX_SERVERS}")
        found: list[ServerTable] = []
        for number, table in enumerate(servers[:MAX_SERVERS]):
            place: list[str | int] = ["server", number] if self._several else ["server"]
            if isinstance(table, dict):
                found.append(self._server(place, table, sql))
            else:
                self._error(place, "server: expected tables: write [[server]]")
        self._check_names(found)
        return Tables(tuple(found), agent)

    def _server(
        self, place: Sequence[str | int], table: dict[str, Any], of_all: dict[str, Any]
    ) -> ServerTable:
        own = self._of_kind(table, place, "sql", dict)
        sql = {**of_all, **own}
        if "password" in own or "password-file" in own:  # either replaces both
            sql = {k: v for k, v in sql.items() if not k.startswith("password") or k in own}
        sql_place: Sequence[str | int] = [*place, "sql"] if own else ["sql"]
        account = self._account(sql_place, sql)
        rest = {key: value for key, value in sql.items() if key not in ACCOUNT_KEYS}
        options = {k: v for k, v in table.items() if k not in ("name", "sql")}
        default = self._path.stem if not self._several else ""
        name = table.get("name", default)
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            what = "'name' is missing" if name == "" else f"{name!r} is no name"
            why = "a name has letters, digits, -, _ and ., at most 64"
            self._error([*place, "name"], f"server: {what}: {why}")
            name = f"{len(place)}"
        return ServerTable(
            name,
            self._options(place, options, "server", more=("name", "sql")),
            self._options(sql_place, rest, "sql", more=ACCOUNT_KEYS),
            account,
        )

    def _check_names(self, servers: Sequence[ServerTable]) -> None:
        names = [server.name for server in servers]
        for number, name in enumerate(names):
            if name in names[:number]:
                self._error(
                    ["server", number, "name"],
                    f"server {name!r} is there twice: rename one of them",
                )

    def _account(self, place: Sequence[str | int], sql: Mapping[str, Any]) -> Account:
        found: dict[str, str] = {}
        for key in ACCOUNT_KEYS:
            if key not in sql:
                continue
            value = self._resolved([*place, key], sql[key], key)
            if isinstance(value, str):
                found[key] = value
            else:
                self._error([*place, key], f"sql.{key}: must be a string")
        if len(found.keys() & {"password", "password-file"}) == 2:
            self._error([*place, "password"], "sql: give either 'password' or 'password-file'")
        password = found.get("password")
        if "password-file" in found:
            read = lambda: secretfiles.read(Path(found["password-file"]))  # noqa: E731
            password = self._try([*place, "password-file"], "sql.password-file", read)
        return Account(found.get("user"), password)

    def _options(
        self,
        place: Sequence[str | int],
        table: Mapping[str, Any],
        kind: str,
        more: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return the values of a table by their names in the parser's namespace."""
        keys = self._keys[kind]
        found: dict[str, Any] = {}
        for key, value in table.items():
            action = keys.get(key)
            if action is None:
                self._unknown(place, key, (*keys, *more))
                continue
            resolved = self._resolved([*place, key], value, key)
            try:
                found[action.dest] = _value(action, resolved)
            except (ValueError, TypeError, argparse.ArgumentTypeError) as error:
                self._error([*place, key], f"{kind}.{key}: {error}")
        return found

    def _of_kind(
        self, table: Mapping[str, Any], place: Sequence[str | int], key: str, kind: type[Any]
    ) -> Any:
        value = table.get(key, kind())
        if isinstance(value, kind):
            return value
        wanted = f"[{key}]" if kind is dict else f"[[{key}]]"
        self._error([*place, key], f"{key}: write it as a table, {wanted}")
        return kind()

    def _resolved(self, place: Sequence[str | int], value: Any, key: str = "") -> Any:
        """Return a value with its variables and credentials in place of their names."""
        if isinstance(value, dict):
            return {k: self._resolved([*place, k], v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [
                self._resolved([*place, number] if isinstance(item, dict) else place, item, key)
                for number, item in enumerate(value)
            ]
        if not isinstance(value, str):
            return value
        where = ".".join(part for part in place if isinstance(part, str))
        resolved = self._try(place, where, lambda: _resolve(value))
        of_ship = place[:1] == ["ship"]
        if resolved == value and SECRET_KEY.fullmatch(key):
            self._secrets |= not of_ship or key != "url" or has_password(value)
        if resolved is None:
            return (_NOT_HERE_SHIP if of_ship else _NOT_HERE).get(key, "unknown")
        return resolved

    def _try(
        self, place: Sequence[str | int], where: str, resolve: Callable[[], str]
    ) -> str | None:
        try:
            return resolve()
        except _NotHereError as error:
            message = f"{where}: {error}"
            if self._for_now:
                self._error(place, message)
            else:
                found = str(_reader.mistake(self._path, place, message))
                if found not in self.warnings:
                    self.warnings.append(found)
        except UsageError as error:
            self._error(place, f"{where}: {error}")
        return None

    def _check_mode(self) -> None:
        try:
            mode = self._path.stat().st_mode
        except OSError:
            return
        if self._secrets and mode & stat.S_IROTH:
            self.warnings.append(
                f"{self._path}: everybody can read it, and it has a password or another secret:"
                " chmod 640, or use password-file, ${VARIABLE} or credential:NAME"
            )

    def _unknown(self, place: Sequence[str | int], key: str, known: Sequence[str]) -> None:
        table = ".".join(str(part) for part in place if isinstance(part, str))
        meant = nearest(key, known)
        hint = f"did you mean {meant!r}?" if meant else "docs/config.md lists the keys"
        where = f"{table}: " if table else ""
        self._error([*place, key], f"{where}unknown key {one_line(key, 80)!r}: {hint}")

    def _error(self, place: Sequence[str | int], message: str) -> None:
        text = str(_reader.mistake(self._path, place, message))
        if text not in self.errors:
            self.errors.append(text)


def _value(action: argparse.Action, value: Any) -> Any:
    """Return what the option's own type makes of a value. Raises: ValueError, TypeError,
    ArgumentTypeError."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return value
    if isinstance(action, argparse._AppendAction):
        return [_one(action, item) for item in (value if isinstance(value, list) else [value])]
    return _one(action, value)


def _one(action: argparse.Action, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{one_line(str(value), 40)!r} is neither a number nor a string")
    text = str(value)
    if "\0" in text:
        raise ValueError("has a null character in it")
    found = action.type(text) if callable(action.type) else text
    if action.choices is not None and found not in action.choices:
        raise ValueError(f"{text!r} is none of {', '.join(map(str, action.choices))}")
    return found


def _resolve(text: str) -> str:
    if text.startswith(_CREDENTIAL):
        return _credential(text.removeprefix(_CREDENTIAL))
    return _VARIABLE.sub(_variable, text)


def _variable(match: re.Match[str]) -> str:
    escaped, name = match.groups()
    if escaped:
        return f"${{{name}}}"
    value = os.environ.get(name) if name and "\0" not in name else None
    if value is None:
        raise _NotHereError(f"the environment has no variable {one_line(name, 80)!r}")
    return value


def _credential(name: str) -> str:
    """Return what systemd's LoadCredential= gave to the service."""
    if not name or "/" in name or name in (".", "..") or "\0" in name:
        raise ConfigError(f"{one_line(name, 80)!r} is not the name of a credential")
    folder = secretfiles.credentials()
    if folder is None:
        raise _NotHereError(
            f"{_CREDENTIAL}{name} is for a systemd service with LoadCredential={name}:…"
        )
    return secretfiles.read(folder / name)
