# SPDX-License-Identifier: Apache-2.0
"""Turn a Capture into the records of docs/capture-format.md."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from stallscope.base.times import rfc3339
from stallscope.model import (
    SCHEMA,
    Capture,
    Frame,
    Label,
    Lock,
    Module,
    Process,
    Release,
    Thread,
    Trigger,
)

__all__ = ["lines"]


def lines(capture: Capture) -> Iterator[bytes]:
    """Yield one line of JSON a record, newline included."""
    encoder = msgspec.json.Encoder()
    for record in _records(capture):
        yield encoder.encode(record) + b"\n"


def _records(capture: Capture) -> Iterator[dict[str, Any]]:
    yield _capture(capture)
    # A capture of nothing but text still has the process that its threads belong to.
    for i, process in enumerate(capture.processes or (Process(pid=0),)):
        yield {"type": "process", "id": i, **msgspec.structs.asdict(process)}
    tables = _Tables(capture)
    yield from tables.module_records()
    yield from tables.frame_records()
    yield from tables.stack_records()
    for i, lock in enumerate(capture.locks):
        yield _lock(i, lock)
    for thread in capture.threads:
        yield tables.thread_record(thread)
    for release in capture.releases:
        yield tables.release_record(release)
    for note in capture.notes:
        yield {"type": "note", "code": note.code, "message": note.message}
    if capture.trigger is not None:
        yield _trigger(capture.trigger)
    yield _end(capture)


def _capture(capture: Capture) -> dict[str, Any]:
    record: dict[str, Any] = {
        "type": "capture",
        "schema": SCHEMA,
        "tool": capture.tool,
        "time": None if capture.time_ns is None else rfc3339(capture.time_ns),
        "time_ns": capture.time_ns,
        "host": capture.host,
        "backend": capture.backend,
        "backend_reason": capture.backend_reason,
        "snapshot_ns": capture.snapshot_ns,
    }
    if capture.path is not None:
        record["origin"] = capture.path
    return record


_OPTIONAL_LOCK = ("created", "mode", "locked_at")
_OPTIONAL_THREAD = (
    "ns_tid",
    "label_reason",
    "waited_ns",
    "connection",
    "command",
    "activity",
    "query",
    "digest",
    "user",
    "database",
    "own",
)


def _without(record: dict[str, Any], optional: tuple[str, ...]) -> dict[str, Any]:
    """Leave out those of the optional fields that nothing is known of."""
    for name in optional:
        if record[name] is None:
            del record[name]
    return record


def _lock(i: int, lock: Lock) -> dict[str, Any]:
    return {
        "type": "lock",
        "id": i,
        **_without(msgspec.structs.asdict(lock), _OPTIONAL_LOCK),
        "address": _hex(lock.address),
        "futex": _hex(lock.futex),
    }


def _trigger(trigger: Trigger) -> dict[str, Any]:
    return {
        "type": "trigger",
        **msgspec.structs.asdict(trigger),
        "address": _hex(trigger.address),
    }


def _end(capture: Capture) -> dict[str, Any]:
    labels = {str(label): 0 for label in Label}
    for thread in capture.threads:
        if thread.label is not None:
            labels[thread.label] += 1
    return {
        "type": "end",
        "threads": len(capture.threads),
        "labels": labels,
        "stopped_ns": capture.stopped_ns,
        "elapsed_ns": capture.elapsed_ns,
        "phases": capture.phases,
        "live_reads": sum(thread.live_reads for thread in capture.threads),
    }


def _hex(value: int | None) -> str | None:
    return None if value is None else f"{value:#x}"


class _Tables:
    """Number the distinct modules, frames and stacks of the threads."""

    def __init__(self, capture: Capture) -> None:
        self._modules: dict[Module, int] = {}
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        # Threads share frames and stacks as objects: hash each object once.
        self._frame_ids: dict[int, int] = {}
        self._stack_ids: dict[int, int] = {}
        for module in capture.modules:
            self._modules.setdefault(module, len(self._modules))
        for thread in capture.threads:
            self._stack(thread.frames)
            self._stack(thread.kernel_frames)
        for release in capture.releases:
            self._stack(release.frames)

    def _stack(self, frames: tuple[Frame, ...]) -> int | None:
        if not frames:
            return None
        known = self._stack_ids.get(id(frames))
        if known is None:
            key = tuple(self._frame(frame) for frame in frames)
            known = self._stacks.setdefault(key, len(self._stacks))
            self._stack_ids[id(frames)] = known
        return known

    def _frame(self, frame: Frame) -> int:
        known = self._frame_ids.get(id(frame))
        if known is None:
            if frame.module is not None:
                self._modules.setdefault(frame.module, len(self._modules))
            known = self._frames.setdefault(frame, len(self._frames))
            self._frame_ids[id(frame)] = known
        return known

    def module_records(self) -> Iterator[dict[str, Any]]:
        for module, i in self._modules.items():
            yield {
                "type": "module",
                "id": i,
                **msgspec.structs.asdict(module),
                "start": _hex(module.start),
                "end": _hex(module.end),
                "bias": _hex(module.bias),
            }

    def frame_records(self) -> Iterator[dict[str, Any]]:
        for frame, i in self._frames.items():
            yield {
                "type": "frame",
                "id": i,
                **msgspec.structs.asdict(frame),
                "module": None if frame.module is None else self._modules[frame.module],
                "pc": _hex(frame.pc),
                "offset": _hex(frame.offset),
            }

    def stack_records(self) -> Iterator[dict[str, Any]]:
        for (frames, _), i in zip(self._stacks.items(), itertools.count()):
            yield {"type": "stack", "id": i, "frames": frames}

    def thread_record(self, thread: Thread) -> dict[str, Any]:
        record = _without(msgspec.structs.asdict(thread), _OPTIONAL_THREAD)
        call = thread.syscall
        record["syscall"] = call and {
            "nr": call.nr,
            "name": call.name,
            "args": [_hex(arg) for arg in call.args],
        }
        del record["frames"], record["kernel_frames"]
        return {
            "type": "thread",
            **record,
            "stack": self._stack(thread.frames),
            "kernel_stack": self._stack(thread.kernel_frames),
        }

    def release_record(self, release: Release) -> dict[str, Any]:
        record = msgspec.structs.asdict(release)
        del record["frames"]
        return {"type": "release", **record, "stack": self._stack(release.frames)}
