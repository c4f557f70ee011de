# SPDX-License-Identifier: Apache-2.0
"""Read the triggers file: values, names and expressions are checked before anything runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast, get_args

import msgspec

from stallscope.base import quantities, trust
from stallscope.base.errors import UsageError
from stallscope.base.tomlfile import Reader, nearest
from stallscope.collectors.triggers import expression
from stallscope.collectors.triggers.expression import ExpressionError, Name, Number
from stallscope.collectors.triggers.settings import (
    AgentSettings,
    BurstSettings,
    CommandSettings,
    CommonSettings,
    HookSettings,
    NotifySettings,
    StorageSettings,
    TriggerSettings,
)
from stallscope.fleet import settings as shipping
from stallscope.fleet.settings import ShipSettings
from stallscope.model.storagecache import parse_keep
from stallscope.model.waitkinds import GROUPS, KINDS
from stallscope.notify import settings as destinations
from stallscope.notify.settings import CommandDestination, Destination
from stallscope.server import innodbnumbers

__all__ = ["DEFAULTS", "KEYS", "TriggerFileError", "defaults", "load", "of_tables", "problems"]

DEFAULTS = Path(__file__).with_name("defaults.toml")

MAX_TRIGGERS = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MEGABYTE = 1 << 20

# Words of pt-stalk that have another form here.
_INSTEAD = {
    "function": "write it as 'variable'; docs/triggers.md has a table",
    "match": "write variable = 'state(\"TEXT\")'",
    "iterations": "use 'captures-an-hour'",
    "collect-gdb": "stacks are always taken, without stopping the server",
    "notify-by-email": "write a command into [notify]",
    "dest": "give it as --dest",
    "below": 'write when = "below"',
    "above": 'write when = "above"',
}

# Each number has one name, here and in `stallscope status`.
_RENAMED = {
    "innodb.history_list": "innodb.history_list_length",
    "innodb.queries_in_queue": "innodb.queries_queued",
}

Size = int | str


class TriggerFileError(UsageError):
    """A triggers file is wrong: file, line, what is wrong and what to do."""


class _Written(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab", omit_defaults=True
):
    """The file as it is written; missing keys are unset."""

    defaults: bool = True
    retention_size: Size | msgspec.UnsetType = msgspec.UNSET
    disk_bytes_free: Size | msgspec.UnsetType = msgspec.UNSET
    burst: BurstSettings | msgspec.UnsetType = msgspec.UNSET
    plugin: HookSettings | msgspec.UnsetType = msgspec.UNSET
    notify: NotifySettings | msgspec.UnsetType = msgspec.UNSET
    storage: StorageSettings | msgspec.UnsetType = msgspec.UNSET
    ship: ShipSettings | msgspec.UnsetType = msgspec.UNSET
    command: list[CommandSettings] = []
    destination: list[Destination] = []
    trigger: list[TriggerSettings] = []


_File = cast(
    type[_Written],
    msgspec.defstruct(
        "_File",
        [
            (field.name, field.type | msgspec.UnsetType, msgspec.UNSET)
            for field in msgspec.structs.fields(CommonSettings)
        ],
        bases=(_Written,),
        frozen=True,
        forbid_unknown_fields=True,
        rename="kebab",
    ),
)
"""Also the settings of CommonSettings, each of them optional."""

KEYS = _File.__struct_encode_fields__
"""The keys and tables at the top of the file."""
_TABLES: Mapping[str, Sequence[str]] = {
    "": KEYS,
    "burst": BurstSettings.__struct_encode_fields__,
    "plugin": HookSettings.__struct_encode_fields__,
    "notify": NotifySettings.__struct_encode_fields__,
    "storage": StorageSettings.__struct_encode_fields__,
    "ship": ShipSettings.__struct_encode_fields__,
    "command": CommandSettings.__struct_encode_fields__,
    "trigger": TriggerSettings.__struct_encode_fields__,
    "destination": sorted(
        {key for kind in get_args(Destination) for key in kind.__struct_encode_fields__}
    ),
}

_WHOLE = ("burst", "plugin", "notify", "storage", "ship")
"""Tables that replace those of the defaults as a whole."""

_reader = Reader(
    "triggers file", TriggerFileError, {"trigger": "name", "command": "name", "destination": "name"}
)


def defaults() -> AgentSettings:
    """Return the default settings of the package."""
    return _resolved(DEFAULTS, AgentSettings())


def load(path: Path) -> AgentSettings:
    """Read a file. Missing keys are as in the defaults; default triggers of other names are kept.

    Raises: TriggerFileError, ``file:line: what, what to do``.
    """
    return _resolved(path, defaults())


def of_tables(path: Path, tables: dict[str, Any], base: AgentSettings) -> AgentSettings:
    """Return the settings of a file's tables, on top of ``base``. Raises: TriggerFileError."""
    try:
        written = _reader.convert(path, tables, _File)
    except TriggerFileError as error:
        raise _with_hint(error) from error
    for mistake in _Checker(path, written, base).check():
        raise mistake
    return _merged(path, written, base)


