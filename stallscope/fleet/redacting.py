# SPDX-License-Identifier: Apache-2.0
"""Replace names of users, schemas, tables, clients and paths in the rows of an incident.

The host stays: a fleet is of hosts. Functions stay, and words of stallscope, of SQL and of servers
(redaction/words.py). The statement comes first, so that the same one has the same names in all
incidents.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stallscope.fleet.facts import NamedStack
from stallscope.fleet.tables import FindingPart, IncidentRow
from stallscope.redaction.words import Names

__all__ = ["redacted"]

_BEFORE_FUNCTION = ": "


def redacted(
    row: IncidentRow, stacks: Sequence[NamedStack]
) -> tuple[IncidentRow, tuple[NamedStack, ...]]:
    """Return the row of an incident and its stacks, without names."""
    names = Names()
    texts = ("statement", "lock_name", "title", "ending", "remedy", "why")
    changes: dict[str, object] = {name: names.text(getattr(row, name)) for name in texts}
    codes = ("program", "server", "version", "signature", "trigger_name")
    changes |= {name: names.code(getattr(row, name)) for name in codes}
    changes["blocker"] = _who(names, row.blocker) if row.findings else names.text(row.blocker)
    changes["triggers"] = tuple(map(names.code, row.triggers))
    changes["lost_why"] = tuple(map(names.text, row.lost_why))
    changes["findings"] = tuple(_finding(names, one) for one in row.findings)
    changes["captures"] = tuple(
        msgspec.structs.replace(
            one,
            trigger_name=names.code(one.trigger_name),
            signature=names.code(one.signature),
            sessions=names.text(one.sessions),
        )
        for one in row.captures
    )
    changes["samples"] = tuple(
        msgspec.structs.replace(one, name=names.code(one.name)) for one in row.samples
    )
    without = tuple(
        NamedStack(one.hash, tuple(_frame(names, frame) for frame in one.frames)) for one in stacks
    )
    return msgspec.structs.replace(row, **changes), without


def _finding(names: Names, one: FindingPart) -> FindingPart:
    return msgspec.structs.replace(
        one,
        statement=names.text(one.statement),
        lock_name=names.text(one.lock_name),
        title=names.text(one.title),
        blocker=_who(names, one.blocker),
        signature=names.code(one.signature),
        victim_of=names.code(one.victim_of),
    )


def _who(names: Names, blocker: str) -> str:
    """Name the thread; its function stays."""
    name, between, function = blocker.rpartition(_BEFORE_FUNCTION)
    return names.code(name) + between + _frame(names, function)


def _frame(names: Names, frame: str) -> str:
    """Keep a function; replace what a server says instead, and folders."""
    if frame.startswith("["):
        return names.text(frame)
    folder, slash, file = frame.rpartition("/")
    return names.code(file) if slash and folder else frame
