# SPDX-License-Identifier: Apache-2.0
"""From an incident to its rows: what they say, and that hostile incidents stay in bounds."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope.agent.verdict_process import VerdictRequest
from stallscope.agent.verdict_process.client import VerdictProcess
from stallscope.analyzers import catalog, engine
from stallscope.fleet import clip, tables
from stallscope.fleet.analysis import facts_of
from stallscope.fleet.condense import MAX_NAMES, condense
from stallscope.fleet.facts import LEAST_GROUPS, MAX_BYTES, Facts, NamedStack, bounded, cut
from stallscope.fleet.rows import rows_of, uid_of
from stallscope.fleet.stored import rows_of_stored
from stallscope.fleet.tables import FindingPart, IncidentRow, StackRow, ThreadPart
from stallscope.model import capturefile
from stallscope.model.capture import Capture, Frame, Lock, LockKind, Note, Process, Thread
from stallscope.model.incident import CaptureEntry, Fired, Incident, Origin, TargetEntry, Verdict
from stallscope.model.samples import Sample
from stallscope.store import Store
from stallscope.store.reading import StoredIncident, read_incident
from tests.support.agents import CHECKOUT
from tests.unit.captures import convoy, stack

SECOND = 10**9
START_NS = 1_795_261_984 * SECOND
MADE_MS = 1_795_262_000_000
ID = "20261121T115304.000Z-mariadbd-4711"
SIGNATURES = catalog.load()
SECRET = "Sekret"


def incident(**changes: Any) -> Incident:
    value = Incident(
        id=ID,
        start_ns=START_NS,
        target=TargetEntry(4711, "mariadbd", 5, "/usr/sbin/mariadbd", "mariadb", "10.11", "db1"),
        end_ns=START_NS + 12 * SECOND,
        verdict=Verdict("metadata-lock", "Statements queue", 0.9, 3, "thread 9", "UPDATE t", "do"),
        suppressed=2,
        origin=Origin("db1", "boot-1", START_NS),
        triggers=(
            Fired("threads-running", "Threads_running is 187, over 40", START_NS, 187.0, 40.0),
            Fired("metadata-lock", "3 wait", START_NS + SECOND),
        ),
        captures=(
            CaptureEntry("a", START_NS + 10**8, "trigger", "threads-running", 55.5, analyzed=True),
            CaptureEntry("b", START_NS + 2 * SECOND, "burst", "threads-running", partial=True),
        ),
        notes=(
            Note("not-captured", "the probe is not ready"),
            Note("suppressed", "60 captures an hour are the limit"),
            Note("suppressed-by-probe", "4 captures were skipped: too frequent"),
            Note("other", "something else"),
        ),
    )
    return msgspec.structs.replace(value, **changes)


def row_of(value: Incident, facts: Facts | None = None, **options: Any) -> IncidentRow:
    row = rows_of(value, facts, made_ms=MADE_MS, **options)[0]
    assert isinstance(row, IncidentRow)
    return row


def finding(**changes: Any) -> FindingPart:
    value = FindingPart(
        "metadata-lock", "Statements queue", "stall", 0.93, 3, 0.8, "worker: mysql_alter_table",
        "ALTER TABLE t", "shop.t", "metadata", "", 2.5,
    )  # fmt: skip
    return msgspec.structs.replace(value, **changes)


FACTS = Facts(
    server="mariadb",
    version="10.11.6",
    findings=(finding(),),
    stalled=(ThreadPart("a" * 16, 3, "waiting", "waiter"),),
    stacks=(NamedStack("a" * 16, ("MDL_wait::timed_wait", "open_table")),),
    lock_name="shop.t",
    lock_kind="metadata",
)


def test_a_row_without_facts_has_what_the_incident_says() -> None:
    row = row_of(incident())
    assert (row.signature, row.title, row.confidence) == ("metadata-lock", "Statements queue", 0.9)
    assert (row.blocker, row.statement, row.remedy) == ("thread 9", "UPDATE t", "do")
    assert (row.start_ms, row.end_ms, row.seconds) == (1795261984000, 1795261996000, 12.0)
    assert (row.is_open, row.interrupted, row.day) == (False, False, "2026-11-21")
    assert row.rev == 10**15 + MADE_MS
    assert row.triggers == ("threads-running", "metadata-lock")
    assert (row.trigger_name, row.why) == ("threads-running", "Threads_running is 187, over 40")
    assert (row.detect_ms, row.captured, row.partial) == (55.5, 2, 1)
    assert [one.signature for one in row.captures] == ["none", "none"]
    assert row.lost == 2 + 1 + 4
    assert row.lost_why == (
        "the probe is not ready",
        "60 captures an hour are the limit",
        "4 captures were skipped: too frequent",
    )


def test_facts_say_more_than_the_verdict() -> None:
    row = row_of(incident(), FACTS)
    assert (row.blocker, row.statement) == ("worker: mysql_alter_table", "ALTER TABLE t")
    assert (row.lock_name, row.version, row.confidence) == ("shop.t", "10.11.6", 0.93)
    assert row.findings == FACTS.findings


def test_advice_is_of_what_the_row_says() -> None:
    verdict = Verdict("metadata-lock", "t", 0.9, remedy="Wait.", ending="KILL 8;")
    assert row_of(incident(verdict=verdict), FACTS).ending == "KILL 8;"
    other = msgspec.structs.replace(FACTS, findings=(finding(signature="row-lock"),))
    row = row_of(incident(verdict=verdict), other)
    assert (row.signature, row.ending, row.remedy) == ("row-lock", "", "")


@pytest.mark.parametrize(
    ("verdict", "name"), [(None, "none"), (Verdict(None, "5 threads wait", 0.4), "unknown")]
)
def test_a_verdict_without_a_name(verdict: Verdict | None, name: str) -> None:
    assert row_of(incident(verdict=verdict)).signature == name


def test_the_revision_of_an_open_incident_is_lower() -> None:
    going_on = row_of(incident(end_ns=None))
    assert (going_on.is_open, going_on.rev, going_on.end_ms) == (True, MADE_MS, None)
    killed = row_of(incident(end_ns=None, interrupted=True))
    assert (killed.is_open, killed.rev) == (False, 10**15 + MADE_MS)


def test_the_key_is_of_host_boot_and_id() -> None:
    value = incident()
    assert uid_of(value) == row_of(value, FACTS, host="other").uid == row_of(value).uid
    assert len(uid_of(value)) == 32
    others = (
        incident(id="x"),
        incident(origin=Origin("db2", "boot-1", 1)),
        incident(origin=Origin("db1", "boot-2", 1)),
        incident(origin=None),
    )
    assert len({uid_of(one) for one in (value, *others)}) == 5
    assert row_of(value, host="shard-7").host == "shard-7"


def test_detection_counts_from_the_first_breach() -> None:
    later = CaptureEntry("a", START_NS + 10**9, "trigger", "metadata-lock", 30.0)
    assert row_of(incident(captures=(later,))).detect_ms == 1030.0
    first = CaptureEntry("b", START_NS, "burst", "threads-running")
    assert row_of(incident(captures=(later, first))).detect_ms is None


def sample(seconds: float, source: str = "status", **values: float) -> Sample:
    at = START_NS + round(seconds * SECOND)
    return Sample(source, at, at, values)


def test_samples_become_before_most_and_after() -> None:
    series = [(-100, 900), (-3, 4), (-2, 6), (-1, 5), (1, 180), (2, 90), (13, 7), (14, 9)]
    samples = [sample(at, Threads_running=value) for at, value in series]
    (part,) = condense(samples, START_NS, START_NS + 12 * SECOND)
    assert (part.name, part.before, part.most, part.after) == ("Threads_running", 5, 180, 8)


def test_of_counters_the_rate_counts() -> None:
    samples = [sample(at, Questions=10.0 * (at + 10) ** 2) for at in range(-4, 16)]
    (part,) = condense(samples, START_NS, START_NS + 12 * SECOND)
    assert (part.before, part.most, part.after) == (150.0, 430.0, 470.0)


def test_samples_that_triggers_name_are_kept() -> None:
    samples = [sample(1, "x", **{"own.value": 3.0, "not.asked": 4.0})]
    fired = (Fired("t", "own.value is 3, over 2.", START_NS),)
    assert [one.name for one in condense(samples, START_NS, None, fired)] == ["own.value"]
    many = " ".join(f"n{number}" for number in range(90))
    samples = [sample(1, "x", **dict.fromkeys(many.split(), 1.0))]
    assert len(condense(samples, START_NS, None, (Fired("t", many, 1),))) == MAX_NAMES


def test_samples_that_are_no_numbers_are_left_out() -> None:
    samples = [sample(at, "x", **{"heartbeat.ms": math.nan}) for at in (-1, 1)]
    assert condense(samples, START_NS, None) == ()
    samples = [sample(at, "x", **{"heartbeat.ms": math.inf}) for at in (-1, 1)]
    assert condense([*samples, sample(2, "x", **{"heartbeat.ms": 7})], START_NS, None)[0].most == 7


def with_secrets() -> Capture:
    """A convoy whose threads, locks and server texts have literals."""
    value = convoy()
    threads = tuple(
        msgspec.structs.replace(
            thread, query=f"UPDATE t SET a = '{SECRET}' WHERE b = \"{SECRET}\" AND c = 'it''s"
        )
        for thread in value.threads
    )
    lock = Lock(0, 0xD000, LockKind.MUTEX, owner_tid=100, symbol=f"lock of '{SECRET}'", waiters=9)
    said = Thread(tid=901, activity=f"doing '{SECRET}'", command="Query")
    return msgspec.structs.replace(value, threads=(*threads, said), locks=(lock, *value.locks[1:]))


def test_no_literal_leaves() -> None:
    facts = facts_of(engine.analyze(with_secrets(), SIGNATURES))
    assert facts.findings
    assert any("UPDATE t SET a = ?" in one.statement for one in facts.findings)
    notes = (Note("not-captured", f"refused: '{SECRET}'"), Note("suppressed", f"'{SECRET}"))
    statement = f"SELECT * FROM t WHERE a = '{SECRET}' AND b = '{SECRET}…"
    verdict = Verdict(
        "x", "t", 1.0, blocker=f"thread 1, '{SECRET}'", statement=statement, lines=(statement,)
    )
    entry = CaptureEntry("a", START_NS, "trigger", sessions=f"'{SECRET}'")
    value = incident(verdict=verdict, notes=notes, captures=(entry,))
    for known in (facts, None, msgspec.structs.replace(FACTS, findings=(finding(
        statement=statement, lock_name=f"'{SECRET}'"
    ),), lock_name=f"'{SECRET}'")):  # fmt: skip
        rows = rows_of(value, known, made_ms=MADE_MS)
        text = b"\n".join(map(tables.encode, rows)).decode()
        assert SECRET not in text
        assert "WHERE" in text


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("SELECT a FROM t WHERE b = 'x'", "SELECT a FROM t WHERE b = ?"),
        ("SELECT a FROM t WHERE c IN (1, 2)", "SELECT a FROM t WHERE c IN (?+)"),
        ("UPDATE t SET a = 'cut off…", "UPDATE t SET a = ?…"),
        ("<unreadable SQL sha256:" + "0" * 32 + ">", "<unreadable SQL sha256:" + "0" * 32 + ">"),
        ("", ""),
    ],
)  # fmt: skip
def test_statements_are_normalized_once_more(given: str, wanted: str) -> None:
    assert clip.statement(given) == wanted
    assert clip.statement(wanted) == wanted


@given(st.text(max_size=400), st.integers(0, 400), st.sampled_from(["'", '"', "…", ""]))
def test_whatever_a_statement_is_its_literals_go(text: str, at: int, end: str) -> None:
    given = f"SELECT a FROM t WHERE b = '{SECRET}' AND c = {text[:at]!r} AND d = '{SECRET}{end}"
    found = clip.statement(given)
    assert SECRET not in found
    assert SECRET not in clip.statement(found)
    other = clip.statement(text)
    assert len(other) <= 1000
    assert other.isprintable() or not other


def test_names_are_replaced_where_that_is_asked() -> None:
    statement = "UPDATE invoices_eu SET paid_flag = ? WHERE customer_ref = ?"
    facts = msgspec.structs.replace(
        FACTS,
        findings=(finding(statement=statement, lock_name="shopdata.invoices_eu"),),
        lock_name="shopdata.invoices_eu",
        stacks=(NamedStack("a" * 16, ("open_table", "[reading invoices_eu]", "/home/jo/x.c:3")),),
    )
    verdict = Verdict("metadata-lock", "t", 1.0, blocker="thread 3, user joanna from 10.1.2.3")
    value = incident(
        verdict=verdict,
        notes=(Note("not-captured", "cannot read /srv/acmecorp/x of joanna"),),
        triggers=(Fired("own", "joanna_rows is 3, over 2", START_NS),),
        captures=(CaptureEntry("a", START_NS, "trigger", sessions="joanna is refused"),),
    )
    rows = rows_of(value, facts, made_ms=MADE_MS, redact=True)
    rows += rows_of(value, None, made_ms=MADE_MS, redact=True)
    text = b"\n".join(map(tables.encode, rows)).decode()
    for name in (
        "invoices",
        "shopdata",
        "customer_ref",
        "joanna",
        "acmecorp",
        "10.1.2.3",
        "/home",
        "paid",
    ):
        assert name not in text
    for name in ("UPDATE", "mysql_alter_table", "open_table", "db1", "metadata-lock", ID):
        assert name in text


def test_equal_statements_have_equal_names_in_all_incidents() -> None:
    other = incident(triggers=(Fired("own", "Zebra_yak is 3", START_NS),))
    facts = msgspec.structs.replace(
        FACTS, findings=(finding(statement="UPDATE zebra SET yak = ?"),)
    )
    rows = [row_of(one, facts, redact=True) for one in (incident(), other)]
    assert rows[0].statement == rows[1].statement


def test_facts_of_an_analysis() -> None:
    analysis = engine.analyze(convoy(), SIGNATURES)
    facts = facts_of(analysis)
    assert [one.signature for one in facts.findings] == [
        one.signature or "unknown" for one in analysis.findings
    ]
    roles = {part.role for part in facts.stalled}
    assert roles == {"blocker", "waiter", "other"}
    assert facts.stalled[0].role == "blocker"
    assert sum(part.count for part in facts.stalled) == sum(
        thread.count for thread in analysis.capture.threads
    )
    assert {part.stack for part in facts.stalled} == {one.hash for one in facts.stacks}
    assert bounded(facts) == facts


def test_the_hash_of_a_stack_is_of_server_and_frames() -> None:
    def hashes(*names: str) -> set[str]:
        capture = Capture("bpf", (Process(1),), (Thread(tid=5, frames=stack(*names)),))
        return {one.hash for one in facts_of(engine.analyze(capture, SIGNATURES)).stacks}

    assert hashes("poll", "handle_one") == hashes("poll", "handle_one")
    assert hashes("poll", "handle_one") != hashes("poll", "handle_two")


def test_addresses_are_not_part_of_a_stack() -> None:
    def only(address: int) -> NamedStack:
        frames = (Frame(pc=address), *stack("handle_one"))
        capture = Capture("bpf", (Process(1),), (Thread(tid=5, frames=frames),))
        (found,) = facts_of(engine.analyze(capture, SIGNATURES)).stacks
        return found

    assert only(0x7F00).frames == ("??", "handle_one")
    assert only(0x7F00) == only(0x5500)


def test_large_facts_lose_stacks_and_keep_the_verdicts_own() -> None:
    parts = [ThreadPart(f"{n:016x}", 1, "waiting", "waiter") for n in range(200)]
    frames = tuple("f" * 300 for _ in range(200))
    stacks = tuple(NamedStack(part.stack, frames) for part in parts)
    facts = msgspec.structs.replace(FACTS, stalled=tuple(parts), stacks=stacks)
    small = cut(facts)
    assert len(msgspec.json.encode(small)) <= MAX_BYTES
    assert len(small.stalled) >= LEAST_GROUPS
    assert small.stalled == tuple(parts[: len(small.stalled)])
    assert small.findings == facts.findings
    assert cut(small) == small


def test_the_verdict_process_answers_with_facts(tmp_path: Path) -> None:
    path = tmp_path / "0001.jsonl.zst"
    capturefile.write(convoy(), path)
    process = VerdictProcess()
    answers = process._run([VerdictRequest(str(path))])
    assert answers.together is not None
    assert answers.facts == facts_of(engine.analyze_together([capturefile.read(path)], SIGNATURES))
    assert process._run([VerdictRequest(str(tmp_path / "gone"))]).facts is None


def test_the_agent_loads_no_analyzers() -> None:
    code = (
        "import sys, stallscope.fleet.rows, stallscope.agent.verdict_process;"
        "print([m for m in sys.modules if m.startswith('stallscope.analyzers')])"
    )
    argv = [sys.executable, "-P", "-c", code]
    environment = {"PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def stored(dest: Path, *, damaged: bool = False, ended: bool = True) -> Path:
    folder = Store.open(dest).begin(incident(captures=(), end_ns=None))
    entry = CaptureEntry("", START_NS, "trigger", "threads-running", 55.5)
    folder.add_capture(b"damaged" if damaged else capturefile.dumps(convoy()), entry)
    folder.append_samples([sample(1, Threads_running=180)])
    if ended:
        folder.finish(msgspec.structs.replace(folder.incident, end_ns=START_NS + SECOND))
    return folder.path


def test_rows_of_a_store_are_those_of_its_captures(tmp_path: Path) -> None:
    path = stored(tmp_path)
    rows = rows_of_stored(read_incident(path), SIGNATURES)
    assert rows == rows_of_stored(read_incident(path), SIGNATURES)
    first = rows[0]
    assert isinstance(first, IncidentRow)
    facts = facts_of(engine.analyze_together([convoy()], SIGNATURES))
    assert first.findings == facts.findings
    assert [row.hash for row in rows[1:] if isinstance(row, StackRow)] == [
        one.hash for one in facts.stacks
    ]
    assert first.samples[0].most == 180
    assert first.rev == 10**15 + (START_NS + SECOND) // 10**6


def test_an_incident_whose_agent_was_killed_is_over(tmp_path: Path) -> None:
    value = read_incident(stored(tmp_path, ended=False))
    killed = StoredIncident(value.path, value.incident, going_on=False)
    row = rows_of_stored(killed, SIGNATURES)[0]
    assert isinstance(row, IncidentRow)
    assert (row.is_open, row.interrupted, row.end_ms) == (False, True, None)
    assert row.rev == 10**15 + START_NS // 10**6
    going_on = StoredIncident(value.path, value.incident, going_on=True)
    row = rows_of_stored(going_on, SIGNATURES)[0]
    assert isinstance(row, IncidentRow)
    assert (row.is_open, row.interrupted, row.rev) == (True, False, START_NS // 10**6)


def test_an_incident_without_readable_captures_has_its_row(tmp_path: Path) -> None:
    (row,) = rows_of_stored(read_incident(stored(tmp_path, damaged=True)), SIGNATURES)
    assert isinstance(row, IncidentRow)
    assert (row.signature, row.findings, row.captured) == ("metadata-lock", (), 1)


TEXT = st.one_of(
    st.text(max_size=30),
    st.text(st.characters(codec=None), max_size=30),
    st.sampled_from(["\0", "\ud800", "\u202e\x1b[2J", "x" * 100_000, "a\nb\r\n\t", "'", '"', "\\"]),
)
INT = st.one_of(st.integers(), st.sampled_from([0, 2**62, 2**63, 2**64, 2**70, -1, -(2**65)]))
TIME = st.one_of(st.integers(0, 2**62), st.sampled_from([0, 2**62, START_NS]))
FLOAT = st.one_of(st.floats(), st.sampled_from([math.nan, math.inf, -math.inf, 1e308]))
MAYBE = st.one_of(st.none(), TEXT)
VERDICT = st.none() | st.builds(
    Verdict, MAYBE, TEXT, FLOAT, INT, MAYBE, MAYBE, MAYBE, FLOAT, MAYBE, MAYBE
)
INCIDENTS = st.builds(
    Incident,
    id=TEXT,
    start_ns=TIME,
    target=st.builds(TargetEntry, INT, TEXT, st.none(), MAYBE, MAYBE, MAYBE, MAYBE),
    end_ns=st.none() | TIME,
    interrupted=st.booleans(),
    verdict=VERDICT,
    suppressed=INT,
    origin=st.none() | st.builds(Origin, TEXT, TEXT, TIME),
    triggers=st.lists(st.builds(Fired, TEXT, TEXT, TIME), max_size=5).map(tuple),
    captures=st.lists(
        st.builds(
            CaptureEntry, TEXT, TIME, TEXT, MAYBE, st.none() | FLOAT, st.booleans(), MAYBE,
            st.booleans(), VERDICT,
        ),
        max_size=4,
    ).map(tuple),
    notes=st.lists(
        st.builds(
            Note,
            st.sampled_from(["not-captured", "suppressed", "suppressed-by-probe", "x"]),
            st.one_of(TEXT, INT.map(lambda number: f"{number} captures were skipped")),
        ),
        max_size=5,
    ).map(tuple),
)  # fmt: skip
FINDINGS = st.builds(
    FindingPart, TEXT, TEXT, TEXT, FLOAT, INT, FLOAT, TEXT, TEXT, TEXT, TEXT, TEXT,
    st.none() | FLOAT,
)  # fmt: skip
HASHES = st.one_of(TEXT, st.sampled_from(["a" * 16, "b" * 16]))
HOSTILE_FACTS = st.none() | st.builds(
    Facts,
    TEXT,
    TEXT,
    st.lists(FINDINGS, max_size=3).map(tuple),
    st.lists(st.builds(ThreadPart, HASHES, INT, TEXT, TEXT), max_size=4).map(tuple),
    st.lists(
        st.builds(NamedStack, HASHES, st.lists(TEXT, max_size=4).map(tuple)), max_size=4
    ).map(tuple),
    TEXT,
    TEXT,
    TEXT,
    st.lists(TEXT, max_size=4).map(tuple),
)  # fmt: skip
SAMPLES = st.lists(
    st.builds(
        Sample,
        st.sampled_from(["status", "x"]),
        TIME,
        TIME,
        st.dictionaries(
            st.one_of(TEXT, st.sampled_from(["Threads_running", "Questions"])),
            FLOAT | INT,
            max_size=4,
        ),
    ),
    max_size=6,
)
MOST_TEXT = 1000


def check(row: tables.Row) -> None:
    """Check one line: each column of its table, and nothing else, in bounds."""
    table = next(one for one in tables.TABLES.values() if one.row is type(row))
    line = tables.encode(row)
    assert b"\n" not in line
    value = json.loads(line, parse_constant=lambda name: pytest.fail(name))
    assert list(value) == [column.name for column in table.columns]
    lengths: dict[str, set[int]] = {}
    for column in table.columns:
        cell = value[column.name]
        if not column.array:
            check_cell(column, cell)
            continue
        assert isinstance(cell, list)
        for item in cell:
            check_cell(column, item)
        prefix = column.name.partition("_")[0]
        if prefix in {part.prefix for part in tables.PARTS.values()}:
            lengths.setdefault(prefix, set()).add(len(cell))
    assert all(len(one) == 1 for one in lengths.values())


def check_cell(column: tables.Column, cell: object) -> None:
    if cell is None:
        assert column.nullable, column.name
        return
    match column.type:
        case "int":
            assert isinstance(cell, int), column.name
            assert 0 <= cell < 2**63, column.name
        case "bool":
            assert cell in (0, 1), column.name
        case "float":
            assert isinstance(cell, (int, float)), column.name
            assert math.isfinite(cell), column.name
        case _:
            assert isinstance(cell, str), column.name
            assert len(cell) <= MOST_TEXT, column.name
            assert cell.isprintable(), column.name


@settings(max_examples=60)
@given(INCIDENTS, HOSTILE_FACTS, SAMPLES, INT, st.booleans(), TEXT)
def test_hostile_incidents_stay_in_bounds(
    value: Incident,
    facts: Facts | None,
    samples: list[Sample],
    made_ms: int,
    redact: bool,
    host: str,
) -> None:
    rows = rows_of(value, facts, samples, made_ms=made_ms, host=host, redact=redact)
    for row in rows:
        check(row)
        assert row.day == tables.day_of(rows_of(value, None, made_ms=0)[0].start_ms)  # type: ignore[attr-defined]
    assert rows[0].rev // 10**15 == (0 if value.end_ns is None and not value.interrupted else 1)
    assert sum(len(tables.encode(row)) for row in rows) < 4 << 20
