# SPDX-License-Identifier: Apache-2.0
"""The records of a capture file, derived from the types of the model that they are decoded into.

Fields of records that the model does not have are declared here: numbers of records, and totals
that are computed when a file is written.
"""

from __future__ import annotations

import enum
import re
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

from stallscope.model.capture import (
    ADDED,
    OPTIONAL,
    SCHEMA,
    SCHEMAS,
    Address,
    BurstEnd,
    Capture,
    Frame,
    FrameModule,
    Index,
    Label,
    Lock,
    LockKind,
    Module,
    Note,
    Process,
    Release,
    Sample,
    Stack,
    Thread,
    Trigger,
)

__all__ = [
    "COUNTED",
    "NUMBERED",
    "RECORDS",
    "Field",
    "StackRecord",
    "address",
    "fields",
    "json_schema",
    "struct_fields",
]


class StackRecord(msgspec.Struct, frozen=True):
    """The one record without a counterpart in the model, in which threads hold their frames."""

    frames: tuple[Index, ...]


class Field(NamedTuple):
    """One field of a record. ``shape``: its type, as in docs/capture-format.md."""

    attribute: str
    name: str
    shape: str
    nullable: bool
    optional: bool
    added: bool
    """The probe never writes it."""
    default: Any
    resolved: Any
    """The type in the model, or that of the items of a list, where a file has another value for
    it."""


def _part_of_capture(record: str) -> type[msgspec.Struct]:
    """Return the type of the first or the last record, with the fields of Capture that are in
    it."""
    parts: list[Any] = []
    for field in msgspec.structs.fields(Capture):
        if _extra(field.type).get("record") != record:
            continue
        if field.default_factory is not msgspec.NODEFAULT:
            default = msgspec.field(default_factory=field.default_factory)
            parts.append((field.name, field.type, default))
        elif field.default is not msgspec.NODEFAULT:
            parts.append((field.name, field.type, field.default))
        else:
            parts.insert(0, (field.name, field.type))
    return msgspec.defstruct(record.capitalize(), parts, kw_only=True, frozen=True)


def _extra(declared: Any) -> Mapping[str, Any]:
    for part in getattr(declared, "__metadata__", ()):
        if isinstance(part, msgspec.Meta) and part.extra:
            return part.extra
    return {}


RECORDS: dict[str, type[msgspec.Struct]] = {
    "capture": _part_of_capture("capture"),
    "process": Process,
    "module": Module,
    "frame": Frame,
    "stack": StackRecord,
    "lock": Lock,
    "thread": Thread,
    "release": Release,
    "sample": Sample,
    "note": Note,
    "trigger": Trigger,
    "end": _part_of_capture("end"),
    "burst": BurstEnd,
}
"""The records in the order of a file."""

NUMBERED = ("process", "module", "frame", "stack", "lock")
"""Records to which others refer by their ``id``, which counts from 0."""

COUNTED: dict[str, dict[str, Any]] = {
    "capture": {
        "schema": str,
        "time": str | None,
        "origin": Annotated[str | None, ADDED],
    },
    "frame": {"same_name": Annotated[Index | None, OPTIONAL]},
    "end": {"threads": Index, "labels": dict[Label, Index], "live_reads": Index},
}
"""Fields that are computed from the rest of the capture, or from its file."""

_HEX = re.compile("0x[0-9a-f]{1,16}")
_SIMPLE: dict[object, str] = {
    str: "string",
    int: "int",
    float: "number",
    bool: "bool",
    Address: "hex",
    FrameModule: "int",
    Stack: "int",
}
_RESOLVED = (Address, FrameModule, Stack)


def address(value: object) -> int:
    """Return the number of a text like ``"0x7f00"``. Raises: ValueError."""
    if not isinstance(value, str) or _HEX.fullmatch(value) is None:
        raise ValueError("Expected `0x` and at most 16 lower-case hexadecimal digits")
    return int(value, 16)


def fields(record: str) -> tuple[Field, ...]:
    """Return the fields of a record without its ``type``."""
    found = [_field("", "id", Index, msgspec.NODEFAULT)] if record in NUMBERED else []
    for name, declared in COUNTED.get(record, {}).items():
        found.append(_field("", name, declared, None))
    return (*found, *struct_fields(RECORDS[record]))


def struct_fields(struct: type[msgspec.Struct]) -> tuple[Field, ...]:
    """Return the fields that a type of the model declares."""
    return tuple(
        _field(f.name, f.encode_name, f.type, f.default) for f in msgspec.structs.fields(struct)
    )


def _field(attribute: str, name: str, declared: Any, default: Any) -> Field:
    written = _extra(declared).get("written")
    bare, nullable = _bare(declared)
    many = typing.get_origin(bare) is tuple
    if many:
        bare, _ = _bare(typing.get_args(bare)[0])
    shape = f"list of {_type_name(bare)}" if many else _type_name(bare)
    return Field(
        attribute=attribute,
        name=name,
        shape=shape,
        nullable=nullable or bare in (FrameModule, Stack),
        optional=written is not None,
        added=written == "added",
        default=default,
        resolved=bare if bare in _RESOLVED or _is_struct(bare) else None,
    )


def _bare(declared: Any) -> tuple[Any, bool]:
    """Return a type without its limits and without None, and whether None was there."""
    nullable = False
    while True:
        if hasattr(declared, "__metadata__"):
            declared = declared.__origin__
        elif typing.get_origin(declared) in (types.UnionType, typing.Union):
            (declared,) = (arg for arg in typing.get_args(declared) if arg is not type(None))
            nullable = True
        else:
            return declared, nullable


def _type_name(bare: Any) -> str:
    if typing.get_origin(bare) is dict or _is_struct(bare):
        return "object"
    if isinstance(bare, type) and issubclass(bare, enum.Enum):
        return "string"
    return _SIMPLE[bare]


def _is_struct(bare: Any) -> bool:
    return isinstance(bare, type) and issubclass(bare, msgspec.Struct)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of one line: what the reader requires, and no more."""
    shapes, parts = msgspec.json.schema_components(
        RECORDS.values(), schema_hook=_schema_of, ref_template="#/$defs/{name}"
    )
    number = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
    for name, record in RECORDS.items():
        more: dict[str, Any] = {"type": {"const": name}}
        if name in NUMBERED:
            more["id"] = number
        elif name == "capture":
            more["schema"] = {"enum": list(SCHEMAS)}
        elif name == "end":
            more["threads"] = number
        part = parts[record.__name__]
        part["properties"] = {**more, **part["properties"]}
        part["required"] = [*more, *part.get("required", [])]
        if name == "frame":
            part["properties"]["same_name"] = number
    # An unknown one becomes `unknown`.
    parts[LockKind.__name__] = {"type": "string", "examples": [str(kind) for kind in LockKind]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"One line of {SCHEMA}",
        "oneOf": list(shapes),
        "$defs": parts,
    }


def _schema_of(declared: type) -> dict[str, Any]:
    if declared is Address:
        return {"type": "string", "pattern": f"^{_HEX.pattern}$"}
    return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]}