def problems(path: Path, tables: dict[str, Any], base: AgentSettings) -> list[TriggerFileError]:
    """Return everything that is wrong with a file's tables."""
    survey = _reader.survey(path, tables, _File)
    found = [_with_hint(TriggerFileError(str(error))) for error in survey.mistakes]
    if survey.value is not None:
        checker = _Checker(path, survey.value, base, survey.numbers)
        found += checker.check(skip=lambda table, number: (table, number) in survey.wrong)
        for key in ("retention-size", "disk-bytes-free"):
            value = getattr(survey.value, key.replace("-", "_"))
            try:
                if not isinstance(value, msgspec.UnsetType):
                    _bytes(path, key, value)
            except TriggerFileError as error:
                found.append(error)
    return found


def _resolved(path: Path, base: AgentSettings) -> AgentSettings:
    return of_tables(path, _reader.load(path), base)


def _merged(path: Path, written: _Written, base: AgentSettings) -> AgentSettings:
    changes: dict[str, object] = {
        name: value
        for name in (*CommonSettings.__struct_fields__, *_WHOLE)
        if (value := getattr(written, name)) is not msgspec.UNSET
    }
    if not isinstance(written.retention_size, msgspec.UnsetType):
        changes["retention_size"] = _bytes(path, "retention-size", written.retention_size)
    if not isinstance(written.disk_bytes_free, msgspec.UnsetType):
        changes["disk_bytes_free"] = _bytes(path, "disk-bytes-free", written.disk_bytes_free)
    triggers = {t.name: t for t in base.triggers} if written.defaults else {}
    triggers |= {trigger.name: trigger for trigger in written.trigger}
    changes["triggers"] = tuple(t for t in triggers.values() if t.enabled)
    commands = {command.name: command for command in (*base.commands, *written.command)}
    changes["commands"] = tuple(commands.values())
    changes["destinations"] = (*base.destinations, *written.destination)
    return msgspec.structs.replace(base, **changes)


def _with_hint(error: TriggerFileError) -> TriggerFileError:
    """Return what to write instead of a word that pt-stalk has."""
    text = str(error)
    match = re.search(r"unknown field `([^`]*)`", text)
    if match is None:
        return error
    word = match.group(1)
    table = re.search(r": (\w+)(?: '[^']*'|\[\d+\])?: Object contains", text)
    meant = nearest(word, _TABLES.get(table.group(1) if table else "", ()))
    otherwise = f"did you mean {meant!r}?" if meant else "docs/triggers.md lists the keys"
    return TriggerFileError(f"{text}: {_INSTEAD.get(word, otherwise)}")


def _bytes(path: Path, key: str, value: Size) -> int:
    """Return bytes of ``100M``. A bare number is bytes; for ``retention-size`` MB, as pt-stalk."""
    if isinstance(value, int):
        if value < 0:
            raise _reader.mistake(path, [key], f"{key}: less than 0, write a size as 500M")
        return value * _MEGABYTE if key == "retention-size" else value
    try:
        return quantities.size(value)
    except ValueError:
        raise _reader.mistake(
            path, [key], f"{key}: {value!r} is not a size, write a number with k, M, G or T: 500M"
        ) from None


