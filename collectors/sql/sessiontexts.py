# SPDX-License-Identifier: Apache-2.0
"""Texts of what sessions do and wait for, for people; statements are normalized."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from stallscope.base.text import one_line
from stallscope.model.sessions import LockWait, Session, Sessions
from stallscope.server.statements import Statement

__all__ = ["MAX_KINDS", "Normalize", "Texts", "lock_waits_text", "processlist_text"]

MAX_KINDS = 200
"""Lines of a processlist: connections that do the same are one."""
MAX_OWNERS = 50

Normalize = Callable[[str], Statement]


class Texts(msgspec.Struct, frozen=True):
    """``found``: text by name. ``missing``: what could not be read, a sentence each."""

    found: dict[str, str]
    missing: tuple[str, ...] = ()


def processlist_text(
    counts: Counter[tuple[str, str, str]],
    longest: dict[tuple[str, str, str], int],
    normalize: Normalize,
) -> str:
    """Return a table of connections that do the same.

    Keys: command, state, statement as the server cuts it (100 characters); ``longest`` in seconds.
    """
    same: Counter[tuple[str, str, str]] = Counter()
    lasted: dict[tuple[str, str, str], int] = {}
    left_out = 0
    # Those that run before those that sleep; a storm of different statements is read in part.
    for number, (key, count) in enumerate(_by_weight(counts)):
        command, state, sql = key
        if number >= 10 * MAX_KINDS:
            left_out += count
            continue
        shown = (one_line(command, 40), one_line(state, 80), normalize(sql).text if sql else "")
        same[shown] += count
        lasted[shown] = max(lasted.get(shown, 0), longest.get(key, 0))
    rows = _by_weight(same)
    left_out += sum(count for _, count in rows[MAX_KINDS:])
    lines = ["connections  longest s  command  state: statement"]
    for (command, state, sql), count in rows[:MAX_KINDS]:
        what = f"{command:<8} {state or '-'}: {one_line(sql, 300) or '-'}"
        lines.append(f"{count:11}  {lasted[command, state, sql]:9}  {what}")
    if left_out:
        lines.append(f"{left_out:11}  others")
    return "\n".join(lines) + "\n"


def _by_weight(
    counts: Counter[tuple[str, str, str]],
) -> list[tuple[tuple[str, str, str], int]]:
    return sorted(counts.items(), key=lambda item: (item[0][0] == "Sleep", -item[1], item[0]))


def lock_waits_text(known: Sessions, normalize: Normalize) -> str:
    """Return who holds what, and how many wait for it, largest queue first."""
    queues: dict[int, list[LockWait]] = {}
    for wait in known.waits:
        queues.setdefault(wait.owner, []).append(wait)
    sessions = {session.connection: session for session in known.sessions}
    lines = ["no connection is known to wait for a lock of another"]
    if queues:
        lines = [f"{len(known.waits)} connections wait for locks of {len(queues)} others"]
    for owner in sorted(queues, key=lambda owner: (-len(queues[owner]), owner))[:MAX_OWNERS]:
        lines.append(f"connection {owner}{_doing(sessions.get(owner), normalize)}")
        kinds = Counter((w.kind.value, w.mode, w.name) for w in queues[owner])
        for (kind, mode, name), count in kinds.most_common(MAX_OWNERS):
            wanted = f" ({mode})" if mode else ""
            lines.append(f"  {count} wait for its {kind} lock{wanted} of {name or 'unknown'}")
    if len(queues) > MAX_OWNERS:
        lines.append(f"{len(queues) - MAX_OWNERS} more holders")
    return "\n".join([*lines, *(one_line(note) for note in known.notes)]) + "\n"


def _doing(session: Session | None, normalize: Normalize) -> str:
    if session is None:
        return ""
    state = f", {session.state}" if session.state else ""
    seconds = "" if session.seconds is None else f" for {session.seconds:.0f} s"
    sql = f": {normalize(session.statement).text}" if session.statement else ""
    return f" of {session.user or 'unknown'}, {session.command or 'unknown'}{seconds}{state}{sql}"
