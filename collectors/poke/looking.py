# SPDX-License-Identifier: Apache-2.0
"""What a poke would find in a live process, by ``stallscope-poke``: nothing is written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import msgspec

from stallscope.collectors import probe
from stallscope.collectors.calibration.build import bias_of, build_id_of
from stallscope.collectors.calibration.memory import Piece
from stallscope.collectors.probe import ProbeError
from stallscope.model.pokes import (
    AllowList,
    DirectIo,
    Looked,
    OpenFile,
    Poke,
    Record,
    WordValue,
)

__all__ = ["applies", "change_is", "live_address", "look"]

SECONDS = 60.0

Count = Annotated[int, msgspec.Meta(ge=0)]


class _Answer(msgspec.Struct, frozen=True):
    pid: Count
    identity: str
    start_time: Count
    base: Count
    state: str
    exe: str
    head: str
    words: tuple[WordValue, ...]
    sha256: str | None = None
    files: tuple[OpenFile, ...] = ()
    direct: Count | None = None
    open: Count | None = None


def look(pid: int, allowed: AllowList, *, files: bool = False) -> Looked:
    """Return the process with the values of all words of the list that are for its build.

    Raises: ProbeError.
    """
    answer = _ask(pid)
    head = _bytes(answer.head)
    build_id = build_id_of(head, answer.base, lambda pieces: _within(head, answer.base, pieces))
    bias = bias_of(head, answer.base)
    if bias is None:
        raise ProbeError(f"process {pid}: its program is not an ELF file that can be understood")
    words = ["--open-files"] if files else []
    by_hash = _named(allowed, answer.exe) if build_id is None else []
    if by_hash:
        words.append("--hash")
    pokes = [p for p in allowed.poke if p.build_id == build_id or (by_hash and p.sha256)]
    for poke in pokes:
        words += ["--word", f"{bias + poke.address:x}:{poke.size}:0:1"]
    if words:
        again = _ask(pid, *words)
        if again.identity != answer.identity:
            raise ProbeError(f"process {pid} has executed another program meanwhile: try again")
        answer = again
    return Looked(
        pid=pid,
        identity=answer.identity,
        start_time=answer.start_time,
        state=answer.state,
        exe=answer.exe,
        build_id=build_id,
        sha256=answer.sha256,
        bias=bias,
        words=answer.words,
        files=answer.files,
    )


def applies(entry: Poke | DirectIo, looked: Looked) -> bool:
    """Return whether an entry of the list is for the build that the process runs."""
    if entry.build_id is not None:
        return entry.build_id == looked.build_id
    return entry.sha256 is not None and entry.sha256 == looked.sha256


def live_address(poke: Poke, looked: Looked) -> int:
    """Return where the word is in the process."""
    return looked.bias + poke.address


def change_is(record: Record) -> str:
    """Return what a record's change is now: ``old``, ``new`` or ``other``.

    ``ended``: the process is another one. Raises: ProbeError.
    """
    answer = _ask(record.pid, *record.change)
    # That of an older version lacks what was added at its end.
    if not f"{answer.identity}:".startswith(f"{record.identity}:"):
        return "ended"
    if record.files:
        if not answer.direct:
            return "old"
        return "new" if answer.direct == answer.open else "other"
    (word,) = answer.words
    if word.error is not None:
        raise ProbeError(word.error)
    return {record.old: "old", record.new: "new"}.get(word.value, "other")


def _named(allowed: AllowList, exe: str) -> list[Poke | DirectIo]:
    """Return the entries for programs of this name that are known by their file."""
    name = os.path.basename(exe)
    entries: list[Poke | DirectIo] = [*allowed.poke, *allowed.direct_io]
    return [entry for entry in entries if entry.sha256 is not None and entry.program == name]


def _ask(pid: int, *words: str) -> _Answer:
    if "--hash" in words:  # of files up to 4 GiB
        words = (*words, "--deadline", str(int(SECONDS * 900)))
    out = probe.run(["--pid", str(pid), *words], seconds=SECONDS, program=probe.POKE)
    try:
        return msgspec.json.decode(out, type=_Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProbeError(f"{probe.POKE}: its answer cannot be read: {error}") from error


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise ProbeError(f"{probe.POKE}: its answer cannot be read: {error}") from error


def _within(head: bytes, base: int, pieces: Sequence[Piece]) -> list[bytes]:
    """Return pieces of memory, as far as they are in the beginning of the program."""
    return [
        head[address - base : address - base + size] if address >= base else b""
        for address, size in pieces
    ]
