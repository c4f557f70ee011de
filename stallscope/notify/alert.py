# SPDX-License-Identifier: Apache-2.0
"""What is notified of one stall, and the words for it that all destinations share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from stallscope.base.text import clean, one_line
from stallscope.model.incident import Fired, Incident, TargetEntry, Verdict
from stallscope.notify.settings import Severity

__all__ = [
    "Alert",
    "Event",
    "body",
    "examples",
    "facts",
    "headline",
    "severity",
    "summary",
    "title",
]

Event = Literal["stall", "update", "end"]
"""``stall``: it began; ``update``: it became critical, or more is known, for destinations that keep
the alert; ``end``: it is over."""

_IN_LINES = frozenset(
    ("stall", "to end it", "which", "blocker", "statement", "what to do", "waiting", "confidence")
)
"""Facts that the first lines have."""
CRITICAL_SHARE = 0.5
"""Of the threads that have something to do."""
SERVERS_OWN = (
    "no-answer",
    "connections-used-up",
    "login-refused",
    "login-hang",
    "accept-queue",
    "galera-flow-control",
    "galera-not-primary",
    "group-no-majority",
)
"""Triggers that fire where the whole server stands still, or no client gets in."""


class Alert(msgspec.Struct, frozen=True):
    """One stall, as it is known now."""

    key: str
    """The same in all notifications of a stall, also after a restart of the agent: destinations
    recognize a repetition by it."""
    incident: Incident
    """Its latest incident: a stall of an hour has several."""
    host: str
    severity: Severity
    over: bool = False
    path: str | None = None
    """The incident's folder; None: it is not stored."""
    link: str | None = None
    """Where people can read more."""
    triggers: tuple[str, ...] = ()
    """All that fired in it: it is over when each of them is clear."""
    since_ns: int = 0
    """Wall clock when it began: a stall of an hour has several incidents."""
    end_ns: int | None = None
    """Wall clock when it was over."""
    first: Severity | None = None
    """With which this destination got it first; ``Delivery`` sets it."""


def severity(incident: Incident, critical_threads: int) -> Severity:
    """Return how bad it is, by its impact: a server that does not answer, half of the working
    threads, or so many threads, are critical.
    """
    verdict = incident.verdict
    if any(fired.trigger in SERVERS_OWN for fired in incident.triggers):
        return "critical"
    if verdict is None:
        return "warning"
    wide = verdict.share >= CRITICAL_SHARE and verdict.threads > 1
    return "critical" if wide or verdict.threads >= critical_threads else "warning"


def title(alert: Alert) -> str:
    """Return one line that names the stall and the server."""
    incident = alert.incident
    server = f"{incident.target.name} on {alert.host}"
    verdict = incident.verdict
    if verdict is not None:
        what = verdict.signature or "unknown stall"
        return one_line(f"{server}: {what}, {_threads(verdict.threads)}", 250)
    fired = incident.triggers[0].trigger if incident.triggers else "stall"
    return one_line(f"{server}: {fired}", 250)


def headline(event: Event, alert: Alert) -> str:
    """Return the title with what happened, for destinations that get another message of it."""
    return {"stall": "", "update": "now critical: ", "end": "over: "}[event] + title(alert)


def summary(alert: Alert) -> str:
    """Return one line that says what happens."""
    verdict = alert.incident.verdict
    if verdict is not None:
        return one_line(verdict.title, 500)
    fired = alert.incident.triggers
    return one_line(fired[0].why if fired else "no verdict", 500)


def facts(alert: Alert) -> list[tuple[str, str]]:
    """Return what to show of it in order: names and values, each one line."""
    incident, verdict = alert.incident, alert.incident.verdict
    fired = incident.triggers[0] if incident.triggers else None
    event = incident.is_event
    found: list[tuple[str, str | None]] = [("event" if event else "stall", summary(alert))]
    if verdict is not None:
        found += [
            ("to end it", verdict.ending),
            ("which", verdict.effect),
            ("blocker", verdict.blocker),
            ("statement", verdict.statement),
            ("what to do", verdict.remedy),
            ("waiting", _threads(verdict.threads)),
            ("confidence", f"{verdict.confidence:.2f}"),
        ]
    elif event:
        pass  # nothing is captured of it
    elif alert.over or any(entry.analyzed for entry in incident.captures):
        found.append(("verdict", "none: its captures show no stall, or there are none"))
    else:
        found.append(("verdict", "not yet known"))
    if fired is not None and not event:
        found.append(("trigger", f"{fired.trigger}: {fired.why}"))
    end_ns = incident.end_ns if alert.end_ns is None else alert.end_ns
    if alert.over and end_ns is not None:
        seconds = max(0, end_ns - (alert.since_ns or incident.start_ns)) / 1e9
        found.append(("lasted", f"{seconds:.1f} s"))
    found.append(("incident", incident.id if alert.path is None else alert.path))
    found.append(("more", alert.link))
    return [(name, one_line(value, 600)) for name, value in found if value]


def body(alert: Alert) -> list[str]:
    """Return the message as lines: what ``snap`` prints of the stall, then the other facts."""
    verdict = alert.incident.verdict
    shown = [] if verdict is None or alert.over else [clean(line) for line in verdict.lines]
    known = facts(alert)
    if shown:
        known = [(name, text) for name, text in known if name not in _IN_LINES]
        shown.append("")
    return [*shown, *(f"{name}: {text}" for name, text in known)]


def examples() -> Iterator[tuple[Event, Alert, str]]:
    """Yield alerts to try a template with, and what each is: also one of which nothing is known."""
    bare = Incident("example", 0, TargetEntry(0, "EXAMPLE"))
    known = msgspec.structs.replace(
        bare,
        end_ns=1,
        triggers=(Fired("example", "an example", 0),),
        verdict=Verdict(
            "example", "An example", 1.0, 1, "a", "SELECT ?", "b", 1.0, "KILL 1;", "c", ("d",)
        ),
    )
    events: tuple[tuple[Event, bool], ...] = (("stall", False), ("update", False), ("end", True))
    for event, over in events:
        full = Alert("example", known, "EXAMPLE", "critical", over, "/example", "http://example/")
        yield event, full, "an alert of which all is known"
        empty = Alert("example", bare, "EXAMPLE", "warning", over)
        yield event, empty, "an alert without verdict, trigger, statement and path"


def _threads(count: int) -> str:
    return f"{count} thread{'' if count == 1 else 's'}"