class _Checker:
    """Check what types cannot express: names, expressions, and contradicting values."""

    def __init__(
        self,
        path: Path,
        written: _Written,
        base: AgentSettings,
        numbers: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """``numbers``: the places in the file of the entries of each list."""
        self._path = path
        self._written = written
        self._built_in = frozenset(trigger.name for trigger in base.triggers)
        of_base = [command.name for command in base.commands]
        self._commands = frozenset([*of_base, *(command.name for command in written.command)])
        self._numbers = numbers or {}
        self._found: list[TriggerFileError] = []

    def check(
        self, skip: Callable[[str, int], bool] = lambda table, number: False
    ) -> list[TriggerFileError]:
        """Return what is wrong. ``skip``: entries of which something else is wrong."""
        triggers = self._numbered("trigger", self._written.trigger)
        commands = self._numbered("command", self._written.command)
        if len(triggers) > MAX_TRIGGERS:
            self._try(self._fail, ["trigger", MAX_TRIGGERS], f"more than {MAX_TRIGGERS} triggers")
            return self._found
        self._names("trigger", [(number, trigger.name) for number, trigger in triggers])
        self._names("command", [(number, command.name) for number, command in commands])
        for number, command in commands:
            what = f"command {command.name!r}"
            self._try(self._program, ["command", number, "run"], what, command.run)
        self._hooks()
        self._storage()
        self._ship()
        self._destinations(skip)
        for number, trigger in triggers:
            if skip("trigger", number):
                continue
            if trigger.enabled or trigger.variable or trigger.wait:
                for check in _Trigger(self, number, trigger).checks():
                    self._try(check)
            elif self._written.defaults and trigger.name not in self._built_in:
                self._try(
                    self._fail,
                    ["trigger", number, "name"],
                    f"trigger {trigger.name!r}: there is no such trigger to disable;"
                    " `stallscope triggers` lists them",
                )
        return self._found

    def _numbered(self, table: str, entries: Sequence[Any]) -> list[tuple[int, Any]]:
        return list(zip(self._numbers.get(table, range(len(entries))), entries, strict=True))

    def _try(self, check: Callable[..., object], *args: object) -> None:
        try:
            check(*args)
        except TriggerFileError as error:
            self._found.append(error)

    def _names(self, what: str, found: Sequence[tuple[int, str]]) -> None:
        seen: set[str] = set()
        for number, name in found:
            place: list[str | int] = [what, number, "name"]
            if _NAME.fullmatch(name) is None:
                why = f"{what} {name!r}: a name has letters, digits, - and _, at most 64"
                self._try(self._fail, place, why)
            if name in seen:
                why = f"{what} {name!r} is defined twice: rename one of them"
                self._try(self._fail, place, why)
            seen.add(name)

    def _hooks(self) -> None:
        hooks = self._written.plugin
        if isinstance(hooks, HookSettings):
            for key in ("before_stalk", "before_collect", "after_collect", "after_stalk"):
                key_written = key.replace("_", "-")
                place = ["plugin", key_written]
                self._try(self._program, place, f"plugin.{key_written}", getattr(hooks, key))
        notify = self._written.notify
        if isinstance(notify, NotifySettings):
            self._try(self._program, ["notify", "command"], "notify.command", notify.command)
            why = None if notify.webhook is None else destinations.check_url(notify.webhook)
            if why is not None:
                self._try(self._fail, ["notify", "webhook"], f"notify.webhook: {why}")

    def _ship(self) -> None:
        ship = self._written.ship
        if isinstance(ship, ShipSettings):
            wrong = shipping.check(ship)
            if wrong is not None:
                key, why = wrong
                self._try(self._fail, ["ship", key], f"ship.{key}: {why}")

    def _storage(self) -> None:
        storage = self._written.storage
        if not isinstance(storage, StorageSettings):
            return
        if storage.keep:
            try:
                parse_keep(storage.keep)
            except ValueError as error:
                self._try(self._fail, ["storage", "keep"], f"storage.keep: {error}")
        if storage.allow_redo and "redo" not in storage.uncache:
            why = 'storage.allow-redo: it is for "redo" in uncache'
            self._try(self._fail, ["storage", "allow-redo"], why)

    def _destinations(self, skip: Callable[[str, int], bool]) -> None:
        names: set[str] = set()
        for number, destination in self._numbered("destination", self._written.destination):
            name = destinations.named(destination)
            found = None if skip("destination", number) else destinations.check(destination)
            if found is not None:
                key, why = found
                place = ["destination", number, key]
                self._try(self._fail, place, f"destination {name!r}: {key}: {why}")
            elif isinstance(destination, CommandDestination):
                place = ["destination", number, "run"]
                self._try(self._program, place, f"destination {name!r}", destination.run)
            if name in names:
                self._try(
                    self._fail,
                    ["destination", number, "name"],
                    f"destination {name!r} is defined twice: give each a 'name'",
                )
            names.add(name)

    def _program(self, place: Sequence[str | int], what: str, run: Sequence[str]) -> None:
        if run and not run[0].startswith("/"):
            self._fail(
                place,
                f"{what}: {run[0]!r} is not an absolute path; there is no shell to search"
                " for the program",
            )
        why = trust.command_reason(run) if run else None
        if why is not None:
            self._fail(place, f"{what}: {why}")

    def _fail(self, place: Sequence[str | int], message: str) -> NoReturn:
        raise _reader.mistake(self._path, place, message)


class _Trigger:
    """One trigger, checked."""

    def __init__(self, checker: _Checker, number: int, trigger: TriggerSettings) -> None:
        self._checker = checker
        self._number = number
        self._trigger = trigger

    def checks(self) -> tuple[Callable[[], None], ...]:
        """Return its checks; each raises what is wrong."""
        return (self._check_condition, self._check_run_time)

    def _check_condition(self) -> None:
        trigger = self._trigger
        if (trigger.variable is None) == (trigger.wait is None):
            self._fail(
                "name",
                "it has no condition: give a 'variable' or a 'wait'"
                if trigger.wait is None
                else "give either 'variable' or 'wait', not both",
            )
        if trigger.wait is not None:
            self._check_wait(trigger.wait)
        elif trigger.variable is not None:
            self._check_variable(trigger.variable)

    def _check_run_time(self) -> None:
        trigger = self._trigger
        if trigger.run_time > trigger.sleep > 0:
            self._fail(
                "run-time",
                f"run-time {trigger.run_time:g} is longer than sleep"
                f" {trigger.sleep:g}: captures would overlap; make it shorter",
            )

    def _check_wait(self, wait: str) -> None:
        if wait not in KINDS and wait not in GROUPS:
            known = ", ".join((*GROUPS, *KINDS))
            self._fail("wait", f"{wait!r} is not a kind of wait; known kinds are {known}")
        threshold = self._trigger.threshold
        if not isinstance(threshold, float | int) or not 0 < threshold < math.inf:
            self._fail("threshold", "for a wait it must be a number of milliseconds above 0")
        for key in ("clear", "when"):
            if getattr(self._trigger, key) != getattr(TriggerSettings("x"), key):
                self._fail(key, f"{key} does not apply to a wait: it is over when the wait ends")

    def _check_variable(self, variable: str) -> None:
        tree = self._parsed("variable", variable)
        if self._trigger.convoy is not None:
            self._fail("convoy", "'convoy' needs 'wait'; a variable has a 'threshold'")
        if expression.is_condition(tree):
            for key in ("threshold", "clear"):
                if getattr(self._trigger, key) is not None:
                    self._fail(key, f"the variable is a condition, it has no {key!r}: leave it out")
            return
        if self._trigger.threshold is None:
            self._fail("variable", "it has no 'threshold', and the variable is not a condition")
        threshold = self._limit("threshold", self._trigger.threshold)
        if self._trigger.clear is not None:
            self._check_clear(threshold, self._limit("clear", self._trigger.clear))

    def _check_clear(self, threshold: float | None, clear: float | None) -> None:
        if threshold is None or clear is None:
            return
        above = self._trigger.when == "above"
        if clear > threshold if above else clear < threshold:
            side = "above" if above else "below"
            self._fail(
                "clear",
                f"clear {clear:g} is {side} the threshold {threshold:g}, so that it would be"
                " breached and over at once: put it on the other side",
            )

    def _limit(self, key: str, limit: float | str) -> float | None:
        """Return the number, None where it is an expression."""
        if not isinstance(limit, str):
            if not math.isfinite(limit):
                self._fail(key, f"{key} {limit}: write a number that can be reached")
            return float(limit)
        tree = self._parsed(key, limit)
        if expression.is_condition(tree):
            self._fail(
                key, f"{key!r} is a condition: write a number or an expression with a numeric value"
            )
        return tree.value if isinstance(tree, Number) else None

    def _parsed(self, key: str, text: str) -> expression.Node:
        try:
            tree = expression.parse(text)
        except ExpressionError as error:
            self._fail(key, f"{key} {text!r}: {error}")
        for name in expression.names(tree):
            self._check_name(key, name)
        if not expression.names(tree) and key == "variable":
            self._fail(key, f"{text!r} never changes: use a name that is sampled")
        return tree

    def _check_name(self, key: str, name: expression.Node) -> None:
        if not isinstance(name, Name):
            return
        if name.name in _RENAMED:
            self._fail(key, f"{name.name!r} was renamed to {_RENAMED[name.name]}")
        if name.name.startswith("innodb.") and name.name not in innodbnumbers.NAMES:
            there = ", ".join(sorted(innodbnumbers.NAMES))
            self._fail(
                key, f"the InnoDB status has no number {name.name!r}; known names are {there}"
            )
        if name.name.startswith("command."):
            wanted = name.name.removeprefix("command.")
            if wanted not in self._checker._commands:
                self._fail(key, f"there is no [[command]] named {wanted!r}: add one")

    def _fail(self, key: str, message: str) -> NoReturn:
        place: list[str | int] = ["trigger", self._number, key]
        self._checker._fail(place, f"trigger {self._trigger.name!r}: {message}")
