# SPDX-License-Identifier: Apache-2.0
"""A fleet as one HTML file that loads nothing: which hosts stalled when, with what, and the
incidents behind each number."""

from __future__ import annotations

import datetime
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from stallscope.base import package
from stallscope.base.errors import UsageError
from stallscope.reporters import units
from stallscope.reporters.fleetcells import (
    COLUMNS,
    UNKNOWN,
    cell,
    heading,
    is_number,
    is_time,
    number_of,
    text_of,
)
from stallscope.reporters.html.assets import Assets
from stallscope.reporters.html.fleetheat import heat
from stallscope.reporters.html.page import embedded, environment, policy

__all__ = ["FleetAnswers", "Links", "Table", "render", "summary"]

_ROWS = 40
"""The most rows of a table, and groups of a list."""
_FIRST = 12
"""Rows of a table that are shown; the others can be opened."""
_LISTED = 20
_TEXT = 240
_LINK = re.compile(r"(?:https?://|(?![a-z][a-z0-9+.-]*:|//))[^\s<>\"'\\]{1,400}", re.I)


class Table(msgspec.Struct, frozen=True):
    """The answer to a question."""

    columns: tuple[str, ...]
    rows: list[dict[str, Any]]


class FleetAnswers(msgspec.Struct, frozen=True):
    """All that the page shows, as the engine has it. Times are ms since the epoch."""

    shown: str
    """The address of the engine, without user and password."""
    since_ms: int
    until_ms: int
    step_ms: int
    """Width of a column of the heat map."""
    totals: Mapping[str, Any]
    hosts: list[dict[str, Any]]
    cells: list[dict[str, Any]]
    all_cells: list[dict[str, Any]]
    by_signature: list[dict[str, Any]]
    by_host: list[dict[str, Any]]
    by_shape: list[dict[str, Any]]
    """These seven are as in fleet/questions/overview.py."""
    answers: Mapping[str, Table]
    """By the names of questions; one that is not there was not asked."""
    notes: tuple[str, ...] = ()


class Links:
    """Addresses of the incidents' own reports, from a template with ``{host}`` and ``{id}``."""

    def __init__(self, template: str = "", known: Mapping[str, str] | None = None) -> None:
        """``known``: files by the ids of incidents, before the template.

        Raises: UsageError.
        """
        if template and (
            _LINK.fullmatch(template) is None or "{id}" not in template or _extra(template)
        ):
            raise UsageError(
                "--reports takes an address or a path with {id}, and {host} where it is needed:"
                " 'http://{host}:9090/incidents/{id}/report' or 'reports/{id}.html'"
            )
        self._template = template
        self._known = known or {}

    def of(self, row: Mapping[str, Any]) -> str:
        """Return the address of an incident's report; empty: there is none."""
        name = text_of(row.get("id"))
        if name in self._known:
            return self._known[name]
        if not self._template:
            return ""
        quoted = {key: urllib.parse.quote(text_of(row.get(key)), safe="") for key in ("id", "host")}
        if not all(quoted.values()) or {".", ".."} & set(quoted.values()):
            return ""
        return self._template.replace("{id}", quoted["id"]).replace("{host}", quoted["host"])


def _extra(template: str) -> bool:
    rest = template.replace("{id}", "").replace("{host}", "")
    return "{" in rest or "}" in rest


class Listed(msgspec.Struct, frozen=True):
    """An incident in a list."""

    id: str
    host: str
    time: str
    lasted: str
    what: str
    blocker: str
    link: str
    at_ms: int


class Group(msgspec.Struct, frozen=True):
    """A signature, a host, or stalls that are alike, with its incidents."""

    anchor: str
    name: str
    about: str
    facts: tuple[tuple[str, str], ...]
    share: float
    """Width of its bar, of 100."""
    incidents: tuple[Listed, ...]
    count: int


class View(msgspec.Struct, frozen=True):
    """A table, ready to be shown."""

    anchor: str
    title: str
    short: str
    """In the list of sections; empty: it is not there."""
    about: str
    none: str
    heads: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[tuple[str, str], ...], ...]
    """Text, and its class: ``n`` a number, ``when`` a time, ``code``, or none."""
    more: int


