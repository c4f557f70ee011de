# SPDX-License-Identifier: Apache-2.0
"""What ``watch`` and ``cron`` run with: the command line, a configuration file, the defaults, in
this order. docs/config.md has the keys of the file.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from stallscope.base.errors import StallscopeError, UsageError
from stallscope.base.text import one_line
from stallscope.collectors import pins
from stallscope.collectors.processes import Selector
from stallscope.collectors.triggers import triggerfile
from stallscope.collectors.triggers.settings import AgentSettings
from stallscope.commands import _agentoptions, _notify, _options, _rings, _sql
from stallscope.commands._configreader import Account, ConfigError, ConfigReader, Tables
from stallscope.notify import destinations

__all__ = [
    "Configuration",
    "Examined",
    "ServerSettings",
    "changed_keys",
    "examine",
    "load",
    "read",
    "shown",
]

_MASK = "***"
COMMANDS = frozenset(
    {
        *("after-collect", "after-stalk", "before-collect", "before-stalk", "command"),
        *("notify-command", "run"),
    }
)
"""Keys of programs that run: their arguments can be secrets."""
_OF_USERS = frozenset({"headers", "labels"})
"""Tables whose keys anybody chooses."""
_SHOWN = frozenset(
    {
        *("about", "api-key-file", "backend", "ca-file", "clear", "content-type", "datadir"),
        *("defaults-extra-file", "defaults-file", "defaults-group-suffix", "dest"),
        *("disk-bytes-free", "host", "keep", "kind", "labels", "least-severity", "listen"),
        *("log-format", "log-level", "login-path", "name", "pack-dir", "password-file"),
        *(
            "prometheus",
            "retention-size",
            "ring",
            "routing-key-file",
            "secret-file",
            "sender",
            "server-user",
        ),
        *("signatures", "socket", "spool-size", "tags", "target", "teams", "template", "threshold"),
        *("tls", "to", "token-file", "triggers", "uncache", "url-file", "user", "variable", "wait"),
        "webhook-file",
        "when",
    }
)
"""Keys whose texts are shown; of all others, as of one that is added later, none is."""
RELOADED = frozenset({"json", "notify_command", "webhook", "webhook_file", "triggers"})
"""Options, besides those of SQL, that SIGHUP changes in a running agent."""


class ServerSettings(msgspec.Struct, frozen=True):
    """All that is set for one server."""

    name: str
    """For the log, and for names of files."""
    options: argparse.Namespace
    """All options of ``watch`` and ``cron``, with their defaults resolved."""
    agent: AgentSettings
    account: Account = Account()

    @property
    def selector(self) -> Selector:
        """Return what the options say about the server in addition to its name."""
        options = self.options
        return Selector(socket=options.socket, port=options.port, datadir=options.datadir)

    @property
    def users(self) -> frozenset[int]:
        """Return the user that the server runs as, where it is said. Raises: UsageError."""
        said = self.options.server_user
        return frozenset() if said is None else frozenset({pins.user_id(said)})

    @property
    def words(self) -> str:
        """Return what the options say about the server, for comparison."""
        return f"{self.name}: {self.options.pid or ''} {self.selector}".strip()


class Configuration(msgspec.Struct, frozen=True):
    """The servers of one agent process; at least one."""

    servers: tuple[ServerSettings, ...]
    from_file: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def options(self) -> argparse.Namespace:
        """Return the options of the whole process (the store, the log, the output)."""
        return self.servers[0].options


class Examined(msgspec.Struct, frozen=True):
    """Everything that is wrong with a file, and its settings where nothing is."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    configuration: Configuration | None = None


