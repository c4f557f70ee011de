# SPDX-License-Identifier: Apache-2.0
"""Plan a poke, write it, and undo it. Only ``stallscope-poke`` writes to the server."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from stallscope.base import host
from stallscope.base.errors import StallscopeError
from stallscope.collectors import probe, processes
from stallscope.collectors.poke import looking, records
from stallscope.collectors.poke.records import RecordError
from stallscope.collectors.probe import ProbeError
from stallscope.model.pokes import (
    AllowList,
    FileChange,
    Life,
    Looked,
    Plan,
    Poke,
    Record,
    State,
    Stored,
)

__all__ = [
    "PokeError",
    "direct_io_plan",
    "prepared",
    "states",
    "undo",
    "word_plan",
    "write",
]

SECONDS = 60.0


class PokeError(StallscopeError):
    """A poke is refused; the text says why."""


def word_plan(allowed: AllowList, name: str, looked: Looked, value: int | None) -> Plan:
    """Plan to set a word. Raises: PokeError where anything speaks against it."""
    entries = [poke for poke in allowed.poke if poke.name == name]
    if not entries:
        known = ", ".join(dict.fromkeys(poke.name for poke in allowed.poke)) or "none"
        raise PokeError(f"no poke {name[:60]!r} in the allow-list; it has: {known}")
    entry = next((one for one in entries if looking.applies(one, looked)), None)
    if entry is None:
        raise PokeError(_other_build(name, [one.server for one in entries], looked))
    _check_state(looked)
    address = looking.live_address(entry, looked)
    found = next((word for word in looked.words if word.address == address), None)
    if found is None or found.value is None:
        why = found.error if found is not None else "it was not read"
        raise PokeError(f"{name}: {why}")
    new = _new_value(entry, value)
    if found.value in entry.new and found.value not in entry.old:
        raise PokeError(
            f"{name}: {entry.symbol} of process {looked.pid} is {found.value} already:"
            " see `stallscope poke --undo`, or somebody else set it"
        )
    if found.value not in entry.old:
        raise PokeError(
            f"{name}: {entry.symbol} of process {looked.pid} is {found.value}, and the allow-list"
            f" expects {entry.old}: somebody else changed it, or the server is at another point"
        )
    if new == found.value:
        raise PokeError(f"{name}: {entry.symbol} of process {looked.pid} is {new} already")
    if not entry.mixed_is_safe and _bytes_changed(found.value, new) > 1:
        raise PokeError(
            f"{name}: from {found.value} to {new} several bytes change, and the kernel does not"
            " promise that a reader sees all of them at once (mixed_is_safe)"
        )
    return Plan(entry=entry, looked=looked, address=address, old=found.value, new=new)


def direct_io_plan(allowed: AllowList, file_class: str, looked: Looked) -> Plan:
    """Plan to give O_DIRECT to open files. Raises: PokeError where anything speaks against it."""
    entries = [one for one in allowed.direct_io if one.file_class == file_class]
    entry = next((one for one in entries if looking.applies(one, looked)), None)
    if entry is None:
        raise PokeError(
            _other_build(f"--direct-io {file_class}", [one.server for one in entries], looked)
        )
    _check_state(looked)
    files = [one for one in looked.files if one.file_class == file_class]
    if not files:
        raise PokeError(f"process {looked.pid} has no file of class {file_class} open")
    for one in files:
        if one.direct:
            raise PokeError(f"{one.path}: it is open with O_DIRECT already")
        if not one.memory_alignment or not one.offset_alignment:
            raise PokeError(
                f"{one.path}: its file system does not say which alignment direct writes need"
                " (STATX_DIOALIGN), so a write of the server could fail"
            )
        if max(one.memory_alignment, one.offset_alignment) > entry.block:
            raise PokeError(
                f"{one.path}: direct writes must be aligned to {one.memory_alignment} bytes of"
                f" memory and {one.offset_alignment} of the file, the server aligns to"
                f" {entry.block}: its writes would fail"
            )
    changes = tuple(FileChange(one.fd, one.dev, one.ino, one.path) for one in files)
    return Plan(entry=entry, looked=looked, files=changes)


def write(plan: Plan, folder: Path, seconds: float | None) -> Stored:
    """Put the undo record on disk, then change the server; with ``seconds``, a supervisor is ready
    before that. Raises: RecordError, PokeError, ProbeError: nothing was written, or the record says
    what was.
    """
    record, path, words = prepared(plan, folder, seconds)
    try:
        probe.run(words, seconds=SECONDS, program=probe.POKE)
    except ProbeError as error:
        stored = records.read(path)
        if stored.end is None and stored.last("written") is None:
            # It refused it before it opened the record.
            with contextlib.suppress(StallscopeError):
                if looking.change_is(record) == "old":
                    records.append(path, "not-written", str(error)[:400])
        raise
    return records.read(path)


def prepared(plan: Plan, folder: Path, seconds: float | None) -> tuple[Record, Path, list[str]]:
    """Put the undo record on disk; return it, its path, and the arguments of the program
    that writes. Raises: RecordError, PokeError."""
    record = _record(plan, seconds)
    with records.folder_lock(folder):
        _check_no_other(record, folder)
        path = records.create(folder, record)
    words = _command(record, path, "set")
    if seconds is not None:
        words += ["--for", f"{seconds:.3f}"]
    return record, path, words


def undo(record_id: str, folder: Path) -> Stored:
    """Undo a poke. Raises: RecordError, PokeError, ProbeError."""
    path = records.path_of(folder, record_id)
    stored = records.read(path)
    if stored.end is not None:
        raise PokeError(_over(stored))
    if _has_ended(stored.record):
        records.append(path, "ended")
        record = stored.record
        raise PokeError(
            f"process {record.pid} of poke {record.id} has ended or was restarted:"
            " there is nothing left to undo, and nothing was written"
        )
    probe.run(_command(stored.record, path, "undo"), seconds=SECONDS, program=probe.POKE)
    return records.read(path)


def states(folder: Path) -> tuple[list[State], list[str]]:
    """Return all pokes as they are now, oldest first, and why some records cannot be read."""
    found, problems = records.listed(folder)
    return [_state(stored) for stored in found], problems


def _state(stored: Stored) -> State:
    end = stored.end
    if end is not None:
        life: Life = "undone"
        if end.event in ("not-written", "ended"):
            life = "not-written" if end.event == "not-written" else "ended"
        return State(stored, life)
    if _has_ended(stored.record):
        return State(stored, "ended")
    supervisors = _supervisors(stored)
    try:
        now = looking.change_is(stored.record)
    except StallscopeError as error:
        if _has_ended(stored.record):
            return State(stored, "ended")
        return State(stored, "unknown", str(error), supervisors)
    lives: dict[str, Life] = {"old": "restored", "new": "active", "ended": "ended"}
    return State(stored, lives.get(now, "changed"), None, supervisors)


def _supervisors(stored: Stored) -> tuple[int, ...]:
    """Return those that still run."""
    if stored.record.pid_namespace != host.pid_namespace():
        return ()
    found = []
    for event in stored.events:
        if event.event == "supervised" and event.pid:
            process = processes.read(event.pid)
            alive = process is not None and process.state not in "ZX"
            if process is not None and alive and process.start_time == event.start_time:
                found.append(event.pid)
    return tuple(dict.fromkeys(found))


def _has_ended(record: Record) -> bool:
    """Return whether the very process is certainly gone."""
    if record.boot_id and record.boot_id != host.boot_id():
        return True
    if record.pid_namespace != host.pid_namespace():
        return False  # its number means another process here
    process = processes.read(record.pid)
    return process is None or process.state in "ZX" or process.start_time != record.start_time


def _over(stored: Stored) -> str:
    end = stored.end
    assert end is not None, "the caller has seen it"
    record = stored.record
    if end.event == "undone":
        by = "the supervisor" if end.by == "supervisor" else "a command"
        return f"poke {record.id} was undone by {by} already"
    if end.event == "ended":
        return f"process {record.pid} of poke {record.id} has ended: there is nothing to undo"
    return f"poke {record.id} was never written: there is nothing to undo"


def _check_state(looked: Looked) -> None:
    if looked.state in "Tt":
        raise PokeError(
            f"process {looked.pid} is stopped, by a signal or a debugger, which may be in the"
            " middle of a change: it is not changed"
        )


def _new_value(entry: Poke, value: int | None) -> int:
    if value is None:
        if entry.new.least != entry.new.most:
            raise PokeError(f"{entry.name}: which value? give --value N, {entry.new}")
        return entry.new.least
    if value not in entry.new:
        raise PokeError(f"{entry.name}: {value} is not allowed; the allow-list has {entry.new}")
    return value


def _bytes_changed(old: int, new: int) -> int:
    return sum(byte != 0 for byte in (old ^ new).to_bytes(8, "little"))


def _other_build(what: str, servers: list[str], looked: Looked) -> str:
    known = "; ".join(dict.fromkeys(servers)) or "no build"
    return (
        f"{what} is for {known}: process {looked.pid} runs another build"
        f" ({os.path.basename(looked.exe)}, {looked.build})"
    )


def _check_no_other(record: Record, folder: Path) -> None:
    """Refuse a second poke of the same word: the undo of one would be that of the other."""
    found, problems = records.listed(folder)
    if problems:
        raise RecordError(f"{problems[0]}; move it away: it may be the record of the same poke")
    for stored in found:
        other = stored.record
        same = other.pid == record.pid and other.start_time == record.start_time
        if stored.end is not None or not same or other.boot_id != record.boot_id:
            continue
        words = record.address is not None and record.address == other.address
        files = {(one.dev, one.ino) for one in record.files} & {
            (one.dev, one.ino) for one in other.files
        }
        if words or files:
            raise PokeError(
                f"poke {other.id} has changed the same and is not undone:"
                f" stallscope poke --undo {other.id}"
            )


def _record(plan: Plan, seconds: float | None) -> Record:
    now = time.time_ns()
    looked = plan.looked
    entry = plan.entry
    is_word = isinstance(entry, Poke)
    return Record(
        schema="stallscope.poke-record/1",
        id=records.new_id(now),
        created_ns=now,
        name=entry.name,
        server=entry.server,
        pid=looked.pid,
        pid_namespace=host.pid_namespace(),
        start_time=looked.start_time,
        identity=looked.identity,
        boot_id=host.boot_id(),
        exe=looked.exe,
        build=looked.build,
        uid=os.getuid(),
        seconds=seconds,
        symbol=entry.symbol if isinstance(entry, Poke) else None,
        address=plan.address,
        size=entry.size if isinstance(entry, Poke) else None,
        old=plan.old if is_word else None,
        new=plan.new if is_word else None,
        files=plan.files,
    )


def _command(record: Record, path: Path, action: str) -> list[str]:
    words = ["--pid", str(record.pid), "--process", record.identity]
    return [*words, "--do", action, "--record", str(path), *record.change]
