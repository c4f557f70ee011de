# SPDX-License-Identifier: Apache-2.0
"""What pmp/capture/fields.h declares, and whether a capture of the probe is like that."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from typing import Any, NamedTuple

import msgspec

from tests.support.targets import build_folder

__all__ = ["OBJECTS", "Declared", "check_written", "of_c", "records_of_c"]

OBJECTS = {"tool": "capture", "host": "capture", "labels": "end", "phases": "end"}
"""Objects with fields that are no part of the model, and the record that has each."""

# What the types of fields.h are in the docs.
_SHAPES = {
    "chars": "string",
    "id": "int",
    "ms": "number",
    "uint": "int",
    **{same: same for same in ("string", "int", "hex", "bool", "object")},
    **{f"list_of_{item}": f"list of {item}" for item in ("string", "int", "hex")},
}
_NULL = "_or_null"
_HEX = re.compile("0x[0-9a-f]{1,16}")


class Declared(NamedTuple):
    """A field as C, Python or the docs declare it."""

    shape: str
    nullable: bool
    optional: bool

    def __str__(self) -> str:
        null = " or null" if self.nullable else ""
        return f"`{self.shape}{null}{', optional' if self.optional else ''}`"


@functools.cache
def _dump() -> dict[str, Any]:
    program = build_folder() / "tests" / "c" / "capture-fields"
    done = subprocess.run([program], capture_output=True, check=True)
    dump: dict[str, Any] = json.loads(done.stdout)
    return dump


def records_of_c() -> list[str]:
    """Return the records that the probe writes, in their order."""
    records: list[str] = _dump()["records"]
    return records


@functools.cache
def of_c() -> dict[str, dict[str, Declared]]:
    """Return the fields that the probe writes, by record and by object."""
    found: dict[str, dict[str, Declared]] = {}
    for record, name, kind, presence in _dump()["fields"]:
        shape = _SHAPES[kind.removesuffix(_NULL)]
        field = Declared(shape, kind.endswith(_NULL), presence == "optional")
        found.setdefault(record, {})[name] = field
    return found


def check_written(text: bytes) -> None:
    """Assert that each line of a capture has the fields that are declared, and no others."""
    for line in text.splitlines():
        record = msgspec.json.decode(line)
        kind = record.pop("type")
        _check(kind, record)


def _check(what: str, value: dict[str, Any]) -> None:
    declared = of_c()[what]
    unknown = value.keys() - declared.keys()
    assert not unknown, f"{what} has {unknown}, which fields.h does not declare"
    for name, field in declared.items():
        where = f"{what}.{name}"
        if name not in value:
            assert field.optional, f"{where} is missing"
        elif value[name] is None:
            assert field.nullable, f"{where} is null"
        else:
            assert _fits(value[name], field.shape), f"{where} is {value[name]!r}: no {field.shape}"
            if name in of_c() and field.shape == "object":
                _check(name, value[name])


def _fits(value: object, shape: str) -> bool:
    if shape.startswith("list of "):
        item = shape.removeprefix("list of ")
        return isinstance(value, list) and all(_fits(one, item) for one in value)
    if shape == "hex":
        return isinstance(value, str) and _HEX.fullmatch(value) is not None
    if shape == "number":
        return type(value) in (int, float)
    return type(value) is {"string": str, "int": int, "bool": bool, "object": dict}[shape]
