# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML file that loads nothing and executes no foreign script.

Texts of the target are data in it, never markup: Jinja2 escapes them, and for the script they are
JSON without a character that could end its element. Its content security policy allows exactly one
script and one style sheet, by their hashes, and no loading.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from stallscope.analyzers import subsystems
from stallscope.analyzers.analysis import Analysis
from stallscope.analyzers.diff import Change, Diff, Side, diff
from stallscope.analyzers.series import Sample as SeriesSample
from stallscope.analyzers.series import sample
from stallscope.base import package
from stallscope.model.incident import Incident
from stallscope.model.samples import Sample
from stallscope.model.waitlines import Notice, WaitLine
from stallscope.reporters.html import histograms, timeline, waitgraph
from stallscope.reporters.html.assets import Assets
from stallscope.reporters.html.pack import Entry, Packer, shown
from stallscope.reporters.html.view import GroupView, View, groups, utc, view
from stallscope.reporters.lines import short_name
from stallscope.reporters.samplelines import TITLES
from stallscope.reporters.sentence import Speaker

__all__ = ["COLUMNS", "Builder", "embedded", "environment", "hash_source", "policy"]

TEMPLATES = Path(__file__).resolve().parent / "templates"
MAX_CHANGES = 12
STATIC_ROWS = 200
"""The most threads in the table before the script fills it."""
MAX_CELL = 200
COLUMNS = (
    ("tid", "Thread", True),
    ("connection", "Connection", True),
    ("status", "State", False),
    ("lock", "Waits for", False),
    ("place", "Where", False),
    ("query", "Statement", False),
    ("user", "User, database", False),
    ("doing", "Server state", False),
    ("waited", "Waited, ms", True),
    ("name", "Name", False),
    ("label", "Stack", False),
)
"""Key, heading, whether it is a number."""


