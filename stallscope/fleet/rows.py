# SPDX-License-Identifier: Apache-2.0
"""From an incident to its rows; a pure function, for agents and for stores."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stallscope.base import package
from stallscope.fleet import clip
from stallscope.fleet.condense import condense
from stallscope.fleet.facts import Facts, NamedStack, bounded
from stallscope.fleet.redacting import redacted
from stallscope.fleet.tables import CapturePart, FindingPart, IncidentRow, Row, StackRow, day_of
from stallscope.model.incident import NONE, CaptureEntry, Incident, Verdict, verdict_name
from stallscope.model.samples import Sample

__all__ = ["rows_of", "uid_of"]

MAX_CAPTURES = 100
MAX_TRIGGERS = 100
MAX_WHY = 20
_MAX_MADE = 10**15 - 1
_LOST = frozenset(("not-captured", "capture-lost", "suppressed", "suppressed-by-probe"))
"""Codes of notes about captures that were not taken."""
_FAILED = frozenset(("not-captured", "capture-lost"))
_SKIPPED = re.compile(r"(\d{1,9}) captures were skipped")


def rows_of(
    incident: Incident,
    facts: Facts | None,
    samples: Sequence[Sample] = (),
    *,
    made_ms: int,
    host: str = "",
    redact: bool = False,
) -> list[Row]:
    """Return the rows of an incident: one of ``incidents``, and its stacks.

    ``facts``: None where nothing was analyzed (yet). ``samples``: empty where they are not read
    yet. ``made_ms``: now; part of the revision. ``host``: its name in the fleet, where that is not
    its own. ``redact``: replace names too.
    """
    known = Facts() if facts is None else bounded(facts)
    row = _incident(incident, known, samples, made_ms, host)
    stacks = known.stacks
    if redact:
        row, stacks = redacted(row, stacks)
    return [row, *(_stack(one, row) for one in stacks)]


def uid_of(incident: Incident) -> str:
    """Return the key of an incident: agent and store make the same."""
    origin = incident.origin
    host, boot = (incident.target.host or "", "") if origin is None else (origin.host, origin.boot)
    return clip.digest((host, boot, incident.id), 32)


def _stack(stack: NamedStack, row: IncidentRow) -> StackRow:
    return StackRow(
        day=row.day, rev=row.rev, hash=stack.hash, server=row.server, frames=stack.frames
    )


def _incident(
    incident: Incident, facts: Facts, samples: Sequence[Sample], made_ms: int, host: str
) -> IncidentRow:
    start_ms = clip.milliseconds(incident.start_ns)
    end_ns = incident.end_ns
    is_open = end_ns is None and not incident.interrupted
    main = _main(incident.verdict, facts)
    ending, remedy = _advice(incident.verdict, main)
    lost, lost_why = _lost(incident)
    first = incident.triggers[0] if incident.triggers else None
    target = incident.target
    return IncidentRow(
        day=day_of(start_ms),
        rev=(0 if is_open else 10**15) + clip.integer(made_ms, _MAX_MADE),
        uid=uid_of(incident),
        id=clip.text(incident.id),
        host=clip.text(host or _host(incident)),
        program=clip.text(target.name, 100),
        server=clip.text(facts.server or target.server, 40),
        version=clip.text(facts.version or target.version, 100),
        pid=clip.integer(target.pid),
        start_ms=start_ms,
        end_ms=None if end_ns is None else clip.milliseconds(end_ns),
        seconds=None
        if end_ns is None
        else clip.number(max(0, end_ns - incident.start_ns) / 1e9, 3),
        is_open=is_open,
        interrupted=incident.is_unfinished,
        signature=main.signature,
        title=main.title,
        confidence=main.confidence,
        threads=main.threads,
        share=main.share,
        blocker=main.blocker,
        statement=main.statement,
        lock_name=facts.lock_name,
        lock_kind=facts.lock_kind,
        ending=ending,
        remedy=remedy,
        trigger_name="" if first is None else clip.text(first.trigger, 100),
        why="" if first is None else clip.text(first.why, 300),
        triggers=tuple(
            dict.fromkeys(clip.text(one.trigger, 100) for one in incident.triggers[:MAX_TRIGGERS])
        ),
        detect_ms=_detect_ms(incident),
        captured=len(incident.captures),
        partial=sum(one.partial for one in incident.captures),
        lost=lost,
        lost_why=lost_why,
        shape=facts.shape,
        shape_functions=facts.shape_functions,
        agent_version=clip.text(package.version(), 100),
        captures=tuple(map(_capture, incident.captures[:MAX_CAPTURES])),
        findings=facts.findings,
        stalled=facts.stalled,
        samples=condense(samples, incident.start_ns, end_ns, incident.triggers),
    )


def _host(incident: Incident) -> str:
    origin = incident.origin
    return incident.target.host or ("" if origin is None else origin.host)


def _main(verdict: Verdict | None, facts: Facts) -> FindingPart:
    """Return what the incident is: of the analysis, else of the verdict that it has."""
    if facts.findings:
        return facts.findings[0]
    found = Verdict(None, "", 0.0) if verdict is None else verdict
    return FindingPart(
        signature=clip.text(verdict_name(verdict), 100),
        title=clip.text(found.title),
        kind="",
        confidence=clip.number(found.confidence, 3),
        threads=clip.integer(found.threads),
        share=clip.number(found.share, 3),
        blocker=clip.unquoted(found.blocker),
        statement=clip.statement(found.statement),
        lock_name="",
        lock_kind="",
        victim_of="",
        waited_s=None,
    )


def _advice(verdict: Verdict | None, main: FindingPart) -> tuple[str, str]:
    """Return the ending and the remedy; none where the analysis says that it is something else."""
    if verdict is None or verdict_name(verdict) != main.signature:
        return "", ""
    return clip.text(verdict.ending, 500), clip.text(verdict.remedy, 300)


def _lost(incident: Incident) -> tuple[int, tuple[str, ...]]:
    """Return how many captures were wanted and not taken, and why."""
    notes = [note for note in incident.notes if note.code in _LOST]
    lost = incident.suppressed
    for note in notes:
        skipped = _SKIPPED.match(note.message)
        if note.code in _FAILED:
            lost += 1
        elif note.code == "suppressed-by-probe" and skipped is not None:
            lost += int(skipped[1])
    why = dict.fromkeys(clip.unquoted(note.message) for note in notes)
    return clip.integer(lost), tuple(list(filter(None, why))[:MAX_WHY])


def _detect_ms(incident: Incident) -> float | None:
    """Return how long after the first breach the first capture was whole."""
    taken = [one for one in incident.captures if one.breach_to_done_ms is not None]
    if not taken or not incident.triggers:
        return None
    entry = min(taken, key=lambda one: one.time_ns)
    if entry is not min(incident.captures, key=lambda one: one.time_ns):
        return None
    breach_ns = first_ns = incident.triggers[0].time_ns
    for fired in incident.triggers:
        if fired.trigger == entry.trigger:
            breach_ns = fired.time_ns
            break
    later_ms = max(0, breach_ns - first_ns) / 1e6
    return clip.number_or_none(later_ms + (entry.breach_to_done_ms or 0.0), 3)


def _capture(entry: CaptureEntry) -> CapturePart:
    return CapturePart(
        time_ms=clip.milliseconds(entry.time_ns),
        reason=clip.text(entry.reason, 20),
        trigger_name=clip.text(entry.trigger, 100),
        detect_ms=clip.number_or_none(entry.breach_to_done_ms, 3),
        partial=entry.partial,
        analyzed=entry.analyzed,
        signature=clip.text(verdict_name(entry.verdict) if entry.analyzed else NONE, 100),
        sessions=clip.unquoted(entry.sessions),
    )
