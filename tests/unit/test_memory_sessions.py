# SPDX-License-Identifier: Apache-2.0
"""What the probe read of connections in a server's memory, on its way into captures and reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from stallscope import main
from stallscope.agent.verdict_process import VerdictRequest
from stallscope.agent.verdict_process.naming import name_capture
from stallscope.analyzers import catalog
from stallscope.base.errors import StallscopeError
from stallscope.collectors.sql.login import Login
from stallscope.model import capturefile, sessionsfile
from stallscope.model.capture import Capture, LockKind, Process, Thread
from stallscope.model.memorysessions import OWN, decode, split
from stallscope.model.sessions import (
    MAX_STATEMENT,
    LockWait,
    Moment,
    Session,
    Sessions,
    annotate,
    from_memory,
    raw_statements,
    redact,
)
from stallscope.reporters import sessions as reported
from stallscope.screens.events import Analyzed
from stallscope.screens.live import LiveOptions, LiveSource
from stallscope.screens.sessions import Asking
from stallscope.server.statements import normalize
from tests.support.chance import SEED
from tests.unit.captures import convoy

SECRETS = ("secret", "4711", "0xc0ffee")


def line(*sessions: dict[str, Any], moment: int = 0, **changes: Any) -> bytes:
    value = {"type": "sessions", "time_ns": 5, "moment": moment, "rejected": 0, "read_ns": 9}
    value |= {"sessions": list(sessions)} | changes
    return json.dumps(value, separators=(",", ":")).encode()


def said(**changes: Any) -> dict[str, Any]:
    return {"process": 0, "tid": 101, "connection": 7, **changes}


def only(**changes: Any) -> Session:
    (moment,) = decode([line(said(**changes))])
    (session,) = moment.sessions
    return session


def test_a_session_with_all_fields() -> None:
    found = only(
        user="app",
        host="10.0.0.7",
        database="shop",
        command=23,
        state="updating",
        transaction=True,
        age_ms=1500.5,
        statement="UPDATE t SET a = 1",
        cut=False,
        last=False,
    )
    assert found == Session(
        connection=7,
        tid=101,
        process=0,
        user="app",
        host="10.0.0.7",
        database="shop",
        command="Execute",
        state="updating",
        transaction=True,
        seconds=1.5005,
        statement="UPDATE t SET a = 1",
    )


def test_what_is_not_known_is_none() -> None:
    assert only() == Session(connection=7, tid=101, process=0)
    assert only(user="", state=None, command=254, statement="") == only()
    assert only(command=254, command_name="idle").command == "idle"


def test_texts_are_cut_and_printable() -> None:
    found = only(user="\x1b[2J" + "u" * 300, statement="S" * 4096)
    assert found.user is not None
    assert len(found.user) == 128
    assert "\x1b" not in found.user
    assert found.statement == "S" * MAX_STATEMENT


def test_the_last_statement_is_one() -> None:
    assert only(statement="SELECT 1", last=True).statement == "SELECT 1"
    assert only(statement="SELECT 1", last=True).last
    for other in (
        "DO 1",
        "use shop",
        "END",
        "end;",
        "SET/**/a=1",
        "select@@version",
        "(SELECT(1))",
    ):
        assert only(statement=other, last=True).statement == other
    for other in ("shop", "ELECT 1", "\x00\x01", "/* a", "caching_sha2_password"):
        assert only(statement=other, last=True).statement is None
    assert only(statement="shop").statement == "shop"  # it runs: the server parses it


def test_random_characters_are_no_statement() -> None:
    """The challenge of a login that is still in the memory of the first packet."""
    for other in ("dO@2x(Zm7f{\\;P`p4Q|;", "DO(Zm7f{\\;P`p4Q|;abc", "xa;Zm7f", "set-0Aq"):
        assert only(statement=other, last=True).statement is None


def test_a_character_that_was_cut_is_left_out() -> None:
    assert only(statement="SELECT 'gr\ufffd\ufffd", cut=True).statement == "SELECT 'gr"
    assert only(statement="SELECT '\ufffd", cut=False).statement == "SELECT '\ufffd"


def test_own_connections_are_marked() -> None:
    assert only(statement=OWN + "1.0 */ SELECT 1").own
    assert only(statement=OWN + "1.0 */ SELECT 1", last=True).own
    assert not only(statement="SELECT '/* stallscope '").own
    thread = annotate(convoy(), from_memory(decode([line(said(statement=OWN + "*/ DO 1"))]), None))
    assert [t.own for t in thread.threads if t.connection == 7] == [True]


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b"[]",
        b"\xff",
        b"[" * 200_000,
        line(said())[:-3],
        line(said(connection=-1)),
        line(said(connection="7")),
        line(said(connection=2**70)),
        line(said(tid=None)),
        line(said(user="u" * 513)),
        line(said(user=["u"])),
        line(said(age_ms=-1)),
        line(said(age_ms=1e300)),
        line(said(command=-1)),
        line(said(transaction=1)),
        line(sessions=None),
        line(moment=-1),
        line(moment=10**400),
        line(said()).replace(b'"connection":7', b'"connection":1e999'),
        line(said(statement="x")).replace(b'"x"', b'"\\ud800"'),
    ],
)
def test_hostile_lines_are_an_error_of_one_line(data: bytes) -> None:
    with pytest.raises(StallscopeError) as caught:
        decode([data])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@seed(SEED)
@settings(max_examples=200)
@given(st.data())
def test_whatever_a_line_is(data: st.DataObject) -> None:
    valid = bytearray(line(said(user="app", statement="SELECT 1", age_ms=5.5), moment=1))
    for _ in range(data.draw(st.integers(0, 8))):
        at = data.draw(st.integers(0, len(valid) - 1))
        valid[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))
    try:
        moments = decode([bytes(valid)])
    except StallscopeError:
        return
    capture = annotate(convoy(), redact(from_memory(moments, "no SQL"), normalize))
    capturefile.loads(capturefile.dumps(capture), "again")


def test_lines_follow_a_capture_and_do_not_belong_to_it() -> None:
    whole = capturefile.dumps(convoy())
    assert split(whole) == (whole, ())
    lines = line(said()) + b"\n" + line(said(tid=102), moment=1) + b"\n"
    data, moments = split(whole + lines)
    assert data == whole
    assert [(m.number, [s.tid for s in m.sessions]) for m in moments] == [(0, [101]), (1, [102])]
    assert split(lines) == (b"", moments)
    assert split(b"") == (b"", ())
    # Within a string it is no line.
    quoted = whole[:-1] + b' "{"type":"sessions",'
    assert split(quoted) == (quoted, ())
    with pytest.raises(StallscopeError, match="cannot be read"):
        split(whole + lines[:-5])


# What SQL says of threads 101 and 102 of process 100.
SQL = Sessions(
    sessions=(
        Session(7, 11, user="app", database="shop", command="Query", statement="SELECT 1 FROM a"),
        Session(8, 12, user="app", command="Sleep"),
    ),
    pid=100,
)


def moment(*sessions: Session, number: int = 0) -> Moment:
    return Moment(number=number, time_ns=1, sessions=sessions)


def seen(connection: int, tid: int, statement: str | None = None, **more: Any) -> Session:
    return Session(connection, process=0, tid=tid, statement=statement, user="seen", **more)


def annotated(sessions: Sessions, *moments: Moment, capture: Capture | None = None) -> Capture:
    known = msgspec.structs.replace(sessions, memory=moments)
    return annotate(capture or convoy(), redact(known, normalize))


def described(capture: Capture) -> dict[int, tuple[int | None, str | None, str | None, str | None]]:
    return {
        t.tid: (t.connection, t.user, t.query, t.source)
        for t in capture.threads
        if t.connection is not None
    }


def test_sql_is_preferred_and_memory_shows_the_others() -> None:
    same = seen(7, 101, "SELECT 2 FROM a", seconds=2.5)
    found = annotated(SQL, moment(same, seen(8, 102), seen(9, 103, "COMMIT", seconds=2.5)))
    assert described(found) == {
        101: (7, "app", "SELECT ? FROM a", None),
        102: (8, "app", None, None),
        103: (9, "seen", "COMMIT", "memory"),
    }
    assert [t.age_ns for t in found.threads if t.tid == 103] == [2_500_000_000]
    assert found.notes == convoy().notes


def test_a_thread_that_ran_something_else_when_it_was_captured() -> None:
    """SQL is asked after the capture: by then the thread runs the next statement, or serves
    another connection."""
    found = annotated(
        SQL,
        moment(
            seen(7, 101, "UPDATE b SET c = 4711", transaction=None),
            seen(5, 102, "DELETE FROM b WHERE c = 4711"),
        ),
    )
    assert described(found) == {
        101: (7, "app", "UPDATE b SET c = ?", "memory"),
        102: (5, "seen", "DELETE FROM b WHERE c = ?", "memory"),
    }
    # The statement before is no news of what runs now.
    found = annotated(SQL, moment(seen(7, 101, "UPDATE b SET c = 4711", last=True)))
    assert described(found)[101] == (7, "app", "SELECT ? FROM a", None)


def test_each_moment_of_a_burst_has_its_own_statement() -> None:
    threads = tuple(Thread(tid=t, ns_tid=t - 90, frames=()) for t in (101, 102))
    other = Thread(tid=101, ns_tid=11, frames=())
    later = Capture(
        backend="bpf", processes=(Process(pid=100),), threads=(other, threads[1]), moment=1
    )
    burst = Capture(backend="bpf", processes=(Process(pid=100),), threads=threads, later=(later,))
    first = moment(seen(7, 101, "SELECT 1"), seen(8, 102, "SELECT 1"))
    second = moment(seen(7, 101, "COMMIT"), number=1)
    found = annotated(Sessions(()), first, second, capture=burst)
    assert [t.query for t in found.threads] == ["SELECT ?", "SELECT ?"]
    # The second one did not run since, and is the same thread.
    assert [t.query for t in found.moments[1].threads] == ["COMMIT", "SELECT ?"]
    assert found.moments[1].threads[1] is found.threads[1]


def test_memory_alone_says_why() -> None:
    found = annotate(
        convoy(),
        redact(from_memory((moment(seen(7, 101, "SELECT 4711")),), "Access denied"), normalize),
    )
    assert described(found) == {101: (7, "seen", "SELECT ?", "memory")}
    assert [(n.code, n.message) for n in found.notes[1:]] == [
        ("sessions", "connections and statements are from the server's memory: Access denied")
    ]
    thread = next(t for t in found.threads if t.connection == 7)
    assert reported.session(thread).endswith("(from the server's memory)")
    # Nothing was asked for: nothing is to be said.
    quiet = annotate(convoy(), redact(from_memory((moment(seen(7, 101)),), None), normalize))
    assert quiet.notes == convoy().notes


def test_sql_of_another_server_is_not_used_beside_memory() -> None:
    other = msgspec.structs.replace(SQL, pid=4711, waits=(LockWait(LockKind.ROW, 7, 8),))
    found = annotated(other, moment(seen(9, 103, "COMMIT")))
    assert described(found) == {103: (9, "seen", "COMMIT", "memory")}
    assert "process 4711" in found.notes[-1].message
    assert found.locks == convoy().locks


def test_another_process_has_the_same_thread_ids_without_effect() -> None:
    found = annotated(Sessions(()), moment(msgspec.structs.replace(seen(9, 101), process=1)))
    assert described(found) == {}


RAW = (
    "INSERT INTO t VALUES ('secret', 4711, 0xc0ffee)",
    "SELECT 'secret",
    "SELECT 'it''s secret', \"secret\", 4711 -- secret",
    "/* secret */ SELECT x FROM t WHERE y = 'secret' AND z IN (4711, 4711)",
    "SELECT _binary'\x00secret\ufffd\x1b[2J', 4711",
    "SELECT 'a\ufffd\\', 'secret', 4711",  # a character of GBK that ends as a backslash
    "SELECT 'C:\\', 'secret'",  # without backslash escapes
    'SELECT "a\\", \'secret\', "b"',
    "SET PASSWORD = 'secret'",
    "\ufffd\ufffdsecret 4711",
    "SELECT '" + "x" * 1010 + "secret 4711",
    "SELECT '" + "x" * 1020 + "', 'secret 4711",
    "select\x00secret",
)


@pytest.mark.parametrize("statement", RAW)
@pytest.mark.parametrize("last", [False, True])
def test_no_literal_reaches_a_file_or_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], statement: str, last: bool
) -> None:
    path = tmp_path / "0001.jsonl.zst"
    capturefile.write(convoy(), path)
    moments = decode([line(said(tid=100, statement=statement, last=last, user="app"))])
    known = from_memory(moments, "the server did not answer")
    answer, named = name_capture(VerdictRequest(str(path), known), catalog.load([]))
    beside = sessionsfile.path_of(path).read_text()
    assert json.loads(beside)["sessions"]["memory"][0]["sessions"][0]["user"] == "app"
    shown = [beside, repr(answer), repr(named)]
    for words in (
        ("analyze", str(path), "--full"),
        ("analyze", str(path), "--json"),
        ("export", str(path), "--to", "csv"),
        ("export", str(path), "--to", "firefox"),
    ):
        assert main.main(list(words)) in (0, 3)
        shown += capsys.readouterr()
    assert any("connection 7" in text for text in shown)
    for secret in SECRETS:
        assert not [text for text in shown if secret in text]
    if not last:
        assert raw_statements(known)[7] == statement[:MAX_STATEMENT]


def test_a_statement_that_is_not_redacted_is_left_out() -> None:
    found = annotate(convoy(), from_memory((moment(seen(7, 101, "SELECT 'secret'")),), "no SQL"))
    assert described(found) == {101: (7, "seen", None, "memory")}


def test_modes_of_the_server_count_for_memory_too() -> None:
    both = Sessions((), ansi_quotes=True, memory=(moment(seen(7, 101, 'SELECT a FROM "t"')),))
    assert described(annotate(convoy(), redact(both, normalize)))[101][2] == 'SELECT a FROM "t"'


def test_the_file_says_what_the_capture_in_memory_does(tmp_path: Path) -> None:
    path = tmp_path / "0001.jsonl.zst"
    capturefile.write(convoy(), path)
    first = seen(7, 101, "SELECT 'secret'", seconds=2.0, transaction=True, host="h", last=True)
    known = from_memory((moment(first), moment(seen(7, 101, "COMMIT"), number=1)), "why")
    answer, named = name_capture(VerdictRequest(str(path), known), catalog.load([]))
    assert answer.sessions is None
    assert answer.notes == ("connections and statements are from the server's memory: why",)
    read = capturefile.read(path)
    assert named is not None
    assert described(read) == {101: (7, "seen", "SELECT ?", "memory")}
    thread = next(t for t in read.threads if t.tid == 101)
    assert (thread.age_ns, thread.transaction) == (2_000_000_000, True)
    assert msgspec.structs.replace(read, path=None) == msgspec.structs.replace(
        annotate(convoy(), redact(known, normalize)), path=None
    )


def test_top_shows_memory_where_sql_does_not_answer() -> None:
    memory = (moment(seen(7, 101, "SELECT 4711")),)
    asking = Asking(Login(user="nobody"), 0.01)
    found = asking.into(convoy(), memory)
    assert described(found) == {101: (7, "seen", "SELECT ?", "memory")}
    assert "did not answer in time" in found.notes[-1].message
    assert asking.into(convoy(), ()) == convoy()


def test_top_gives_memory_to_the_capture_that_follows() -> None:
    shown: list[object] = []
    source = LiveSource((1,), (), catalog.load([]), LiveOptions())
    source._put = shown.append
    for _ in range(2):
        source._take(line(said(statement="SELECT 4711")), 1)
        for number, record in enumerate(capturefile.dumps(convoy()).splitlines(), 2):
            source._take(record, number)
        for number, record in enumerate(capturefile.dumps(convoy()).splitlines(), 2):
            source._take(record, number)
    captures = [event.analysis.capture for event in shown if isinstance(event, Analyzed)]
    expected = {101: (7, None, "SELECT ?", "memory")}
    assert [described(capture) for capture in captures] == [expected, {}, expected, {}]
