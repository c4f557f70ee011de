# SPDX-License-Identifier: Apache-2.0
"""What the probe read of connections in the server's memory, as lines beside a capture.

The text of statements has literals: it passes through here on its way to
stallscope.model.sessions.redact, and is stored nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.model.capture import Index
from stallscope.model.sessions import MAX_STATEMENT, Moment, Session
from stallscope.server import commands, statements

__all__ = ["MISFIT", "OWN", "decode", "misfit", "split"]

OWN = "/* stallscope "
"""The beginning of our own statements."""
MISFIT = "the calibration of this build does not fit"
MARK = b'{"type":"sessions",'
MAX_LINE = 256 << 20
MAX_NAME = 128
_LEAST_VALID = 0.5
"""The least share of threads with an object that must look like connections."""

_Name = Annotated[str, msgspec.Meta(max_length=4 * MAX_NAME)]


class _Line(msgspec.Struct, frozen=True):
    connection: Index
    tid: Index
    process: Index = 0
    user: _Name | None = None
    host: _Name | None = None
    database: _Name | None = None
    command: Index | None = None
    command_name: _Name | None = None
    state: _Name | None = None
    transaction: bool | None = None
    transaction_id: Index | None = None
    age_ms: Annotated[float, msgspec.Meta(ge=0, le=1e15)] | None = None
    statement: str | None = None
    cut: bool = False
    last: bool = False


class _Lines(msgspec.Struct, frozen=True):
    moment: Index
    time_ns: Index
    sessions: tuple[_Line, ...]
    rejected: Index = 0
    read_ns: Index = 0


_decoder = msgspec.json.Decoder(_Lines)


def split(data: bytes) -> tuple[bytes, tuple[Moment, ...]]:
    """Return the capture and the sessions that follow it on the probe's standard output.

    Raises: StallscopeError.
    """
    at = data.find(b"\n" + MARK) + 1 if not data.startswith(MARK) else 0
    if not at and not data.startswith(MARK):
        return data, ()
    return data[:at], decode(data[at:].splitlines())


def decode(lines: Iterable[bytes]) -> tuple[Moment, ...]:
    """Return the sessions of each capture of a burst. Raises: StallscopeError."""
    return tuple(_moment(line) for line in lines if line)


def misfit(moments: Sequence[Moment]) -> str | None:
    """Return why these cannot be the connections of the server, in a few words, None where they
    can: the layout is of another build."""
    if not moments:
        return None
    first, rejected = moments[0].sessions, moments[0].rejected
    if len(first) < _LEAST_VALID * (len(first) + rejected):
        return f"{rejected} of {len(first) + rejected} threads have no connection where it says"
    if len({session.connection for session in first}) < len(first):
        return "several threads have the same connection"
    return None


def _moment(line: bytes) -> Moment:
    if len(line) > MAX_LINE:
        raise StallscopeError("the connections of the server are too many to read")
    try:
        lines = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise StallscopeError(
            f"the probe's line of connections cannot be read: {one_line(str(error), 200)}"
        ) from None
    return Moment(
        number=lines.moment,
        time_ns=lines.time_ns,
        sessions=tuple(map(_session, lines.sessions)),
        rejected=lines.rejected,
        read_ns=lines.read_ns,
    )


def _session(line: _Line) -> Session:
    statement = line.statement or None
    if statement and line.cut:
        statement = statement.rstrip("\ufffd")  # a part of its last character
    if statement and line.last and not statements.begins_as_statement(statement):
        statement = None  # something else is there now
    command = line.command_name
    if command is None and line.command is not None:
        command = commands.NAMES.get(line.command)
    return Session(
        connection=line.connection,
        tid=line.tid,
        process=line.process,
        user=_word(line.user),
        host=_word(line.host),
        database=_word(line.database),
        command=command,
        state=_word(line.state),
        seconds=None if line.age_ms is None else line.age_ms / 1000,
        statement=statement[:MAX_STATEMENT] if statement else None,
        transaction=line.transaction,
        transaction_id=line.transaction_id,
        own=statement is not None and statement.startswith(OWN),
        last=line.last,
    )


def _word(text: str | None) -> str | None:
    return one_line(text, MAX_NAME) if text else None
