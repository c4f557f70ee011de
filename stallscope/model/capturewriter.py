# SPDX-License-Identifier: Apache-2.0
"""Turn a Capture into the records of docs/capture-format.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from stallscope.base.times import rfc3339
from stallscope.model import captureformat
from stallscope.model.capture import (
    SCHEMA,
    SCHEMA_WITH_SAME_NAMES,
    Address,
    Capture,
    File,
    Frame,
    FrameModule,
    Label,
    Module,
    Process,
    Stack,
    Syscall,
    Thread,
)
from stallscope.model.captureformat import Field

__all__ = ["MAX_REPEATED_NAMES", "lines"]

MAX_REPEATED_NAMES = 4 << 20
"""Characters of names that frames repeat; of more each name is written once."""


def lines(capture: Capture) -> Iterator[bytes]:
    """Yield one line of JSON a record, newline included; of a burst all captures."""
    encoder = msgspec.json.Encoder()
    before: Capture | None = None
    for moment in capture.moments:
        for record in _Records(moment, before if moment.moment else None):
            yield encoder.encode(record) + b"\n"
        before = moment
    if capture.burst is not None:
        yield encoder.encode({"type": "burst", **msgspec.structs.asdict(capture.burst)}) + b"\n"


class _Changes(NamedTuple):
    """Where a record differs from the type of the model that it is written from."""

    optional: tuple[Field, ...]
    """Left out where they have their default."""
    resolved: tuple[Field, ...]


def _changes(struct: type[msgspec.Struct]) -> _Changes:
    fields = captureformat.struct_fields(struct)
    return _Changes(
        tuple(field for field in fields if field.optional),
        tuple(field for field in fields if field.resolved is not None),
    )


_STRUCTS: list[type[msgspec.Struct]] = [*captureformat.RECORDS.values(), File, Syscall]
_CHANGES: dict[type[Any], _Changes] = {struct: _changes(struct) for struct in _STRUCTS}


class _Records:
    """The records of a capture, with distinct modules, frames and stacks numbered.

    ``before``: in a burst the capture before; only what differs from it is written.
    """

    def __init__(self, capture: Capture, before: Capture | None = None) -> None:
        self._capture = capture
        same = () if before is None else {id(thread) for thread in before.threads}
        self._threads = tuple(thread for thread in capture.threads if id(thread) not in same)
        self._later = before is not None
        self._locks = _changed_locks(capture, before, self._threads)
        self._modules: dict[Module, int] = {}
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        # Threads share frames and stacks as objects: hash each object once.
        self._frame_ids: dict[int, int] = {}
        self._stack_ids: dict[int, int] = {}
        for module in capture.modules if before is None else ():
            self._modules.setdefault(module, len(self._modules))
        for thread in self._threads:
            self._stack(thread.frames)
            self._stack(thread.kernel_frames)
        for release in capture.releases:
            self._stack(release.frames)
        for sample in capture.samples:
            self._stack(sample.frames)
            self._stack(sample.kernel_frames)
        self._same_names = _same_names(self._frames)

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

    def __iter__(self) -> Iterator[dict[str, Any]]:
        capture = self._capture
        yield self._head()
        # A capture of nothing but text still has the process that its threads belong to.
        if not self._later:
            yield from self._numbered("process", capture.processes or (Process(pid=0),))
        yield from self._numbered("module", self._modules)
        for record in self._numbered("frame", self._frames):
            if (same := self._same_names.get(record["id"])) is not None:
                record.update(symbol=None, linkage=None, same_name=same)
            yield record
        for number, frames in enumerate(self._stacks):
            yield {"type": "stack", "id": number, "frames": frames}
        yield from self._numbered("lock", (capture.locks[index] for index in self._locks))
        for kind, values in (
            ("thread", self._threads),
            ("release", capture.releases),
            ("sample", capture.samples),
            ("note", capture.notes),
            ("trigger", (capture.trigger,) if capture.trigger is not None else ()),
        ):
            for value in values:
                yield {"type": kind, **self._with_lock(self._fields(value))}
        yield self._end()

    def _with_lock(self, record: dict[str, Any]) -> dict[str, Any]:
        """Refer to a lock by its number among those that are written."""
        if record.get("lock") is not None:
            record["lock"] = self._locks.get(record["lock"])
        return record

    def _numbered(self, kind: str, values: Iterable[msgspec.Struct]) -> Iterator[dict[str, Any]]:
        for number, value in enumerate(values):
            yield {"type": kind, "id": number, **self._fields(value)}

    def _head(self) -> dict[str, Any]:
        capture = self._capture
        record: dict[str, Any] = {
            "type": "capture",
            "schema": SCHEMA_WITH_SAME_NAMES if self._same_names else SCHEMA,
            "time": None if capture.time_ns is None else rfc3339(capture.time_ns),
            **_part(capture, "capture"),
        }
        if capture.path is not None:
            record["origin"] = capture.path
        return record

    def _end(self) -> dict[str, Any]:
        capture = self._capture
        labels = {str(label): 0 for label in Label}
        for thread in capture.threads:
            if thread.label is not None:
                labels[thread.label] += 1
        return {
            "type": "end",
            "threads": len(capture.threads),
            "labels": labels,
            **_part(capture, "end"),
            **({"unchanged": len(capture.threads) - len(self._threads)} if self._later else {}),
            "live_reads": sum(thread.live_reads for thread in capture.threads),
        }

    def _fields(self, value: msgspec.Struct) -> dict[str, Any]:
        """Return what a file has in the place of these attributes."""
        found = msgspec.structs.asdict(value)
        optional, resolved = _CHANGES[type(value)]
        for field in optional:
            if found[field.name] == field.default:
                del found[field.name]
        for field in resolved:
            if field.attribute not in found:
                continue  # it is optional, and not known
            item = found.pop(field.attribute)
            found[field.name] = None if item is None else self._in_file(field.resolved, item)
        return found

    def _in_file(self, declared: Any, item: Any) -> Any:
        """Return what a file has in the place of a value of one of these types."""
        if declared is Address:
            return [f"{one:#x}" for one in item] if isinstance(item, tuple) else f"{item:#x}"
        if declared is Stack:
            return self._stack(item)
        if declared is FrameModule:
            return self._modules[item]
        return self._fields(item)


def _same_names(frames: Iterable[Frame]) -> dict[int, int]:
    """Return the frames whose names are left out, each with an earlier one that has them."""
    first: dict[tuple[str, str | None], int] = {}
    same = {}
    repeated = 0
    for number, frame in enumerate(frames):
        if frame.symbol is None:
            continue
        known = first.setdefault((frame.symbol, frame.linkage), number)
        if known != number:
            same[number] = known
            repeated += len(frame.symbol) + len(frame.linkage or "")
    return same if repeated > MAX_REPEATED_NAMES else {}


def _changed_locks(
    capture: Capture, before: Capture | None, threads: tuple[Thread, ...]
) -> dict[int, int]:
    """Return the indexes of the locks to write, each with its number in the file."""
    if before is None:
        return {index: index for index in range(len(capture.locks))}
    known = before.locks
    used = {thread.lock for thread in threads}
    wanted = [
        index
        for index, lock in enumerate(capture.locks)
        if index in used or index >= len(known) or known[index] != lock
    ]
    return {index: number for number, index in enumerate(wanted)}


def _part(capture: Capture, record: str) -> dict[str, Any]:
    """Return the fields of Capture in this record, without those that have their default."""
    struct = captureformat.RECORDS[record]
    return {
        field.name: getattr(capture, field.name)
        for field in captureformat.struct_fields(struct)
        if not field.optional or getattr(capture, field.name) != field.default
    }
