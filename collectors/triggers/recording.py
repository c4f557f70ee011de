# SPDX-License-Identifier: Apache-2.0
"""Recordings: the input of an engine, line by line, so that it can be replayed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.base.inputfile import chunks
from stallscope.base.text import one_line
from stallscope.model.samples import Sample
from stallscope.model.waitlines import MAX_LINE, WaitLine

__all__ = ["Record", "read", "shortened"]


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the three."""

    time_ns: int
    clock_ns: int
    sample: Sample | None = None
    line: WaitLine | None = None
    mark: str | None = None
    """A label: what happens to the server from here on."""


def shortened(line: WaitLine) -> WaitLine:
    """Remove from a line what no trigger reads."""
    return msgspec.structs.replace(
        line,
        kinds={k: msgspec.structs.replace(v, histogram=()) for k, v in line.kinds.items()},
        keys=tuple(
            msgspec.structs.replace(key, waiters=(), holders=(), histogram=())
            for key in line.keys
            if key.in_flight
        ),
        lost={},
        targets=(),
        classes=None,
        events=(),
        server={},
        programs=(),
    )


class _Head(msgspec.Struct, frozen=True):
    source: str | None = None


_head = msgspec.json.Decoder(_Head)
_sample = msgspec.json.Decoder(Sample)
_record = msgspec.json.Decoder(Record)


def read(path: Path) -> Iterator[Record]:
    """Yield the records of a file, or the plain samples of an incident.

    Raises: StallscopeError naming file and line.
    """
    for number, line in enumerate(_lines(path), 1):
        try:
            if _head.decode(line).source is None:
                yield _record.decode(line)
            else:
                sample = _sample.decode(line)
                yield Record(sample.time_ns, sample.clock_ns, sample=sample)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise StallscopeError(
                f"{path}:{number}: not a sample: {one_line(str(error))}"
            ) from error


def _lines(path: Path) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks(path):
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE:
            raise StallscopeError(f"{path}: a line longer than {MAX_LINE} bytes: not a recording")
        yield from filter(None, whole)
    if rest:
        yield rest
