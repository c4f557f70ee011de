# SPDX-License-Identifier: Apache-2.0
"""What a fleet answers, calculated in Python from its rows, without SQL."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from stallscope.fleet import likeness
from stallscope.fleet.questions.asked import Asked
from stallscope.fleet.tables import AgentRow, IncidentRow, WaitRow
from tests.support.fleet.questionscenes import DAY, HOUR, Scene

__all__ = ["ANSWERS"]

Rows = list[dict[str, Any]]


def _ms(seconds: float | None) -> int:
    return 0 if seconds is None else math.floor(seconds * 1000 + 0.5)


def _total(found: Iterable[IncidentRow]) -> float:
    return sum(_ms(one.seconds) for one in found) / 1000


def _victims(found: Iterable[IncidentRow]) -> float:
    return sum(one.threads * _ms(one.seconds) for one in found) / 1000


def _worst(found: Iterable[IncidentRow]) -> float:
    return max(_ms(one.seconds) for one in found) / 1000


def _hosts(found: Iterable[IncidentRow | WaitRow]) -> int:
    return len({one.host for one in found})


def _span(found: Sequence[IncidentRow]) -> dict[str, int]:
    starts = [one.start_ms for one in found]
    return {"first_ms": min(starts), "last_ms": max(starts)}


def _version(text: str) -> list[tuple[int, int | str]]:
    """Return a key: 9.7.10 is after 9.7.4."""
    found: list[tuple[int, int | str]] = []
    word = ""
    for char in [*text, None]:
        if word and (char is None or char.isdigit() != word[-1].isdigit()):
            found.append((1, int(word)) if word.isdigit() else (0, word))
            word = ""
        word += char or ""
    return found


def _during(scene: Scene, asked: Asked, back: int = 0) -> list[IncidentRow]:
    return [
        one
        for one in scene.of(IncidentRow)
        if asked.since_ms - back <= one.start_ms < asked.until_ms
    ]


def _by(found: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    grouped = defaultdict(list)
    for one in found:
        grouped[key(one)].append(one)
    return grouped


def _groups(found: Iterable[IncidentRow]) -> list[likeness.Group]:
    shapes = []
    unknown = [one for one in found if one.signature == "unknown" and one.shape]
    for shape, each in _by(unknown, lambda one: one.shape).items():
        first = min(each, key=lambda one: (one.start_ms, _version(one.version)))
        shapes.append(
            likeness.Shape(
                shape=shape,
                functions=each[0].shape_functions,
                first_ms=first.start_ms,
                last_ms=max(one.start_ms for one in each),
                version=first.version,
            )
        )
    return likeness.group(shapes)


def _kinds(found: Iterable[IncidentRow]) -> Callable[[IncidentRow], str]:
    names = {one.shape: group.name for group in _groups(found) for one in group.shapes}

    def kind(one: IncidentRow) -> str:
        return names.get(one.shape, "unknown") if one.signature == "unknown" else one.signature

    return kind


def _watched(scene: Scene, since: int, until: int, key: Callable[[AgentRow], Any]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for one in scene.of(AgentRow):
        begin = max(one.started_ms, one.seen_ms // DAY * DAY)
        overlap = min(one.seen_ms, until) - max(begin, since)
        if overlap > 0:
            part = Fraction(overlap, one.seen_ms - begin)
            found[key(one)] += math.floor(_ms(one.watched_s) * part)
    return found


def now(scene: Scene, asked: Asked) -> Rows:
    seen: dict[Any, int] = {}
    for agent in scene.of(AgentRow):
        if asked.since_ms // DAY <= agent.seen_ms // DAY <= asked.until_ms // DAY:
            key = (agent.host, agent.program, agent.pid)
            at = agent.seen_ms + math.floor((agent.skew_ms or 0) + 0.5)
            seen[key] = max(seen.get(key, 0), at)
    found: list[tuple[IncidentRow, str, int, int | None]] = []
    for one in sorted(_during(scene, asked), key=lambda one: (one.start_ms, one.uid)):
        at = seen.get((one.host, one.program, one.pid), 0)
        open_then = one.is_open or (one.end_ms or 0) > asked.until_ms
        if open_then and at >= asked.until_ms - asked.minutes * 60_000:
            found.append((one, "open", asked.until_ms, None))
        elif not open_then and one.end_ms and one.end_ms >= asked.until_ms - 120_000:
            found.append((one, "ended", one.end_ms, one.end_ms))
    found.sort(key=lambda each: (each[1] == "ended", -each[0].threads))
    return [
        {
            "host": one.host,
            "state": state,
            "lasted_s": (end - one.start_ms) / 1000,
            "signature": one.signature,
            "threads": one.threads,
            "share": round(one.share, 4),
            "blocker": one.blocker,
            "statement": one.statement,
            "lock_name": one.lock_name,
            "title": one.title,
            "program": one.program,
            "pid": one.pid,
            "server": one.server,
            "version": one.version,
            "start_ms": one.start_ms,
            "end_ms": ended,
            "seen_ms": seen.get((one.host, one.program, one.pid)),
            "id": one.id,
            "uid": one.uid,
        }
        for one, state, end, ended in found
    ]


def signatures(scene: Scene, asked: Asked) -> Rows:
    found = _during(scene, asked)
    rows = []
    step = round(asked.minutes * 60_000)
    for signature, each in _by(found, lambda one: one.signature).items():
        windows = _by(each, lambda one: one.start_ms // step * step)
        together = max(_hosts(some) for some in windows.values())
        at = min(begin for begin, some in windows.items() if _hosts(some) == together)
        rows.append(
            {
                "signature": signature,
                "incidents": len(each),
                "hosts": _hosts(each),
                "share": round(len(each) / len(found), 4),
                "together": together,
                "at_ms": at,
                "stalled_s": _total(each),
                "worst_s": _worst(each),
                **_span(each),
                "versions": sorted({one.version for one in each}),
                "title": max(one.title for one in each),
            }
        )
    return sorted(rows, key=lambda row: (-row["incidents"], -row["hosts"], row["signature"]))


def versions(scene: Scene, asked: Asked) -> Rows:
    found = _during(scene, asked, 30 * DAY)
    kind = _kinds(found)
    hours = _watched(
        scene, asked.since_ms - 30 * DAY, asked.until_ms, lambda one: (one.server, one.version)
    )
    rows = []
    useful = [one for one in found if one.signature != "none" and one.version]
    for (server, name), each in _by(useful, lambda one: (one.server, kind(one))).items():
        ordered = sorted({one.version for one in each}, key=_version)
        first = ordered[0]
        late = max(one.start_ms for one in each) < asked.since_ms
        if late or (asked.version and _version(first) < _version(asked.version)):
            continue
        before = sum(
            ms
            for (other, version), ms in hours.items()
            if other == server and _version(version) < _version(first)
        )
        own = [one for one in each if one.version == first]
        rows.append(
            {
                "version": first,
                "signature": name,
                "incidents": len(own),
                "hosts": _hosts(own),
                **_span(each),
                "all_incidents": len(each),
                "versions": ordered,
                "before_hours": round(before / HOUR, 1) if before else None,
                "server": server,
                "title": max(one.title for one in each),
            }
        )
    rows.sort(key=lambda row: (-row["incidents"], row["server"], row["signature"]))
    return sorted(rows, key=lambda row: _version(row["version"]), reverse=True)


def blockers(scene: Scene, asked: Asked) -> Rows:
    found = [one for one in _during(scene, asked) if one.statement]
    rows = [
        {
            "statement": statement,
            "victim_s": _victims(each),
            "incidents": len(each),
            "hosts": _hosts(each),
            "threads": max(one.threads for one in each),
            "worst_s": _worst(each),
            **_span(each),
            "signatures": sorted({one.signature for one in each}),
        }
        for statement, each in _by(found, lambda one: one.statement).items()
    ]
    return sorted(rows, key=lambda row: (-row["victim_s"], -row["incidents"], row["statement"]))


def rate(scene: Scene, asked: Asked) -> Rows:
    found = _by(_during(scene, asked), lambda one: one.host)
    hours = _watched(scene, asked.since_ms, asked.until_ms, lambda one: one.host)
    rows = []
    for host in {*found, *hours}:
        stalls = sum(one.signature != "none" for one in found.get(host, ()))
        ms = hours[host]
        rows.append(
            {
                "host": host,
                "per_hour": round(stalls * HOUR / ms, 4) if ms else None,
                "stalls": stalls,
                "incidents": len(found.get(host, ())),
                "stalled_s": _total(found.get(host, ())),
                "watched_hours": round(ms / HOUR, 3) if ms else None,
            }
        )
    return sorted(
        rows,
        key=lambda row: (-(row["per_hour"] or 0), -row["stalls"], -row["incidents"], row["host"]),
    )


def new(scene: Scene, asked: Asked) -> Rows:
    found = _during(scene, asked, 30 * DAY)
    kind = _kinds(found)
    rows = []
    for name, each in _by((one for one in found if one.signature != "none"), kind).items():
        if min(one.start_ms for one in each) >= asked.since_ms:
            rows.append(
                {
                    "signature": name,
                    "hosts": _hosts(each),
                    "incidents": len(each),
                    **_span(each),
                    "stalled_s": _total(each),
                    "versions": sorted({one.version for one in each}),
                    "title": max(one.title for one in each),
                }
            )
    return sorted(rows, key=lambda row: (-row["hosts"], -row["incidents"], row["signature"]))


def detection(scene: Scene, asked: Asked) -> Rows:
    found = [one for one in _during(scene, asked) if one.detect_ms is not None]
    parts: list[tuple[str, dict[str, list[IncidentRow]]]] = [
        ("fleet", _by(found, lambda _: "")),
        ("version", _by(found, lambda one: one.version)),
        ("host", _by(found, lambda one: one.host)),
    ]
    rows = []
    for kind, grouped in parts:
        some: Rows = []
        for name, each in grouped.items():
            values = sorted(one.detect_ms or 0.0 for one in each)
            last = len(values) - 1
            some.append(
                {
                    "kind": kind,
                    "name": name,
                    "incidents": len(values),
                    "median_ms": round(values[last // 2], 3),
                    "p90_ms": round(values[last * 9 // 10], 3),
                    "max_ms": round(values[-1], 3),
                }
            )
        some.sort(key=lambda row: row["name"])
        if kind == "version":
            some.sort(key=lambda row: _version(row["name"]), reverse=True)
        elif kind == "host":
            some.sort(key=lambda row: (-row["p90_ms"], -row["max_ms"]))
        rows += some
    return rows


def lost(scene: Scene, asked: Asked) -> Rows:
    reasons = defaultdict(list)
    for one in _during(scene, asked):
        for why in (one.lost_why or ("",)) if one.lost else ():
            reasons[why].append(one)
    rows = [
        {
            "kind": "captures",
            "why": why or "not said",
            "lost": sum(one.lost for one in each),
            "incidents": len(each),
            "hosts": _hosts(each),
            **_span(each),
        }
        for why, each in reasons.items()
    ]
    agents = [
        one
        for one in scene.of(AgentRow)
        if one.dropped
        and one.seen_ms >= asked.since_ms
        and one.seen_ms // DAY <= asked.until_ms // DAY
    ]
    for why, each in _by(agents, lambda one: one.why).items():
        hosts_of = _by(each, lambda one: one.host)
        most = {host: max(one.dropped for one in some) for host, some in hosts_of.items()}
        rows.append(
            {
                "kind": "rows",
                "why": why or "not said",
                "lost": sum(most.values()),
                "incidents": None,
                "hosts": len(most),
                "first_ms": min(one.seen_ms for one in each),
                "last_ms": max(one.seen_ms for one in each),
            }
        )
    return sorted(rows, key=lambda row: (row["kind"], -row["lost"], -row["hosts"], row["why"]))


def silent(scene: Scene, asked: Asked) -> Rows:
    since = min(asked.since_ms, asked.until_ms - 7 * DAY) // DAY
    agents = [
        one for one in scene.of(AgentRow) if since <= one.seen_ms // DAY <= asked.until_ms // DAY
    ]
    rows = []
    for (host, program, pid), each in _by(agents, lambda a: (a.host, a.program, a.pid)).items():
        last = max(each, key=lambda one: one.seen_ms)
        seen = max(one.seen_ms + math.floor((one.skew_ms or 0) + 0.5) for one in each)
        replaced = any(
            one.host == host and one.program == program and one.started_ms > last.seen_ms
            for one in agents
        )
        late = seen < asked.until_ms - asked.minutes * 60_000
        if not late or replaced or last.state == "ended":
            continue
        rows.append(
            {
                "host": host,
                "silent_s": (asked.until_ms - seen) / 1000,
                "state": last.state,
                "program": program,
                "pid": pid,
                "server": last.server,
                "version": last.version,
                "agent_version": last.agent_version,
                "started_ms": last.started_ms,
                "seen_ms": last.seen_ms,
                "skew_ms": None if last.skew_ms is None else round(last.skew_ms, 1),
                "waiting": last.waiting,
                "dropped": last.dropped,
                "why": last.why,
            }
        )
    return sorted(rows, key=lambda row: (-row["silent_s"], row["host"], row["program"], row["pid"]))


def _p(a: int, b: int, new_ms: int, old_ms: int) -> float:
    """Return the exact p: sums of binomial probabilities as fractions."""
    n, share = a + b, Fraction(new_ms, new_ms + old_ms)
    chances = [math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
    return float(min(1, 2 * min(sum(chances[: a + 1]), sum(chances[a:]))))


def regressions(scene: Scene, asked: Asked) -> Rows:
    hours = _watched(scene, asked.since_ms, asked.until_ms, lambda one: one.version)
    found = _during(scene, asked)
    kind = _kinds(found)
    pair = (asked.version, asked.against)
    both = [one for one in found if one.version in pair and one.signature != "none"]
    new_ms, old_ms = hours[pair[0]], hours[pair[1]]
    rows = []
    for name, each in _by(both, kind).items():
        a = [one for one in each if one.version == asked.version]
        b = [one for one in each if one.version == asked.against]
        rows.append(
            {
                "signature": name,
                "ratio": round(len(a) * old_ms / (len(b) * new_ms), 3) if a and b else None,
                "p": _p(len(a), len(b), new_ms, old_ms),
                "chance": True,
                "new_per_100h": round(100 * len(a) * HOUR / new_ms, 4),
                "old_per_100h": round(100 * len(b) * HOUR / old_ms, 4),
                "new_incidents": len(a),
                "old_incidents": len(b),
                "new_hosts": _hosts(a),
                "old_hosts": _hosts(b),
                "new_hours": round(new_ms / HOUR, 1),
                "old_hours": round(old_ms / HOUR, 1),
                "version": asked.version,
                "against": asked.against,
                "title": max(one.title for one in each),
            }
        )
    for rank, row in enumerate(sorted(rows, key=lambda row: row["p"])):
        if row["p"] > 0.05 / (len(rows) - rank):
            break
        row["chance"] = False
    for row in rows:
        row["p"] = float(f"{row['p']:.3g}")
    return sorted(
        rows,
        key=lambda row: (
            row["new_per_100h"] <= row["old_per_100h"],
            row["chance"],
            row["p"],
            row["old_per_100h"] - row["new_per_100h"],
            row["signature"],
        ),
    )


def locks(scene: Scene, asked: Asked) -> Rows:
    waits = _by(
        (one for one in scene.of(WaitRow) if asked.since_ms <= one.minute_ms < asked.until_ms),
        lambda one: one.name,
    )
    stalls = _by((one for one in _during(scene, asked) if one.lock_name), lambda one: one.lock_name)
    rows = []
    for name in {*waits, *stalls}:
        some, each = waits.get(name), stalls.get(name, [])
        kinds = {one.kind for one in some or ()} | {one.lock_kind for one in each}
        rows.append(
            {
                "name": name,
                "kinds": sorted(kinds - {""}),
                "wait_s": sum(_ms(one.total_ms) for one in some) / 1_000_000 if some else None,
                "waits": sum(one.count for one in some) if some else None,
                "long_waits": sum(one.over for one in some) if some else None,
                "longest_s": max(_ms(one.max_ms) for one in some) / 1_000_000 if some else None,
                "hosts": _hosts(some) if some else None,
                "victim_s": _victims(each),
                "incidents": len(each),
                "stalled_hosts": _hosts(each),
                "worst_s": _worst(each) if each else 0.0,
            }
        )
    return sorted(rows, key=lambda row: (-max(row["wait_s"] or 0, row["victim_s"]), row["name"]))


def unknown(scene: Scene, asked: Asked) -> Rows:
    found = _during(scene, asked)
    rows = []
    for group in _groups(found):
        shapes = [one.shape for one in group.shapes]
        each = [one for one in found if one.signature == "unknown" and one.shape in shapes]
        counts = Counter(name for one in group.shapes for name in one.functions)
        shared = [name for name in counts if counts[name] > len(shapes) / 2]
        rows.append(
            {
                "name": group.name,
                "hosts": _hosts(each),
                "incidents": len(each),
                "since_ms": min(one.start_ms for one in each),
                "last_ms": max(one.start_ms for one in each),
                "stalled_s": _total(each),
                "first_version": group.leader.version,
                "shapes": shapes,
                "functions": sorted(shared, key=lambda name: (-counts[name], name))[:12],
            }
        )
    return sorted(rows, key=lambda row: (-row["hosts"], -row["incidents"], row["name"]))


def hosts(scene: Scene, asked: Asked) -> Rows:
    step = 30 * 60_000 if asked.until_ms - asked.since_ms == DAY else DAY
    found = _by(_during(scene, asked), lambda one: one.host)
    worst = sorted(found, key=lambda host: (-_total(found[host]), -len(found[host]), host))
    return [
        {
            "host": host,
            "at_ms": at,
            "incidents": len(each),
            "stalled_s": _total(each),
            "step_ms": step,
        }
        for host in worst[: asked.limit]
        for at, each in sorted(_by(found[host], lambda one: one.start_ms // step * step).items())
    ]


ANSWERS: dict[str, Callable[[Scene, Asked], Rows]] = {
    one.__name__: one
    for one in (
        *(now, signatures, versions, blockers, rate, new, detection, lost, silent),
        *(regressions, locks, unknown, hosts),
    )
}