def load(args: argparse.Namespace) -> Configuration:
    """Return the configuration of a command line. Raises: UsageError, with file and line."""
    given = {key: value for key, value in vars(args).items() if key != "option_defaults"}
    path: Path | None = given.get("config")
    if path is None:
        options = argparse.Namespace(**{**_agentoptions.defaults(), **given})
        _check(options)
        one = ServerSettings(_name_of(options), options, _triggers(options))
        return Configuration((one,), warnings=_notify.exposed(given.get("webhook")))
    found = read(path, given)
    warnings = (*found.warnings, *_notify.exposed(given.get("webhook")))
    return msgspec.structs.replace(found, warnings=warnings)


def examine(path: Path, *, tries: bool = True) -> Examined:
    """Check a file. Variables and credentials of the agent's own environment may be missing.
    ``tries``: destinations are made and tried, too."""
    return _examine(path, {}, for_now=False, tries=tries)


def read(path: Path, given: Mapping[str, Any] | None = None) -> Configuration:
    """Return the configuration of a file, and of the options that were ``given``.

    Raises: ConfigError.
    """
    examined = _examine(path, given or {}, for_now=True)
    if examined.configuration is None:
        first, *more = examined.errors
        others = f"; and {len(more)} more: stallscope config check {path}" if more else ""
        raise ConfigError(f"{first}{others}")
    return examined.configuration


def changed_keys(old: Configuration, new: Configuration) -> list[str]:
    """Return what differs, of that which cannot change while the agent runs."""
    if [server.name for server in old.servers] != [server.name for server in new.servers]:
        return ["server"]
    of_sql = {action.dest for action in _agentoptions.keys()["sql"].values()}
    found: dict[str, None] = {}
    for before, after in zip(old.servers, new.servers, strict=True):
        was, now = vars(before.options), vars(after.options)
        for name in was.keys() - of_sql - RELOADED:
            if was[name] != now.get(name):
                key = _agentoptions.TARGET if name == "pid" else name.replace("_", "-")
                found.setdefault(key)
    return sorted(found)


def _examine(
    path: Path, given: Mapping[str, Any], *, for_now: bool, tries: bool = False
) -> Examined:
    try:
        reader = ConfigReader(path, _agentoptions.keys(), for_now=for_now)
    except ConfigError as error:
        return Examined((str(error),), ())
    tables = reader.tables
    errors, warnings = reader.errors, reader.warnings
    base = triggerfile.defaults()
    triggers = given.get("triggers") or tables.agent.get("triggers")
    if triggers is not None:
        try:
            base = triggerfile.load(triggers)
        except StallscopeError as error:
            errors.append(str(error))
    errors += map(str, triggerfile.problems(path, reader.rest, base))
    servers = []
    for number, server in enumerate(tables.servers):
        options = _merged(tables, number, given)
        try:
            _check(options)
        except StallscopeError as error:
            errors.append(reader.located(str(error)))
        if options.pid is None and not any((options.socket, options.port, options.datadir)):
            if options.ring is None:
                errors.append(reader.missing_target(number))
        elif len(tables.servers) > 1 and options.ring is not None and not options.ring.is_dir():
            errors.append(reader.located("--ring FILE names one server's ring: name its folder"))
        servers.append((server.name, options, server.account))
    if len(servers) > 1 and any(given.get(key) for key in ("pid", "socket", "port", "datadir")):
        errors.append(f"{path} names several servers: do not give one on the command line")
    errors = sorted(dict.fromkeys(errors), key=_line)  # an option of all servers is wrong once
    warnings.sort(key=_line)
    if errors:
        return Examined(tuple(errors), tuple(warnings))
    agent = triggerfile.of_tables(path, reader.rest, base)
    if tries:  # the agent finds the same when it makes them
        used = _notify.settings_of(servers[0][1], agent)
        errors = [f"{path}: {why}" for one in used if (why := destinations.problem(one))]
        if errors:
            return Examined(tuple(errors), tuple(warnings))
    found = tuple(
        ServerSettings(name, options, agent, account) for name, options, account in servers
    )
    return Examined((), tuple(warnings), Configuration(found, True, tuple(warnings)))


