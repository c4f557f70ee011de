# SPDX-License-Identifier: Apache-2.0
"""Redact values of the model: captures, samples, waits, incidents.

A value is copied field by field. Numbers, enumerations and names of functions stay. Each other text
is scrubbed (words.py), unless it is here for what it is, and then a name replaces all of it. So a
field that is added later is scrubbed until it has a row.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from stallscope.model.capture import OF_TABLES, Capture, File, Frame, Lock, Module, Process, Thread
from stallscope.model.incident import CaptureEntry, Incident, Origin, TargetEntry
from stallscope.model.samples import Sample
from stallscope.model.waitlines import (
    Event,
    HolderStack,
    Target,
    ThreadRow,
    WaiterStack,
    Waker,
)
from stallscope.redaction.words import Names

__all__ = ["Redactor"]

T = TypeVar("T")
Rule = Callable[[Names, str], str]

_SYSTEM = ("/bin/", "/lib/", "/lib32/", "/lib64/", "/sbin/", "/usr/bin/", "/usr/lib/")
_SYSTEM_ALSO = ("/usr/libexec/", "/usr/sbin/")


def _as(kind: str) -> Rule:
    return lambda names, text: names.of(kind, text)


def _path(names: Names, text: str) -> str:
    """Name a directory that is not the system's; the file keeps its name where that is known."""
    folder, slash, file = text.rpartition("/")
    if slash and not f"{folder}/".startswith((*_SYSTEM, *_SYSTEM_ALSO)):
        return f"/{names.of('path', folder)}/{names.code(file)}" if folder else names.code(text)
    return names.code(text)


def _keep(_: Names, text: str) -> str:
    return text


def _drop(_: Names, __: str) -> str:
    return ""


def _code(names: Names, text: str) -> str:
    return names.code(text)


def _build_id(_: Names, text: str) -> str:
    return text if set(text) <= set("0123456789abcdef") else ""


def _capture_file(_: Names, text: str) -> str:
    return text if re.fullmatch(r"captures/\d{4,6}\.jsonl\.zst", text) else ""


_RULES: dict[tuple[type, str], Rule] = {
    (Frame, "symbol"): _keep,
    (Frame, "linkage"): _keep,
    (Frame, "source"): _path,
    (Module, "path"): _path,
    (Module, "debug_file"): _path,
    (Module, "build_id"): _build_id,
    (File, "path"): _path,
    (File, "mount"): _path,
    (File, "device"): _path,
    (Process, "exe"): _path,
    (Process, "comm"): _code,
    (Process, "cmdline"): _drop,
    (Thread, "name"): _code,
    (Thread, "state"): _keep,
    (Thread, "unwind"): _code,
    (Thread, "user"): _as("user"),
    (Thread, "database"): _as("schema"),
    (Thread, "host"): _as("host"),
    (Thread, "digest"): _as("digest"),
    (Lock, "source"): _code,
    (Lock, "mode"): _code,
    (Lock, "created"): _path,
    (Lock, "locked_at"): _path,
    (Capture, "backend"): _code,
    (Capture, "path"): _drop,
    (CaptureEntry, "file"): _capture_file,
    (TargetEntry, "host"): _as("host"),
    (TargetEntry, "exe"): _path,
    (TargetEntry, "name"): _code,
    (TargetEntry, "server"): _code,
    (TargetEntry, "version"): _code,
    (Origin, "host"): _as("host"),
    (Origin, "boot"): _as("boot"),
    (Sample, "source"): _code,
    (Target, "exe"): _path,
    (Target, "comm"): _code,
    (WaiterStack, "frames"): _keep,
    (HolderStack, "frames"): _keep,
    (Waker, "frames"): _keep,
    (Event, "frames"): _keep,
    (ThreadRow, "call"): _keep,
    (ThreadRow, "channel"): _keep,
    (ThreadRow, "state"): _keep,
}
_CODES = frozenset(
    (
        *("schema", "type", "kind", "reason", "code", "label", "unwind", "file_class"),
        *("signature", "trigger", "in_flight_by", "label_reason", "ended", "symbols", "cfi"),
    )
)
"""Fields with words of stallscope, in whatever type they are."""
_TABLE = re.compile(r"([\w$-]+)[./]([\w$-]+)")
_KEPT = frozenset(("address",))
_HOST_NAMES = frozenset(("host", "nodename", "hostname"))


class Redactor:
    """Redacts values with the same names; an object that is in several places stays one object."""

    def __init__(self) -> None:
        self.names = Names()
        self._done: dict[int, tuple[Any, Any]] = {}
        """By identity: what was redacted, kept so that its identity stays its own; its copy."""

    def learn(self, capture: Capture) -> None:
        """Note the names of a capture, before texts are redacted that mention them."""
        for moment in capture.moments:
            self._host(moment.host)
            for thread in moment.threads:
                self.names.of("user", thread.user or "")
                self.names.of("schema", thread.database or "")
                self.names.of("host", thread.host or "")
            for lock in moment.locks:
                if lock.kind in OF_TABLES:
                    for schema, table in _TABLE.findall(lock.symbol or ""):
                        self.names.of("schema", schema)
                        self.names.of("table", table)

    def learn_incident(self, incident: Incident) -> None:
        """Note the name of the incident's host."""
        self.names.of("host", incident.target.host or "")

    def of(self, value: T) -> T:
        """Return a copy without what is confidential."""
        found: T = self._value(value, None, "")
        return found

    def forget(self) -> None:
        """Forget the copies, not the names: the next value shares no object with those before."""
        self._done.clear()

    def _value(self, value: Any, owner: type | None, field: str) -> Any:
        if value is None or isinstance(value, (bool, int, float, enum.Enum)):
            return value
        if isinstance(value, str):
            return self._text(value, owner, field)
        if isinstance(value, msgspec.Struct):
            return self._struct(value)
        if isinstance(value, dict):
            return self._dict(value, owner, field)
        if isinstance(value, (tuple, list)):
            if owner is Process and field == "cmdline":
                return ()
            return type(value)(self._value(item, owner, field) for item in value)
        return None

    def _struct(self, value: msgspec.Struct) -> msgspec.Struct:
        known = self._done.get(id(value))
        if known is not None:
            return known[1]  # type: ignore[no-any-return]
        kind = type(value)
        changes = {
            name: self._value(getattr(value, name), kind, name) for name in kind.__struct_fields__
        }
        copy = kind(**changes)
        self._done[id(value)] = (value, copy)
        return copy

    def _dict(self, value: dict[str, Any], owner: type | None, field: str) -> dict[str, Any]:
        if owner is Capture and field == "host":
            self._host(value)
        return {
            self.names.code(str(key)): self._value(
                item, owner, "host" if key in _HOST_NAMES else field
            )
            for key, item in value.items()
        }

    def _host(self, value: dict[str, Any]) -> None:
        for key, item in value.items():
            if key in _HOST_NAMES:
                self.names.of("host", str(item))

    def _text(self, text: str, owner: type | None, field: str) -> str:
        rule = None if owner is None else _RULES.get((owner, field))
        if rule is not None:
            return rule(self.names, text)
        if field in _KEPT:
            return text if not text.strip("0123456789abcdefx") else ""
        return self.names.code(text) if field in _CODES else self.names.text(text)
