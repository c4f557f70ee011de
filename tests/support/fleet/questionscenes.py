# SPDX-License-Identifier: Apache-2.0
"""Rows of a small fleet, made from a seed: revisions, duplicates, nulls and hostile texts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from stallscope.fleet.likeness import shape_of
from stallscope.fleet.questions.asked import Asked
from stallscope.fleet.tables import (
    TABLES,
    AgentRow,
    CapturePart,
    FindingPart,
    IncidentRow,
    Row,
    SamplePart,
    ThreadPart,
    WaitRow,
    day_of,
)

__all__ = ["ASKED", "DAY", "HOUR", "NOW", "Scene", "latest", "scene"]

NOW = 1_795_953_600_000  # 2026-11-29 12:00 UTC
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
ASKED = (
    Asked(NOW - DAY, NOW, limit=1000, version="9.7.4", against="9.7.3"),
    Asked(NOW - 35 * DAY, NOW, minutes=61.0, limit=1000, version="9.7.4", against="9.7.3"),
    Asked(NOW - 35 * DAY, NOW - DAY, limit=3, version="9.7.4", against="9.7.3"),
    Asked(NOW + DAY, NOW + 2 * DAY),
)
STAGE = 10**15
HOSTS = ("db1", "db2", "db3", "it's", "back\\slash", "{}", 'quo"te', "%s'; --", "dbü€", "db9")
VERSIONS = {
    "mysql": ("9.7.3", "9.7.4", "9.7.10", ""),
    "mariadb": ("10.6.9-MariaDB", "10.11.19-MariaDB"),
}
PROGRAMS = {"mysql": "mysqld", "mariadb": "mariadbd"}
SIGNATURES = ("none", "unknown", "innodb-redo", "metadata-lock", "it's", "a\\'b{0}", "brought")
STATEMENTS = ("", "UPDATE t SET a = ?", "SELECT 'it''s' \\ {} FROM `x`", "ALTER TABLE t ADD b INT")
LOCKS = ("", "lock_sys->latch", "shop.orders", "o'clock\\", "redo log")
REASONS = ("disk full", "it's \\too late", "suppressed {}")
FAMILIES = (
    ("do_command", "dispatch", "open_table", "wait_a", "wait_b"),
    ("do_command", "dispatch", "flush", "fsync_all", "os_fsync", "pfs'wait"),
    ("purge", "trx_sweep", "latch\\it"),
    ("srv_main", "ibuf", "x{}"),
)


class Scene(NamedTuple):
    """``rows``: all that was shipped, in this order."""

    rows: list[Row]

    def of(self, kind: type[Row]) -> list[Any]:
        """Return the rows of a table that count."""
        return latest([row for row in self.rows if type(row) is kind])


def latest(rows: Sequence[Row]) -> list[Row]:
    """Return of each key the row with the highest revision."""
    keys = {table.row: table.key for table in TABLES.values()}
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(getattr(row, one) for one in keys[type(row)])
        if key not in found or row.rev > found[key].rev:
            found[key] = row
    return list(found.values())


def scene(seed: int, incidents: int = 500) -> Scene:
    """Return a fleet. The first rows of some incidents say other things than the last."""
    rng = random.Random(seed)
    rows: list[Row] = []
    for number in range(incidents):
        start = _start(rng, number)
        made = _incident(rng, number, start)
        if rng.random() < 0.3:  # what it was before matches other conditions
            before = _incident(rng, number, start, uid=made.uid, is_open=True, rev=start + 100)
            rows.append(before)
        rows.append(made)
        if rng.random() < 0.1:
            rows.append(made)
    rows += [row for host in HOSTS[:-2] for row in _agents(rng, host)]
    rows += _silent_agents(rng)
    rows += _waits(rng)
    rng.shuffle(rows)
    return Scene(rows)


def _start(rng: random.Random, number: int) -> int:
    edges = (NOW, NOW - 1, NOW - DAY, NOW - DAY - 1, NOW - 31 * DAY, NOW - 31 * DAY - 1)
    if number < len(edges):
        return edges[number]
    chance = rng.random()
    if chance < 0.1:
        return NOW - rng.randrange(20 * MINUTE)
    if chance < 0.7:
        return NOW - rng.randrange(DAY)
    return NOW - rng.randrange(40 * DAY) + rng.randrange(HOUR)


def _incident(
    rng: random.Random,
    number: int,
    start: int,
    *,
    uid: str = "",
    is_open: bool | None = None,
    rev: int | None = None,
) -> IncidentRow:
    open_now = rng.random() < 0.12 if is_open is None else is_open
    interrupted = not open_now and rng.random() < 0.1
    milliseconds = rng.choice((1, 1500, 2000, rng.randrange(100_000)))
    known = not open_now and not interrupted
    host = HOSTS[number * 7 % len(HOSTS)]  # all revisions are of one host: so on one shard
    server = rng.choice(tuple(VERSIONS))
    version = rng.choice(VERSIONS[server])
    signature = rng.choice(SIGNATURES)
    if signature == "brought" and version in ("9.7.3", "10.6.9-MariaDB"):
        signature = "innodb-redo"
    if signature == "it's" and start >= NOW - DAY and rng.random() < 0.3:
        signature = "fresh"
    functions = _functions(rng) if signature == "unknown" and rng.random() < 0.9 else ()
    why = tuple(rng.sample(REASONS, rng.randrange(3)))
    blocked = rng.choice(STATEMENTS)
    return IncidentRow(
        day=day_of(start),
        rev=(start + 200_000 + (0 if open_now else STAGE)) if rev is None else rev,
        uid=uid or f"uid{number:05d}",
        id=f"incident {number}",
        host=host,
        program=PROGRAMS[server],
        server=server,
        version=version,
        pid=1000 + HOSTS.index(host),
        start_ms=start,
        end_ms=start + milliseconds if known else None,
        seconds=milliseconds / 1000 if known else None,
        is_open=open_now,
        interrupted=interrupted,
        signature=signature,
        title=f"title of {signature}",
        confidence=rng.random(),
        threads=rng.randrange(200),
        share=rng.random(),
        blocker=rng.choice(("", "connection", "pur'ge\\")),
        statement=blocked,
        lock_name=rng.choice(LOCKS),
        lock_kind=rng.choice(("mutex", "metadata", "")),
        ending="",
        remedy="",
        trigger_name="threads",
        why="",
        triggers=("threads",),
        detect_ms=rng.choice((None, rng.random() * 5000, 250.0)),
        captured=2,
        partial=0,
        lost=rng.choice((0, 0, 0, 1, 4)),
        lost_why=why,
        shape=shape_of(functions),
        shape_functions=functions,
        agent_version="1.0",
        captures=(CapturePart(start, "trigger", "threads", None, False, True, signature, ""),),
        findings=(
            FindingPart(
                *(signature, "title", "stall", 0.5, 3, 0.5, "", blocked, "", "", ""),
                waited_s=None,
            ),
        ),
        stalled=(ThreadPart("stack", 3, "waiting", "waiter"),),
        samples=(SamplePart("running", None, 3.0, None),),
    )


def _functions(rng: random.Random) -> tuple[str, ...]:
    family = rng.choice(FAMILIES)
    kept = [f"w:{one}" for one in family if rng.random() < 0.85]
    more = [f"b:{rng.choice('pqrs')}"] if rng.random() < 0.4 else []
    return tuple(sorted({*kept, *more}))


def _agent(host: str, seen: int, **more: Any) -> AgentRow:
    day_start = seen // DAY * DAY
    started = more.pop("started_ms", day_start - 5 * DAY)
    values: dict[str, Any] = {
        "day": day_of(seen),
        "rev": seen,
        "host": host,
        "program": "mysqld",
        "pid": 1000 + HOSTS.index(host),
        "server": "mysql",
        "version": "9.7.3",
        "agent_version": "1.0",
        "boot": "b",
        "started_ms": started,
        "seen_ms": seen,
        "watched_s": (seen - max(started, day_start)) / 1000,
        "every_s": 60.0,
        "state": "watching",
        "skew_ms": None,
        "waiting": 0,
        "dropped": 0,
        "why": "",
        "captures_lost": 0,
    }
    return AgentRow(**(values | more))


def _agents(rng: random.Random, host: str) -> list[Row]:
    rows: list[Row] = []
    for server, program in PROGRAMS.items():
        skew = rng.choice((None, 12.5, -3000.0, 8123.4, -61_000.0))
        for back in range(40):
            low = NOW // DAY * DAY - back * DAY
            if rng.random() < 0.1:
                continue
            seen = min(low + DAY - 1 - rng.randrange(MINUTE), NOW - rng.randrange(2 * MINUTE))
            one = {
                "program": program,
                "server": server,
                "version": VERSIONS[server][0 if back > 3 else rng.randrange(2)],
                "skew_ms": skew,
                "watched_s": round(rng.random() * (seen - low) / 1000, 3),
                "dropped": rng.choice((0, 0, 0, 17)),
                "why": rng.choice(("", "HTTP 500: it's \\ {}", "the spool is full")),
                "state": rng.choice(("watching", "watching", "waiting")),
            }
            rows.append(_agent(host, seen, started_ms=NOW - 60 * DAY, **one))
            old = one | {"watched_s": 1.0, "state": "ended", "dropped": 99}
            if rng.random() < 0.3:
                rows.append(_agent(host, seen - HOUR, started_ms=NOW - 60 * DAY, **old))
    return rows


def _silent_agents(rng: random.Random) -> list[Row]:
    """Return those of the last hosts: an agent that was killed, one that ended as it should, one
    whose server was started again, and one that died beside another."""
    gone = NOW - 3 * HOUR
    old = {"started_ms": NOW - 2 * DAY}
    killed, other = HOSTS[-2:]
    return [
        _agent(killed, gone, skew_ms=7000.5, **old),
        _agent(killed, gone, **old, pid=2, program="postgres", state="ended"),
        _agent(killed, gone - 5, **old, pid=3, program="mariadbd"),
        _agent(killed, NOW - 5, started_ms=gone, pid=4, program="mariadbd"),
        _agent(other, NOW - 10 * MINUTE - 1, **old, pid=5),
        _agent(other, NOW - 10 * MINUTE, **old, pid=6, program="mariadbd"),
        _agent(other, NOW - 30 * MINUTE, **old, pid=7, version="9.7.4", watched_s=12_345.678),
        _agent(other, NOW - rng.randrange(1000), **old, pid=8, version="9.7.4"),
        _agent(other, NOW - 40 * MINUTE, **old, pid=9, skew_ms=31 * MINUTE * 1.0),
        _agent(other, NOW - 3 * DAY, started_ms=NOW - 4 * DAY, pid=10, why="it's \\ gone"),
    ]


def _waits(rng: random.Random) -> list[Row]:
    rows: list[Row] = []
    for _ in range(300):
        minute = (NOW - rng.randrange(3 * DAY)) // MINUTE * MINUTE
        total = round(rng.random() * 1000, 3)
        host = rng.choice(HOSTS)
        one = WaitRow(
            day=day_of(minute),
            rev=minute + MINUTE,
            host=host,
            program="mysqld",
            pid=1000,
            minute_ms=minute,
            kind=rng.choice(("mutex", "fsync", "row-lock")),
            name=rng.choice(LOCKS[1:]),
            count=rng.randrange(1000),
            over=rng.randrange(10),
            total_ms=total,
            max_ms=round(total * rng.random(), 3),
        )
        rows.append(one)
    return rows