_CODE = frozenset({"statement", "blocker", "signature", "lock_name", "name", "functions"})
_TABLES = (
    # question, in the list of sections, title, what it says, what is said where it is empty
    (
        "blockers",
        "Blockers",
        "Worst blockers",
        "What the holder of the lock ran, without literals, by victims times seconds.",
        "No blocker is known.",
    ),
    (
        "new",
        "",
        "New",
        "Seen in this time, and not in the 30 days before.",
        "No stall is new.",
    ),
    (
        "versions",
        "Versions",
        "Versions",
        "With which version of the server a stall was seen first.",
        "No version is known.",
    ),
    (
        "regressions",
        "",
        "Regressions",
        "More frequent with one version of the server than with the one before.",
        "No stall is more frequent with a version.",
    ),
    (
        "locks",
        "Locks",
        "Locks and files",
        "What was waited for longest.",
        "No waits are known.",
    ),
    (
        "rate",
        "",
        "Rates",
        "Stalls of a host in an hour in which its agent watches.",
        "No host had a stall.",
    ),
    (
        "detection",
        "",
        "Time to detect",
        "From the first breach of a threshold until the first capture was whole.",
        "No time is known.",
    ),
    (
        "silent",
        "Silent",
        "Silent agents",
        "They sent no sign of life lately: nothing is known of their hosts.",
        "No agent is silent.",
    ),
    (
        "lost",
        "",
        "Captures lost",
        "Captures that were wanted and not taken, rows that were dropped, and why.",
        "None was lost.",
    ),
)


def render(data: FleetAnswers, assets: Assets, links: Links) -> bytes:
    """Return the page."""
    host_anchor = {text_of(row.get("host")): f"host-{at}" for at, row in enumerate(data.hosts)}
    lists = _Lists(links)
    totals = data.totals
    heat_map = heat(data, host_anchor)
    value = {"schema": "stallscope.report/1", "kind": "fleet", "step": data.step_ms, "main": 0}
    now = data.answers.get("now")
    page = (
        environment()
        .get_template("fleet.html.j2")
        .render(
            assets=assets,
            data=embedded(value),
            facts=_facts(data),
            first_rows=_FIRST,
            headline=_headline(now),
            heat=heat_map,
            hosts=[
                Group(
                    host_anchor[text_of(row.get("host"))],
                    text_of(row.get("host"), _TEXT),
                    "",
                    _numbers(row, "incidents", "stalled"),
                    _share(row, data.hosts, "stalled"),
                    lists.of(data.by_host, "host", row),
                    int(number_of(row.get("incidents"))),
                )
                for row in data.hosts
            ],
            notes=[*(text_of(note) for note in data.notes), *_limits(totals)],
            now=None if now is None else _view("now", ("", "", "", ""), now),
            policy=policy(assets),
            range=f"{_utc(data.since_ms)} to {_utc(data.until_ms)} UTC",
            shown=text_of(data.shown, _TEXT),
            signatures=_groups(data, "signatures", "signature", data.by_signature, lists),
            simulated=_simulated(totals),
            stalls=_headline(now)[:2] != "No",
            tables=[
                _view(name, texts, data.answers[name])
                for name, *texts in _TABLES
                if name in data.answers
            ],
            unknown=_groups(data, "unknown", "shape", data.by_shape, lists),
            version=package.version(),
        )
    )
    return page.encode("utf-8", "backslashreplace")


def summary(data: FleetAnswers) -> str:
    """Return what the page shows, for one line."""
    now, totals = data.answers.get("now"), data.totals
    headline = _headline(now)
    counts = ", ".join(
        f"{_count(totals.get(key))} {key if totals.get(key) != 1 else key[:-1]}"
        for key in ("incidents", "hosts")
    )
    return f"{headline}, {counts}" + (" (simulated)" if totals.get("simulated") else "")


def _headline(now: Table | None) -> str:
    if now is None:
        return "The fleet"
    hosts = len({text_of(row.get("host")) for row in now.rows if row.get("state") == "open"})
    return f"{hosts or 'No'} {'hosts stall' if hosts > 1 else 'host stalls'} now"


def _facts(data: FleetAnswers) -> list[tuple[str, str]]:
    totals = data.totals
    silent = data.answers.get("silent")
    found = [
        ("Incidents", _count(totals.get("incidents"))),
        ("Hosts with one", _count(totals.get("hosts"))),
        ("Stalled in all", units.duration(number_of(totals.get("stalled")) * 1000)),
    ]
    if silent is not None:
        found.append(("Silent agents", _count(len(silent.rows))))
    return found


def _limits(totals: Mapping[str, Any]) -> Iterator[str]:
    unended = int(number_of(totals.get("unended")))
    if unended:
        what = "1 incident has" if unended == 1 else f"{_count(unended)} incidents have"
        yield f"{what} no known end: their time is in no sum"


