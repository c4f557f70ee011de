# SPDX-License-Identifier: Apache-2.0
"""Rows of real stalls: the captures of tests/data/corpus, analyzed as an agent's are, with the
samples of tests/data/triggers.

Each capture is of a live server in a stall that somebody made, each recording too; they are of two
stalls of one kind where there is such a recording, else of another kind. Nobody asked the servers
for their statements: here connections run statements of a shop. For PostgreSQL, of which there is
no recording, the samples are those of the host.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stallscope.agent.verdict_process.naming import verdict_of
from stallscope.analyzers import catalog
from stallscope.analyzers.engine import analyze
from stallscope.collectors.triggers import recording
from stallscope.fleet.analysis import facts_of
from stallscope.fleet.facts import Facts
from stallscope.fleet.rows import rows_of
from stallscope.fleet.tables import IncidentRow, StackRow
from stallscope.model import capturefile
from stallscope.model.capture import Capture
from stallscope.model.incident import CaptureEntry, Fired, Incident, TargetEntry, Verdict
from stallscope.model.samples import Sample

__all__ = ["NEW_STALL", "PROGRAMS", "RealIncident", "load"]

DATA = Path(__file__).resolve().parents[2] / "data"
STOPPED = "process-stopped"
"""The servers of the corpus were held while they were dumped; those of a fleet are not."""
NEW_STALL = "thread-concurrency-mysql97-mysql97"
"""Analyzed without its signatures: a stall that nobody knows."""
PROGRAMS = {"mysql": "mysqld", "mariadb": "mariadbd", "postgres": "postgres"}
STATEMENTS = (
    "UPDATE stock SET reserved = reserved + ? WHERE warehouse_id = ? AND item_id = ?",
    "INSERT INTO orders (customer_id, state, created_at) VALUES (?, ?, NOW())",
    "SELECT id, state FROM orders WHERE customer_id = ? ORDER BY created_at DESC LIMIT ?",
    "DELETE FROM cart_lines WHERE cart_id = ?",
    "ALTER TABLE orders ADD INDEX by_state (state, created_at)",
    "UPDATE customers SET last_seen = NOW() WHERE id = ?",
    "SELECT SUM(amount) FROM payments WHERE day BETWEEN ? AND ? GROUP BY merchant_id",
    "INSERT INTO audit_log SELECT * FROM staging_log WHERE batch = ?",
)
OF_STALL = {
    "drop-table": "DROP TABLE archive_orders",
    "truncate-table": "TRUNCATE TABLE session_events",
    "metadata-lock": "ALTER TABLE orders ADD COLUMN note VARCHAR(200)",
    "table-stats": "ANALYZE TABLE stock",
    "table-flush-wait": "FLUSH TABLES WITH READ LOCK",
    "relation-lock": "ALTER TABLE orders ADD COLUMN note text",
}
"""What its blocker runs, where a stall is one of certain statements."""
CONNECTION_FRAMES = 9
"""Threads with so many frames have something to do."""
CAPTURES = 4
CAPTURE_GAP_NS = 250_000_000
OF_HOST = ("process.", "psi.", "host.", "disk.")


class RealIncident(NamedTuple):
    """The rows of one stall. ``kind``: the server of the corpus, such as ``mysql97``."""

    name: str
    kind: str
    row: IncidentRow
    stacks: tuple[StackRow, ...]
    incident: Incident
    """What they were made of; its times are those of the recording."""
    facts: Facts
    samples: tuple[Sample, ...]


class _Course(NamedTuple):
    """A recording: samples, and when the stall began and was over."""

    samples: tuple[Sample, ...]
    start_ns: int
    end_ns: int


def load() -> tuple[RealIncident, ...]:
    """Return the rows of all stalls of the corpus; NEW_STALL has no name."""
    return tuple(_load())


def _load() -> Iterator[RealIncident]:
    known = catalog.load().without((STOPPED,))
    courses = {path.name.split(".")[0]: _course(path) for path in _recordings()}
    for path in sorted((DATA / "corpus").glob("*/capture.jsonl.zst")):
        facts = json.loads((path.parent / "meta.json").read_text(encoding="utf-8"))
        if not facts["expect"]:
            continue
        name = path.parent.name
        signatures = known.without((STOPPED, *facts["expect"])) if name == NEW_STALL else known
        capture = _with_statements(capturefile.read(path), name)
        analysis = analyze(capture, signatures)
        course = courses[_recording_of(facts["stall"], facts["server"], courses)]
        if facts["server"].startswith("postgres"):
            course = course._replace(samples=_of_host(course.samples))
        incident = _incident(facts, course, verdict_of(analysis))
        known_of = facts_of(analysis)
        row, *more = rows_of(incident, known_of, course.samples, made_ms=course.end_ns // 1_000_000)
        assert isinstance(row, IncidentRow)
        stacks = tuple(one for one in more if isinstance(one, StackRow))
        yield RealIncident(name, facts["server"], row, stacks, incident, known_of, course.samples)


def _recordings() -> list[Path]:
    found = sorted((DATA / "triggers").glob("*.jsonl.zst"))
    return [path for path in found if not path.name.startswith("healthy")]


def _recording_of(stall: str, kind: str, known: dict[str, _Course]) -> str:
    """Return the recording that is like this stall."""
    base = stall.removesuffix(f"-{kind}")
    for name in (base, f"{kind}-{base}", f"{kind}-row-lock"):
        if name in known:
            return name
    return "row-lock"


def _course(path: Path) -> _Course:
    records = list(recording.read(path))
    marks = {record.mark: record.time_ns for record in records if record.mark}
    samples = tuple(record.sample for record in records if record.sample is not None)
    return _Course(samples, marks["begin"], marks["over"])


def _of_host(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    return tuple(
        msgspec.structs.replace(
            one, values={k: v for k, v in one.values.items() if k.startswith(OF_HOST)}
        )
        for one in samples
    )


def _incident(facts: dict[str, Any], course: _Course, verdict: Verdict | None) -> Incident:
    server = facts["family"]
    trigger, name = "threads-running", "Threads_running"
    if server == "postgres":
        trigger, name = "backends-active", "backends.active"
    return Incident(
        id="20260101T000000.000Z-server-1",
        start_ns=course.start_ns,
        end_ns=course.end_ns,
        target=TargetEntry(pid=1, name=PROGRAMS[server], version=facts["version"]),
        verdict=verdict,
        triggers=(
            Fired(trigger, f"{name} is 187, over 40; in 2 samples in a row", course.start_ns),
        ),
        captures=tuple(
            CaptureEntry(
                file=f"{number}.jsonl.zst",
                time_ns=course.start_ns + number * CAPTURE_GAP_NS,
                reason="burst" if number else "trigger",
                trigger=trigger,
                breach_to_done_ms=None if number else 1.0,
                analyzed=True,
                verdict=verdict,
            )
            for number in range(CAPTURES)
        ),
    )


def _with_statements(capture: Capture, name: str) -> Capture:
    at = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
    own = next((sql for stall, sql in OF_STALL.items() if name.startswith(stall)), None)
    threads = tuple(
        msgspec.structs.replace(
            thread,
            connection=4000 + number,
            query=own or STATEMENTS[(at + number) % len(STATEMENTS)],
        )
        if len(thread.frames) >= CONNECTION_FRAMES
        else thread
        for number, thread in enumerate(capture.threads)
    )
    return msgspec.structs.replace(capture, threads=threads)
