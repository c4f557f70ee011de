# SPDX-License-Identifier: Apache-2.0
"""What ends a stall: statements to paste, what each does, and to whom."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from stallscope.analyzers import files
from stallscope.analyzers.analysis import Ending, Finding
from stallscope.analyzers.catalog import Kept, Signature
from stallscope.analyzers.catalogfile import EndEntry
from stallscope.analyzers.scene import Scene
from stallscope.analyzers.server import numbers
from stallscope.model.capture import Thread

__all__ = ["kills", "of"]

POSTGRES = "postgres"
_KILL_SERVERS = ("mysql", "mariadb")
_VERB = re.compile(
    r"\s*(?:/\*.*?\*/\s*)*"
    r"([A-Za-z]+(?:\s+(?:TABLES?|INDEX|DATABASE|SCHEMA|VIEW|TRIGGER|USER|INTO))?)",
    re.IGNORECASE | re.DOTALL,
)


def of(
    scene: Scene, finding: Finding, server: str | None, version: str | None
) -> tuple[Ending, ...]:
    """Return the endings of a finding that this scene shows, the surest first; none where nothing
    that can be pasted ends it."""
    signature = scene.catalog.by_id.get(finding.signature or "")
    if signature is None:
        return ()
    found = [*_by_thaw(scene, finding)]
    found += _by_statement(scene, finding, signature, server, version)
    if server in (*_KILL_SERVERS, POSTGRES) and signature.kept is not None:
        found += _by_kill(scene, finding, signature, server)
    # The server is asked only where nothing else is known.
    found = [ending for ending in found if not ending.asks] or found[:1]
    return tuple(sorted(found, key=lambda ending: not ending.certain))


def kills(thread: Thread, server: str | None) -> tuple[Ending, ...]:
    """Return what ends the statement of a thread, and its connection; none where it has no number
    that the server's KILL takes."""
    if server not in (*_KILL_SERVERS, POSTGRES):
        return ()
    number = _number(thread, server)
    if number is None:
        return ()
    found = [Ending(_terminate(number, server), f"its connection ends{_lost(thread)}", number)]
    if not thread.rests:
        effect = f"its {_verb(thread)} ends with an error; the connection stays"
        found.insert(0, Ending(_cancel(number, server), effect, number))
    return tuple(found)


def _lost(thread: Thread) -> str:
    return ", and its transaction is rolled back" if thread.transaction else ""


def _involved(finding: Finding) -> tuple[int, ...]:
    """Return the threads of a finding: those that wait, and the blocker."""
    if finding.blocker is None or finding.blocker.thread is None:
        return finding.members
    return (*finding.members, finding.blocker.thread)


def _by_thaw(scene: Scene, finding: Finding) -> Iterator[Ending]:
    """Yield what thaws the file systems on which a thread of the finding changes a file."""
    mounts = set()
    for index in _involved(finding):
        thread = scene.capture.threads[index]
        mount = thread.file.mount if thread.file is not None else None
        if mount is not None and mount.isprintable() and files.is_frozen(thread):
            mounts.add(mount)
    for mount in sorted(mounts):
        yield Ending(
            statement=f"fsfreeze --unfreeze {shlex.quote(mount)}",
            effect="writes to this file system go on; a snapshot that is just made of it is lost",
            in_shell=True,
        )


def _by_kill(scene: Scene, finding: Finding, signature: Signature, server: str) -> Iterator[Ending]:
    """Yield the end of the blocker's connection or statement, and of a DDL that others queue
    behind."""
    blocker = finding.blocker
    root = None if blocker is None else blocker.thread
    threads = scene.capture.threads
    if root is not None and blocker is not None and root != finding.pending:
        yield from _kill(threads[root], signature.kept, server, certain=blocker.certain)
    if finding.pending is not None and finding.cancels:
        thread = threads[finding.pending]
        number = _number(thread, server)
        if number is not None:
            yield Ending(
                statement=_cancel(number, server),
                effect=f"the {_verb(thread)} that waits gives up with an error and changes nothing",
                connection=number,
            )


def _kill(thread: Thread, kept: Kept | None, server: str, *, certain: bool) -> Iterator[Ending]:
    number = _number(thread, server)
    if number is None:
        return
    statement_is_enough = not thread.rests and (
        kept == "statement"
        or (kept == "transaction" and (thread.transaction is False or thread.autocommit is True))
    )
    ends = "ends with an error"
    if server == POSTGRES and _can_be_canceled(thread):
        # An error there ends the transaction, too.
        statement_is_enough = True
        if thread.transaction:
            ends += ", and its transaction is rolled back"
    if statement_is_enough:
        yield Ending(
            statement=_cancel(number, server),
            effect=f"its {_verb(thread)} {ends}; the connection stays",
            connection=number,
            certain=certain,
        )
        return
    lost = "its locks are released"
    if kept == "transaction" or thread.transaction:
        lost = "its transaction is rolled back"
    yield Ending(
        statement=_terminate(number, server),
        effect=f"its connection ends, and {lost}",
        connection=number,
        certain=certain,
    )


def _can_be_canceled(thread: Thread) -> bool:
    """Return whether a backend of PostgreSQL runs a statement that pg_cancel_backend() ends: one
    that sends its result to a client who does not read goes on."""
    activity = thread.activity or ""
    return activity.startswith("active") and not activity.endswith("ClientWrite")


def _number(thread: Thread, server: str) -> int | None:
    """Return the number that the server's KILL takes: PostgreSQL's is the id of the process."""
    if server == POSTGRES:
        return (thread.ns_tid or thread.tid) or None
    return thread.connection or None


def _cancel(number: int, server: str) -> str:
    if server == POSTGRES:
        return f"SELECT pg_cancel_backend({number});"
    return f"KILL QUERY {number};"


def _terminate(number: int, server: str) -> str:
    if server == POSTGRES:
        return f"SELECT pg_terminate_backend({number});"
    return f"KILL {number};"


def _verb(thread: Thread) -> str:
    """Return what kind of statement it runs: ``ALTER TABLE``."""
    found = _VERB.match(thread.query or "")
    return " ".join(found.group(1).upper().split()) if found else "statement"


def _by_statement(
    scene: Scene, finding: Finding, signature: Signature, server: str | None, version: str | None
) -> Iterator[Ending]:
    """Yield the signature's own statements that fit the server and what the threads do."""
    for entry, patterns in signature.ends:
        if entry.server and entry.server != server:
            continue
        if not _in_range(entry, version):
            continue
        if patterns and not any(scene.shape(i).fits(patterns) for i in _involved(finding)):
            continue
        statement = " ".join(entry.statement.split())
        if entry.shell:
            pid = scene.capture.processes[0].pid if scene.capture.processes else 0
            if not pid:
                continue
            statement = statement.replace("{pid}", str(pid))
        yield Ending(statement, entry.effect, asks=entry.asks, in_shell=entry.shell)


def _in_range(entry: EndEntry, version: str | None) -> bool:
    if not (entry.since or entry.before):
        return True
    ours = numbers(version)
    if not ours or (entry.since and ours < numbers(entry.since)):
        return False
    return not entry.before or ours < numbers(entry.before)