def _simulated(totals: Mapping[str, Any]) -> str:
    simulated, all_of_them = (int(number_of(totals.get(k))) for k in ("simulated", "incidents"))
    if not simulated:
        return ""
    part = "All incidents here are" if simulated >= all_of_them else f"{simulated} incidents are"
    return f"{part} simulated: no real server stalled"


def _groups(
    data: FleetAnswers, question: str, key: str, rows: list[dict[str, Any]], lists: _Lists
) -> list[Group] | None:
    """Return the groups of a question; None: it was not asked."""
    answer = data.answers.get(question)
    if answer is None:
        return None
    columns = COLUMNS[question]
    year = f"{_utc(data.until_ms)[:4]}-"
    found = []
    for at, row in enumerate(answer.rows[:_ROWS]):
        name = text_of(row.get(columns[0]), _TEXT)
        long = (text_of(row.get(one), _TEXT) for one in ("title", "functions"))
        facts = tuple(
            (heading(column).lower(), _shown(column, row.get(column)).removeprefix(year))
            for column in columns[1:]
            if column != "functions" and row.get(column) not in (None, "")
        )
        found.append(
            Group(
                f"{question}-{at}",
                name or UNKNOWN,
                " · ".join(filter(None, long)),
                facts,
                _share(row, answer.rows, "stalled_s"),
                lists.of(rows, key, row),
                int(number_of(row.get("incidents"))),
            )
        )
    return found


class _Lists:
    """Incidents of groups, as they are shown."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._by: dict[tuple[int, str], dict[str, list[dict[str, Any]]]] = {}

    def of(
        self, rows: list[dict[str, Any]], key: str, group: Mapping[str, Any]
    ) -> tuple[Listed, ...]:
        """Return those of a group. ``key``: the column of both that says so; a group of several
        has a list of them, ``…s``."""
        by = self._by.get((id(rows), key))
        if by is None:
            by = self._by[id(rows), key] = {}
            for row in rows:
                by.setdefault(text_of(row.get(key)), []).append(row)
        several = group.get(f"{key}s")
        wanted = several if isinstance(several, list) else [group.get(key)]
        found = [row for one in wanted for row in by.get(text_of(one), ())]
        if len(wanted) > 1:
            found.sort(key=lambda row: -number_of(row.get("start_ms")))
        return tuple(self._listed(row) for row in found[:_LISTED])

    def _listed(self, row: Mapping[str, Any]) -> Listed:
        at_ms = int(number_of(row.get("start_ms")))
        seconds = row.get("seconds")
        lasted = "goes on" if number_of(row.get("is_open")) else UNKNOWN
        if seconds is not None:
            lasted = units.duration(number_of(seconds) * 1000)
        who = (text_of(row.get("blocker"), _TEXT), text_of(row.get("statement"), _TEXT))
        return Listed(
            text_of(row.get("id"), _TEXT),
            text_of(row.get("host"), _TEXT),
            _utc(at_ms, seconds=True),
            lasted,
            text_of(row.get("signature"), 80),
            ": ".join(filter(None, who)),
            self._links.of(row),
            at_ms,
        )


def _view(question: str, texts: Sequence[str], table: Table) -> View:
    """``texts``: short title, title, what it says, what is said where it is empty."""
    short, title, about, none = texts
    columns = COLUMNS.get(question, table.columns)
    return View(
        question,
        title,
        short,
        about,
        none,
        tuple((heading(column), is_number(column)) for column in columns),
        tuple(
            tuple((_shown(column, row.get(column)), _kind(column)) for column in columns)
            for row in table.rows[:_ROWS]
        ),
        max(0, len(table.rows) - _ROWS),
    )


def _kind(column: str) -> str:
    if column in _CODE:
        return "code"
    if is_time(column):
        return "when"
    return "n" if is_number(column) else ""


def _numbers(row: Mapping[str, Any], *columns: str) -> tuple[tuple[str, str], ...]:
    return tuple((heading(column).lower(), _shown(column, row.get(column))) for column in columns)


def _share(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], measure: str) -> float:
    most = max((number_of(one.get(measure)) for one in rows), default=0.0)
    return round(100 * max(0.0, number_of(row.get(measure))) / most, 1) if most > 0 else 0.0


def _shown(column: str, value: Any) -> str:
    return cell(column, value, lambda ns: _utc(ns // 10**6))[:_TEXT]


def _count(value: Any) -> str:
    return units.number(max(0, int(number_of(value))))


def _utc(ms: int, *, seconds: bool = False) -> str:
    """Return a time in UTC for people; empty where it is outside of the calendar."""
    try:
        time = datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return ""
    return f"{time:%Y-%m-%d %H:%M:%S}" if seconds else f"{time:%Y-%m-%d %H:%M}"