class Builder:
    """Takes analyses one after the other, keeps their shown data, and makes the page."""

    def __init__(self, *, compare: bool = False) -> None:
        self._subsystems = subsystems.load()
        self._packer = Packer(self._subsystems)
        self._views: list[View] = []
        self._compare = compare
        self._sides: dict[str, list[SeriesSample]] = {"before": [], "after": []}
        self._wanted: str | None = None
        self._best: tuple[Any, ...] = ()
        self._main = 0
        self._groups: tuple[GroupView, ...] = ()
        self._server = ""
        self._incident: Incident | None = None
        self._window: timeline.Window = None
        self._tables: list[dict[str, Any]] = []
        self._lines: Sequence[WaitLine | Notice] = ()
        self._files: dict[int, str] = {}
        self._notes: list[str] = []

    @property
    def main(self) -> View:
        """Return the capture that is shown first: that of the verdict with the highest
        confidence."""
        return self._views[self._main]

    def __len__(self) -> int:
        return len(self._views)

    def incident(self, incident: Incident, samples: Sequence[Sample]) -> None:
        """Set the incident of the following captures."""
        self._incident = incident
        self._wanted = incident.verdict.signature if incident.verdict is not None else None
        last = max((sample.time_ns for sample in samples), default=incident.start_ns)
        self._window = (incident.start_ns, incident.end_ns or last)
        self._tables = timeline.build(samples, incident.triggers, self._window)

    def waits(self, lines: Sequence[WaitLine | Notice]) -> None:
        """Set the lines of waits, before the captures that they belong to."""
        self._lines = lines
        self._files = histograms.files(lines)

    def note(self, text: str) -> None:
        """Add something that could not be read."""
        self._notes.append(shown(text))

    def add(self, analysis: Analysis, entry: Entry) -> None:
        """Add one capture."""
        number = len(self._views)
        item = view(analysis, entry, number, self._subsystems, self._files)
        self._views.append(item)
        self._packer.add(analysis, entry, item.verdict, self._files)
        if entry.reason in self._sides and self._compare:
            self._sides[entry.reason].append(sample(analysis, entry.label))
        rank = (
            entry.reason == "after",
            item.stall and item.signature == (self._wanted or item.signature),
            item.stall,
            item.confidence,
            item.threads,
        )
        if not self._best or rank > self._best:
            self._best, self._main = rank, number
            self._groups = groups(analysis, self._subsystems)
            self._server = shown(Speaker(analysis).server())

    def render(self, assets: Assets) -> bytes:
        """Return the page. There is at least one capture."""
        value = self._packer.value()
        value["kind"] = self._kind()
        value["main"] = self._main
        value["columns"] = [key for key, _, _ in COLUMNS]
        value["timeline"] = [*self._threads(), *self._tables]
        value["titles"] = TITLES
        value["window"] = None if self._window is None else [ns // 10**6 for ns in self._window]
        fired = self._incident.triggers if self._incident is not None else ()
        value["fired"] = timeline.marks(fired)
        graph = value["captures"][self._main]["graph"]
        keys, other_keys = histograms.keys(self._lines)
        page = (
            environment()
            .get_template("report.html.j2")
            .render(
                assets=assets,
                columns=COLUMNS,
                compare=self._changes() if self._compare else None,
                data=embedded(value),
                groups=self._groups,
                heading=self._heading(),
                histograms=histograms.build(self._lines),
                incident=None if self._incident is None else _incident(self._incident),
                keys=keys,
                other_keys=other_keys,
                main=self.main,
                notes=[*self._notes, *self._left_out()],
                policy=policy(assets),
                moments=sum(len(capture["moments"]) for capture in value["captures"]),
                sampled=any(m["ran"] for capture in value["captures"] for m in capture["moments"]),
                rows=_rows(value, self._main),
                title=shown(f"stallscope: {self.main.headline}", 120),
                tree=list(waitgraph.walk(graph)),
                version=package.version(),
                views=self._views,
            )
        )
        return page.encode("utf-8", "backslashreplace")

    def _left_out(self) -> list[str]:
        left = self._packer.moments_left_out
        what = "captures of bursts in the flame graph over time: the page would be too large"
        return [f"{left} {what}"] if left else []

    def _threads(self) -> list[dict[str, Any]]:
        lines = (line for line in self._lines if isinstance(line, WaitLine))
        return timeline.threads((s for line in lines for s in line.history), self._window)

    def _kind(self) -> str:
        if self._incident is not None:
            return "incident"
        return "compare" if self._compare else "captures"

    def _heading(self) -> str:
        host = self._incident.target.host if self._incident is not None else None
        return f"{self._server} on {shown(host)}" if host else self._server

    def _changes(self) -> dict[str, Any]:
        before, after = self._sides["before"], self._sides["after"]
        found = diff(before, after)
        return {
            "sentence": _sentence(found),
            "sides": [_side("before", found.before), _side("after", found.after)],
            "parts": [
                _part(name, changes)
                for name, changes in (
                    ("New", found.new),
                    ("More threads", found.more),
                    ("Fewer threads", found.fewer),
                    ("Gone", found.gone),
                )
            ],
        }


def environment() -> jinja2.Environment:
    """Return where the templates of pages are, with texts escaped."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def embedded(value: Any) -> str:
    """Return JSON in which no text can end the HTML element."""
    data = msgspec.json.encode(value)
    for raw, escaped in (
        (b"<", b"\\u003c"),
        (b">", b"\\u003e"),
        (b"&", b"\\u0026"),
        ("\u2028".encode(), b"\\u2028"),
        ("\u2029".encode(), b"\\u2029"),
    ):
        data = data.replace(raw, escaped)
    return data.decode("utf-8")


def hash_source(text: str) -> str:
    """Return what names a script or a style in a content security policy."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def policy(assets: Assets) -> str:
    """Return the content security policy of a page with these assets."""
    return (
        f"default-src 'none'; script-src {hash_source(assets.script)};"
        f" style-src {hash_source(assets.style)};"
        " base-uri 'none'; form-action 'none'; require-trusted-types-for 'script';"
        " trusted-types 'none'"
    )


def _incident(incident: Incident) -> dict[str, Any]:
    unseen = " until it was no longer recorded" if incident.is_unfinished else ""
    if incident.end_ns is not None:
        lasted = f"{max(0, incident.end_ns - incident.start_ns) / 1e9:.1f} s"
    else:
        lasted = "unknown: the agent ended before the recovery"
    return {
        "id": shown(incident.id),
        "start": utc(incident.start_ns),
        "lasted": lasted + (" (interrupted)" if incident.interrupted else unseen),
        "suppressed": incident.suppressed,
        "fired": [
            {"name": shown(item.trigger), "why": shown(item.why), "at": utc(item.time_ns)}
            for item in incident.triggers[:20]
        ],
    }


def _rows(value: dict[str, Any], number: int) -> list[list[str]]:
    """Return the first threads of the table, those that are not idle first, as its script does."""
    capture, texts = value["captures"][number], value["texts"]
    order = {"waiting": 0, "running": 1, "idle": 2}
    rows = []
    for index, (who, what) in enumerate(zip(capture["who"], capture["what"], strict=True)):
        tid, name, connection, user, database = value["who"][who]
        status, _, _, _, label, unwind, lock, _, doing, query, place, _ = value["what"][what]
        waited = capture.get("waited", ())
        rows.append(
            [
                str(tid),
                "" if connection is None else str(connection),
                texts[status],
                texts[lock],
                texts[place],
                texts[query],
                ", ".join(filter(None, (texts[user], texts[database]))),
                texts[doing],
                "" if not waited or waited[index] is None else str(waited[index]),
                texts[name],
                texts[label] + (f", {texts[unwind]}" if unwind else ""),
            ]
        )
    rows.sort(key=lambda row: order.get(row[2], 3))
    return [[_cut(cell) for cell in row] for row in rows[:STATIC_ROWS]]


def _cut(cell: str) -> str:
    """Return a text cut for a cell: many long words take a browser minutes to lay out."""
    return cell if len(cell) <= MAX_CELL else f"{cell[:MAX_CELL]}…"


def _sentence(found: Diff) -> str:
    """Return the state of the server in one sentence."""
    before, after = _verdicts(found.before), _verdicts(found.after)
    moved = f"{found.before.active:g} active threads before, {found.after.active:g} after"
    return f"Before: {before}. After: {after}. Per capture: {moved}."


def _verdicts(side: Side) -> str:
    parts = [f"{signature or 'an unknown stall'} ({count})" for signature, count in side.verdicts]
    if side.quiet:
        parts.append(f"no stall ({side.quiet})")
    return shown(", ".join(parts))


def _side(name: str, side: Side) -> dict[str, Any]:
    return {
        "name": name,
        "samples": side.samples,
        "threads": f"{side.threads:g}",
        "active": f"{side.active:g}",
        "verdicts": _verdicts(side),
    }


def _part(name: str, changes: Sequence[Change]) -> dict[str, Any]:
    return {
        "name": name,
        "more": max(0, len(changes) - MAX_CHANGES),
        "rows": [
            {
                "before": f"{item.before:g}",
                "after": f"{item.after:g}",
                "delta": item.delta,
                "frames": shown(" < ".join(short_name(frame) for frame in item.frames[:8])),
            }
            for item in changes[:MAX_CHANGES]
        ],
    }
