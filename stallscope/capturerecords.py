# SPDX-License-Identifier: Apache-2.0
"""The records of capture files as types: what a reader insists on, and as a JSON Schema."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from stallscope.model import SCHEMA, Label

__all__ = [
    "RECORDS",
    "CaptureRecord",
    "EndRecord",
    "FrameRecord",
    "LockRecord",
    "ModuleRecord",
    "NoteRecord",
    "ProcessRecord",
    "ReleaseRecord",
    "StackRecord",
    "SyscallRecord",
    "ThreadRecord",
    "TriggerRecord",
    "json_schema",
]

_Int = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Tid = _Int  # a report of the server has pthread_t in the place of a TID
_Pid = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
_Hex = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{1,16}$")]


class CaptureRecord(msgspec.Struct):
    backend: str
    tool: dict[str, str] = {}
    time_ns: _Int | None = None
    host: dict[str, str | int] = {}
    backend_reason: str | None = None
    snapshot_ns: _Int | None = None


class ModuleRecord(msgspec.Struct):
    id: _Int
    process: _Int
    path: str
    start: _Hex | None = None
    end: _Hex | None = None
    bias: _Hex | None = None
    build_id: str | None = None
    deleted: bool = False
    symbols: str | None = None
    cfi: str | None = None
    debug_file: str | None = None
    error: str | None = None


class ProcessRecord(msgspec.Struct):
    id: _Int
    pid: _Pid
    ppid: _Pid = 0
    start_time: _Int | None = None
    comm: str | None = None
    exe: str | None = None
    exe_deleted: bool = False
    cmdline: list[str] = []
    strings: dict[str, str] = {}
    threads_lost: _Int = 0


class FrameRecord(msgspec.Struct):
    id: _Int
    process: _Int | None = None
    module: _Int | None = None
    pc: _Hex | None = None
    offset: _Hex | None = None
    symbol: str | None = None
    linkage: str | None = None
    symbol_offset: _Int | None = None
    kernel: bool = False
    source: str | None = None


class StackRecord(msgspec.Struct):
    id: _Int
    frames: list[_Int]


class LockRecord(msgspec.Struct):
    id: _Int
    process: _Int
    address: _Hex
    kind: str
    futex: _Hex | None = None
    owner_tid: _Tid | None = None
    owner_raw: _Int | None = None
    readers: _Int | None = None
    waiters: _Int = 0
    symbol: str | None = None
    stable: bool = True
    source: str = "futex"
    created: str | None = None
    mode: str | None = None
    locked_at: str | None = None


class SyscallRecord(msgspec.Struct):
    nr: int
    name: str | None = None
    args: list[_Hex] = []


class ThreadRecord(msgspec.Struct):
    process: _Int
    tid: _Tid
    ns_tid: _Pid | None = None
    name: str = ""
    state: Annotated[str, msgspec.Meta(min_length=1, max_length=1)] = "?"
    on_cpu: bool = False
    label: Label | None = None
    label_reason: str | None = None
    passes: _Int = 0
    stopped_ns: _Int = 0
    switches: _Int | None = None
    syscall: SyscallRecord | None = None
    stack: _Int | None = None
    kernel_stack: _Int | None = None
    unwind: str = "complete"
    live_reads: _Int = 0
    lock: _Int | None = None
    count: _Count = 1
    waited_ns: _Int | None = None
    connection: _Int | None = None
    command: str | None = None
    activity: str | None = None
    query: str | None = None
    digest: str | None = None
    user: str | None = None
    database: str | None = None
    own: bool | None = None


class ReleaseRecord(msgspec.Struct):
    process: _Int
    tid: _Tid
    stack: _Int | None = None
    lock: _Int | None = None
    name: str = ""
    label: Label | None = None
    ago_ns: _Int = 0
    waited_ns: _Int | None = None
    count: _Count = 1


class NoteRecord(msgspec.Struct):
    code: str
    message: str


class TriggerRecord(msgspec.Struct):
    reason: str
    kind: str
    name: str | None = None
    address: _Hex | None = None
    pid: _Pid = 0
    tid: _Pid = 0
    length_ms: _Milliseconds | None = None
    threshold_ms: _Milliseconds | None = None
    waiters: _Int = 0
    delay_ms: _Milliseconds | None = None
    copied_ms: _Milliseconds | None = None
    finished_ms: _Milliseconds | None = None
    suppressed: _Int = 0


class EndRecord(msgspec.Struct):
    threads: _Int
    stopped_ns: _Int = 0
    elapsed_ns: _Int | None = None
    phases: dict[str, _Int] = {}


RECORDS: dict[str, type[msgspec.Struct]] = {
    "process": ProcessRecord,
    "module": ModuleRecord,
    "frame": FrameRecord,
    "stack": StackRecord,
    "lock": LockRecord,
    "thread": ThreadRecord,
    "release": ReleaseRecord,
    "note": NoteRecord,
    "trigger": TriggerRecord,
    "end": EndRecord,
}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of one line: what this reader insists on, and no more."""
    records: dict[str, type[msgspec.Struct]] = {"capture": CaptureRecord, **RECORDS}
    shapes, parts = msgspec.json.schema_components(records.values(), ref_template="#/$defs/{name}")
    for name, record in records.items():
        part = parts[record.__name__]
        part["properties"]["type"] = {"const": name}
        part["required"] = ["type", *part["required"]]
    head = parts[CaptureRecord.__name__]
    head["properties"]["schema"] = {"const": SCHEMA}
    head["required"].append("schema")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"One line of {SCHEMA}",
        "oneOf": list(shapes),
        "$defs": parts,
    }
