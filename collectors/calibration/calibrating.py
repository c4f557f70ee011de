# SPDX-License-Identifier: Apache-2.0
"""Calibrate a live server: find where it keeps connections, check that, and keep it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.collectors.calibration import choice, metadata, search
from stallscope.collectors.calibration.build import build_of
from stallscope.collectors.calibration.hints import of_build
from stallscope.collectors.calibration.memory import Memory, MemoryThread, open_memory
from stallscope.collectors.calibration.reading import read_sessions
from stallscope.collectors.calibration.stored import Calibration
from stallscope.collectors.sql.failures import SqlError
from stallscope.collectors.sql.login import Login
from stallscope.collectors.sql.staged import Known, Staged
from stallscope.model.sessions import Session

__all__ = ["SECONDS", "CalibrationError", "calibrate"]

SECONDS = 10.0
"""For everything: a server that takes longer is stalled."""
_LOOKS = 3
"""Comparisons with SQL."""
_REST_SECONDS = 0.05
_TEXT = 1024
_LOGGING_IN = (None, "unauthenticated user")
"""The user of a connection that logs in. performance_schema has no command of it yet."""
_MOST_TRANSACTIONS = 3
_MOST_IDLE = 16


class CalibrationError(StallscopeError):
    """Why a server cannot be calibrated, in one sentence."""


def calibrate(
    pid: int,
    login: Login,
    pack_dirs: Sequence[Path] = (),
    seconds: float = SECONDS,
) -> Calibration:
    """Find where the process keeps its connections. Nothing is kept.

    ``pack_dirs``: directories of packs, in addition to the usual ones.

    Raises: CalibrationError, and errors of the probe.
    """
    try:
        with Staged(login, seconds) as staged:
            if staged.listener_pid and staged.listener_pid != pid:
                raise CalibrationError(
                    f"SQL answers from process {staged.listener_pid}, not {pid}: give the options"
                    " of this server with --defaults-file"
                )
            with open_memory(pid, seconds) as memory:
                return _calibrate(staged, memory, pack_dirs)
    except SqlError as error:
        raise CalibrationError(f"no calibration: {error}") from error


def _calibrate(staged: Staged, memory: Memory, pack_dirs: Sequence[Path]) -> Calibration:
    build = build_of(memory)
    if build is None:
        raise CalibrationError("the program cannot be identified: its beginning is not readable")
    hints = of_build(build, pack_dirs)
    own = staged.own()
    subjects = _subjects(own, memory.threads)
    found = search.find(memory, subjects, hints)
    for _ in range(_LOOKS):
        if found is None or "command" not in found.unknown:
            break
        # The thread of the connection that asked may not be at rest yet: its client has the answer
        # before that, and no event says when it is.
        time.sleep(_REST_SECONDS)
        found = search.find(memory, subjects, hints)
    if found is None:
        raise CalibrationError(
            "no place in the memory of its threads is right for all of our own connections"
        )
    for _ in range(_LOOKS):  # those of others end
        if "transaction_id" in found.unknown:
            with_id = _transactions(staged, memory.threads)
            found = search.with_transactions(memory, found, with_id)
    rows = staged.rows()
    layout = choice.chosen(memory, rows, found.layout)
    for _ in range(_LOOKS):  # those of others go on meanwhile
        idle = search.find_idle(memory, layout, _idle(staged, rows, memory.threads))
        if idle:
            layout |= idle
            break
    found = search.Found(layout, found.unknown)
    locks = _metadata(memory, staged, subjects, found.layout)
    layout, wrong, compared = _compared(memory, staged, found.layout | locks)
    return Calibration(
        build=build,
        program=(memory.exe or "").rpartition("/")[2],
        version=staged.version,
        time_ns=time.time_ns(),
        layout=layout,
        unknown=(*found.unknown, *wrong),
        compared=compared,
    )


def _subjects(own: Sequence[Known], threads: Sequence[MemoryThread]) -> list[search.Subject]:
    found = [
        search.Subject(known, thread)
        for known in own
        if (thread := _thread_of(known, threads)) is not None
    ]
    if len(found) < search.LEAST:
        raise CalibrationError(
            f"only {len(found)} of our {len(own)} connections have a thread that is known: the"
            " server does not report threads, or this host hides their registers"
        )
    return found


def _metadata(
    memory: Memory, staged: Staged, subjects: Sequence[search.Subject], layout: Mapping[str, int]
) -> dict[str, int]:
    """Return where metadata locks are; nothing where the server makes none of GET_LOCK()."""
    waiter = [one for one in subjects if one.known.command == "Execute"]
    owner = [one for one in subjects if one.known.last and one.known.transaction]
    others = [one for one in subjects if one not in (*waiter, *owner)]
    if not (waiter and owner):
        return {}
    order = (*owner[:1], *waiter[:1], *others)
    first, second, *rest = metadata.lockers(
        memory, [one.thread for one in order], layout["thd.tls"]
    )
    return metadata.find(memory, first, second, rest, staged.lock)


def _idle(
    staged: Staged, rows: Sequence[Known], threads: Sequence[MemoryThread]
) -> list[tuple[MemoryThread, tuple[int, int]]]:
    """Return threads with the time since when their connection is idle: our own first."""
    since = staged.idle()
    found = [
        (thread, since[known.connection])
        for known in sorted(rows, key=lambda known: not known.own)
        if known.connection in since and (thread := _thread_of(known, threads)) is not None
    ]
    return found[:_MOST_IDLE]


def _transactions(
    staged: Staged, threads: Sequence[MemoryThread]
) -> list[tuple[MemoryThread, int]]:
    """Return threads with the ids of their transactions; none where the account sees none."""
    try:
        ids = staged.transactions()
    except SqlError:
        return []
    by_connection = {known.connection: known for known in staged.rows()}
    known = [(by_connection[number], id_) for number, id_ in ids.items() if number in by_connection]
    found = []
    for one, id_ in known:
        thread = _thread_of(one, threads)
        if thread is not None:
            found.append((thread, id_))
    return found[:_MOST_TRANSACTIONS]


def _thread_of(known: Known, threads: Sequence[MemoryThread]) -> MemoryThread | None:
    for thread in threads:
        if not thread.fs_base:
            continue
        if known.os_tid == thread.ns_tid or known.handle == thread.fs_base:
            return thread
    return None


def _compared(
    memory: Memory, staged: Staged, layout: Mapping[str, int]
) -> tuple[dict[str, int], list[str], int]:
    """Compare with all connections that SQL shows; drop fields that are wrong for one."""
    numbers = {thread.tid: thread.ns_tid for thread in memory.threads}
    wrong: Counter[str] = Counter()
    connections: set[int] = set()
    for _ in range(_LOOKS):
        begun = time.monotonic()
        before = {known.connection: known for known in staged.rows()}
        seen = read_sessions(memory, layout)
        elapsed = time.monotonic() - begun
        after = {known.connection: known for known in staged.rows()}
        by_number = {session.connection: session for session in seen}
        for number, known in after.items():
            session = by_number.get(number)
            if session is None or known != before.get(number) or known.user in _LOGGING_IN:
                continue
            # It may have run something short in between.
            if session.seconds is None or session.seconds > elapsed:
                wrong.update(_differing(known, session, numbers.get(session.tid or 0)))
                connections.add(number)
    if wrong["connection"]:
        raise CalibrationError("the ids of connections in memory differ from those that SQL shows")
    # A connection that runs one short statement after the other differs sometimes.
    fields = sorted(name for name, count in wrong.items() if count >= _LOOKS)
    left = {
        key: value
        for key, value in layout.items()
        if key.removeprefix("thd.").split(".")[0].split("#")[0] not in fields
    }
    return left, fields, len(connections)


def _differing(known: Known, session: Session, os_tid: int | None) -> list[str]:
    """Return the fields that are known from both sides and differ. ``os_tid``: the server's number
    of the thread whose memory has the connection."""
    host = (known.host or "").partition(":")[0]
    said, statement = _comparable(known.statement or "", (session.statement or "")[:_TEXT])
    pairs: list[tuple[str, object, object]] = [
        ("connection", known.os_tid, os_tid),
        ("database", known.database, session.database),
        ("command", known.command, session.command),
        ("query", said, None if session.last else statement),
    ]
    if known.command == "Sleep" or known.own:
        # While a routine runs, SQL names its definer.
        pairs += [("user", known.user, session.user), ("host", host, session.host)]
    return [name for name, said, seen in pairs if said and seen and said != seen]


def _comparable(said: str, seen: str) -> tuple[str, str]:
    """Return what can be compared of a statement's two texts: memory has it in the character set of
    the client, and SQL may end it where it cannot be converted, or after 1,024 bytes."""
    if said.isascii() and seen.isascii():
        return said, seen
    length = min(_ascii_length(said), _ascii_length(seen))
    return said[:length], seen[:length]


def _ascii_length(text: str) -> int:
    return next((at for at, char in enumerate(text) if not char.isascii()), len(text))