def _line(message: str) -> int:
    """Return the line of ``FILE:LINE: …``; 0: it has none."""
    match = re.match(r"[^\n]*?:(\d+): ", message)
    return int(match.group(1)) if match else 0


def _merged(tables: Tables, number: int, given: Mapping[str, Any]) -> argparse.Namespace:
    """Return a server's options: the command line wins over the file."""
    server = tables.servers[number]
    sql = dict(server.sql)
    of_sql = {action.dest for action in _agentoptions.keys()["sql"].values()}
    if given.get("no_sql"):
        sql = {}
    elif of_sql & given.keys():
        sql.pop("no_sql", None)
    return argparse.Namespace(
        **{**_agentoptions.defaults(), **tables.agent, **sql, **server.options, **given}
    )


def _check(options: argparse.Namespace) -> None:
    """Raise what is wrong with options that the parser accepts."""
    _sql.asked_for(options)
    _rings.backend(options)
    _options.pack_dirs(options)
    if options.server_user is not None:
        pins.user_id(options.server_user)
    _notify.settings_of(options, AgentSettings())


def _triggers(options: argparse.Namespace) -> AgentSettings:
    if options.triggers is None:
        return triggerfile.defaults()
    return triggerfile.load(options.triggers)


def _name_of(options: argparse.Namespace) -> str:
    for word in (options.pid, options.socket, options.port, options.datadir, options.ring):
        if word is not None:
            return re.sub(r"[^\w.-]", "_", one_line(str(word), 64)).strip("_.-") or "server"
    raise UsageError(
        "which server? give -p PID or -p NAME, or --socket, --port, --datadir, or --config FILE"
    )


def shown(configuration: Configuration) -> dict[str, Any]:
    """Return all settings as tables of a configuration file; secrets are ``***``.

    Settings that are unset, and have no default, are left out.
    """
    keys = _agentoptions.keys()
    agent = msgspec.to_builtins(configuration.servers[0].agent)
    triggers, commands = agent.pop("triggers"), agent.pop("commands")
    destinations = agent.pop("destinations")
    sizes = {key: f"{agent.pop(key)}B" for key in ("retention-size", "disk-bytes-free")}
    found: dict[str, Any] = {"defaults": False, **agent, **sizes}
    found["agent"] = _of_table(configuration.options, keys["agent"])
    found["server"] = [
        {
            "name": server.name,
            **_of_table(server.options, keys["server"]),
            "sql": {
                **({} if server.account.user is None else {"user": server.account.user}),
                **({} if server.account.password is None else {"password": _MASK}),
                **_of_table(server.options, keys["sql"]),
            },
        }
        for server in configuration.servers
    ]
    found["destination"] = destinations
    found["command"] = commands
    found["trigger"] = triggers
    masked: dict[str, Any] = _masked(found)
    return masked


def _of_table(options: argparse.Namespace, keys: Mapping[str, argparse.Action]) -> dict[str, Any]:
    values = {key: getattr(options, action.dest) for key, action in keys.items()}
    return {
        key: [str(item) for item in value] if isinstance(value, list) else value
        for key, value in values.items()
        if value is not None
    }


def _masked(value: Any, key: str = "") -> Any:
    """Return a value without what may be a secret: which texts are shown is listed."""
    if isinstance(value, dict):
        inner = key if key in _OF_USERS else None
        return {k: _masked(v, inner or k) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        if key in COMMANDS and not any(isinstance(word, dict) for word in value):
            return [str(word) if index == 0 else _MASK for index, word in enumerate(value)]
        return [_masked(item, key) for item in value]
    if isinstance(value, bool | int | float):
        return value
    text = str(value)
    if not text or key in _SHOWN:
        return text
    if key in COMMANDS:
        program, _, arguments = text.partition(" ")
        return f"{program} {_MASK}" if arguments else program
    scheme = re.match(r"[a-z][a-z0-9+]*://", text)
    return f"{scheme[0] if scheme else ''}{_MASK}"
