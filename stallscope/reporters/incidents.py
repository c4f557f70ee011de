# SPDX-License-Identifier: Apache-2.0
"""The list of incidents, and one of them, for people and as ``stallscope.incidents/1``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stallscope.base.text import clean, one_line
from stallscope.base.times import local, rfc3339
from stallscope.model import threadhistory
from stallscope.model.capture import Note
from stallscope.model.incident import CaptureEntry, Incident, Verdict
from stallscope.model.samples import Sample
from stallscope.model.waitlines import ThreadSample
from stallscope.reporters import samplelines, threads, units
from stallscope.reporters.lines import Line, threads_text, wrap
from stallscope.store import StoredIncident, Summary, layout
from stallscope.store.records import encode

__all__ = ["SCHEMA", "Row", "dumps", "list_lines", "whole", "whole_dumps"]

SCHEMA = "stallscope.incidents/1"

_WIDE = 110
"""The least width of a list with triggers."""
_LEAST_VERDICT = 24
_ROWS_BEFORE = 8
_SHOWN = 200
"""The most triggers, captures and notes of one incident that are shown."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """One incident and where it is."""

    summary: Summary
    path: str


def dumps(rows: Sequence[Row]) -> str:
    """Return the list as one line of JSON."""
    return _json([_object(row) for row in rows])


def whole_dumps(
    row: Row,
    stored: StoredIncident,
    entries: Sequence[CaptureEntry],
    before: Sequence[ThreadSample] = (),
) -> str:
    """Return one incident in full as one line of JSON: the list of one, with more fields.

    ``before``: as in ``whole``.
    """
    more = {
        "triggers": stored.incident.triggers,
        "files": entries,
        "before": before,
        "notes": (*stored.incident.notes, *stored.notes),
    }
    return _json([{**_object(row), "captures": len(entries), **more}])


def _json(incidents: list[dict[str, Any]]) -> str:
    return encode({"schema": SCHEMA, "incidents": incidents}).decode()


def _object(row: Row) -> dict[str, Any]:
    summary = row.summary
    verdict = summary.verdict
    return {
        "id": summary.id,
        "start": rfc3339(summary.start_ns),
        "end": None if summary.end_ns is None else rfc3339(summary.end_ns),
        "state": _state(summary),
        "target": summary.target,
        "trigger": summary.trigger,
        "captures": summary.captures,
        "suppressed": summary.suppressed,
        "verdict": None if verdict is None else verdict.signature,
        "confidence": None if verdict is None else verdict.confidence,
        "title": None if verdict is None else verdict.title,
        "threads": None if verdict is None else verdict.threads,
        "blocker": None if verdict is None else verdict.blocker,
        "ending": None if verdict is None else verdict.ending,
        "effect": None if verdict is None else verdict.effect,
        "bytes": summary.bytes,
        "path": row.path,
    }


def _state(summary: Summary) -> str:
    if summary.going_on:
        return "ongoing"
    return "ended" if summary.end_ns is not None and not summary.interrupted else "interrupted"


def list_lines(dest: Path, rows: Sequence[Row], shown: int, width: int) -> Iterator[Line]:
    """Yield the list for people: the last ``shown`` of the rows, newest last."""
    size = units.size(sum(row.summary.bytes for row in rows))
    count = "1 incident" if len(rows) == 1 else f"{len(rows)} incidents"
    where = clean(str(dest))
    yield from wrap(f"{count}, {size}, in {where}", width, style="bold", whole=True)
    rows = rows[len(rows) - shown :]
    if not rows:
        return
    ids = max(2, *(len(row.summary.id) for row in rows))
    triggers = 18 if width >= _WIDE else 0
    left = width - ids - len("   LASTED  CAPTURES  ") - (triggers and triggers + 2)
    yield Line("")
    head = f"{'ID (time in UTC)':<{ids}}   LASTED  CAPTURES  "
    head += f"{'TRIGGER':<{triggers}}  " if triggers else ""
    yield Line((head + ("VERDICT" if left >= _LEAST_VERDICT else "")).rstrip(), "bold")
    for row in rows:
        yield from _row(row.summary, ids, triggers, left)


def _row(summary: Summary, ids: int, triggers: int, left: int) -> Iterator[Line]:
    text = f"{summary.id:<{ids}}  {_lasted(summary):>7}  {summary.captures:>8}  "
    if triggers:
        text += f"{one_line(summary.trigger or '-', triggers):<{triggers}}  "
    style = "yellow" if summary.going_on else ""
    verdict = _short(summary.verdict)
    if left >= _LEAST_VERDICT:
        yield Line(text + one_line(verdict, left), style)
    else:
        yield Line(text.rstrip(), style)
        yield Line(f"    {one_line(verdict, 74)}", style)


def _lasted(summary: Summary) -> str:
    if summary.going_on:
        return "ongoing"
    if summary.end_ns is None or summary.interrupted:
        return "interrupted"
    return units.duration(max(0, summary.end_ns - summary.start_ns) / 1e6)


def _short(verdict: Verdict | None) -> str:
    if verdict is None:
        return "-"
    return f"{verdict.signature or 'unknown stall'} {verdict.confidence:.2f}"


def whole(
    stored: StoredIncident,
    entries: Sequence[CaptureEntry],
    samples: Sequence[Sample],
    width: int,
    *,
    blocks: bool,
    before: Sequence[ThreadSample] = (),
) -> Iterator[Line]:
    """Yield one incident for people; ``entries`` and ``samples`` are those of the folder.

    ``before``: what threads did in the minute before it began.
    """
    incident = stored.incident
    yield Line(f"Incident {incident.id}", "bold")
    yield from wrap(str(stored.path), width, indent="  ", whole=True)
    yield from wrap(_target(incident), width, indent="  ")
    yield from wrap(_when(stored), width, indent="  ")
    yield Line("")
    yield from _verdict(incident, width)
    yield from _section("Timeline, in seconds from its start", _timeline(incident, entries, width))
    yield from _section(
        "Measured before, during and after",
        samplelines.lines(samples, incident.start_ns, incident.end_ns, width, blocks=blocks),
    )
    yield from _section("What threads did in the minute before", _before(before, width))
    yield from _section("Texts of the server", _texts(stored, width))
    yield from _section("Notes", _notes((*incident.notes, *stored.notes), width))


def _before(samples: Sequence[ThreadSample], width: int) -> Iterator[Line]:
    found = threadhistory.top(samples)
    active = [one for one in found if threadhistory.active(threadhistory.activity(one.row))]
    if not samples:
        return
    idle = sum(one.mean for one in found) - sum(one.mean for one in active)
    yield from threads.top_lines(active, len(samples), width, _ROWS_BEFORE)
    head = "and" if active else "no active thread;"
    yield Line(f"  {head} {idle:.0f} idle threads, on average of {len(samples)} samples", "dim")


def _section(title: str, body: Iterator[Line]) -> Iterator[Line]:
    lines = list(body)
    if lines:
        yield Line("")
        yield Line(title, "bold")
        yield from lines


def _target(incident: Incident) -> str:
    target = incident.target
    version = " ".join(filter(None, (target.server, target.version)))
    text = f"{target.name} {target.pid}" + (f" ({version})" if version else "")
    return text + (f" on {target.host}" if target.host else "")


def _when(stored: StoredIncident) -> str:
    incident = stored.incident
    text = f"started {local(incident.start_ns)}"
    if stored.going_on:
        return text + ", ongoing"
    if incident.end_ns is not None:
        lasted = units.duration(max(0, incident.end_ns - incident.start_ns) / 1e6)
        text += f", lasted {lasted}"
    if incident.interrupted or incident.end_ns is None:
        text += "; interrupted: the agent ended before the recovery"
    elif incident.is_unfinished:
        text += " until it was no longer recorded: its end was not seen"
    return text


def _verdict(incident: Incident, width: int) -> Iterator[Line]:
    verdict = incident.verdict
    if incident.is_event:
        fired = incident.triggers[0]
        yield from wrap(f"{fired.trigger}: {fired.why}", width, style="bold red")
        return
    if verdict is None:
        text = "No verdict: its captures show no stall, or none is analyzed yet"
        yield from wrap(text, width, style="bold")
        return
    yield from wrap(f"Verdict: {_short(verdict)}", width, style="bold red")
    if verdict.lines:
        for number, text in enumerate(verdict.lines):
            yield Line(clean(text)[:width], "" if number else "bold")
        return
    text = verdict.title
    if verdict.threads:
        text += f"; {threads_text(verdict.threads)}"
    yield from wrap(text, width, indent="  ")
    if verdict.blocker:
        yield from wrap(f"blocked by {verdict.blocker}", width, indent="  ", hang="    ")
    if verdict.ending:
        yield from wrap(f"to end it: {verdict.ending}", width, indent="  ", hang="    ")
    if verdict.effect:
        yield from wrap(verdict.effect, width, indent="    ")
    if verdict.remedy:
        yield from wrap(f"what to do: {verdict.remedy}", width, indent="  ", hang="    ")


def _timeline(incident: Incident, entries: Sequence[CaptureEntry], width: int) -> Iterator[Line]:
    events = [
        (fired.time_ns, f"trigger {fired.trigger}: {fired.why}")
        for fired in incident.triggers[:_SHOWN]
    ]
    reported: set[str] = set()
    events += [(entry.time_ns, _capture(entry, reported)) for entry in entries[:_SHOWN]]
    if incident.end_ns is not None and not incident.is_unfinished:
        events.append((incident.end_ns, "over"))
    for time_ns, text in sorted(events):
        offset = max(-(10**9), min((time_ns - incident.start_ns) / 1e9, 10**9))
        yield from wrap(text, width, indent=f"{offset:+11.3f}  ", hang=" " * 13)
    left_out = max(0, len(incident.triggers) - _SHOWN) + max(0, len(entries) - _SHOWN)
    if left_out:
        yield Line(f"  {left_out} more are not shown; --json has them")
    if incident.suppressed:
        text = f"{incident.suppressed} captures were skipped (suppressed)"
        yield from wrap(text, width, indent="  ")


def _capture(entry: CaptureEntry, reported: set[str]) -> str:
    """Describe a capture; ``reported`` has the reasons that were printed already."""
    text = f"{entry.file} ({entry.reason}): "
    text += "not analyzed" if not entry.analyzed else "no stall"
    if entry.verdict is not None:
        text = f"{entry.file} ({entry.reason}): {_short(entry.verdict)}"
    if entry.breach_to_done_ms is not None:
        text += f", complete {units.duration(max(0.0, entry.breach_to_done_ms))} after the breach"
    if entry.partial:
        text += ", partial"
    if entry.sessions is not None:
        text += "; without connections"
        text += "" if entry.sessions in reported else f": {entry.sessions}"
        reported.add(entry.sessions)
    return text


def _texts(stored: StoredIncident, width: int) -> Iterator[Line]:
    names = ", ".join(f"{layout.TEXTS}/{name}.txt" for name in stored.texts())
    if names:
        yield from wrap(names, width, indent="  ")


def _notes(notes: Sequence[Note], width: int) -> Iterator[Line]:
    for note in notes[:_SHOWN]:
        yield from wrap(f"{note.code}: {note.message}", width, indent="  ", hang="    ")
    if len(notes) > _SHOWN:
        yield Line(f"  {len(notes) - _SHOWN} more are not shown; --json has them")
