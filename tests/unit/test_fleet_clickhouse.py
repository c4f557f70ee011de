# SPDX-License-Identifier: Apache-2.0
"""ClickHouse over HTTP, from a server that says what a test wants it to say."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from stallscope.base.sending import SendError
from stallscope.fleet import batch
from stallscope.fleet.address import Address
from stallscope.fleet.batch import Batch
from stallscope.fleet.destination import EngineError
from stallscope.fleet.engines import clickhouse
from stallscope.fleet.engines.clickhouse import ClickHouse, ClickHouseDestination
from stallscope.fleet.engines.clickhouseclient import Client, Failure
from stallscope.fleet.engines.clickhouseddl import Layout, definitions
from stallscope.fleet.tables import PARTS, TABLES, WaitRow, day_of
from tests.support.fleet.examples import NOON, example

__all__: list[str] = []

DAY_MS = 86_400_000
Answer = tuple[int, dict[str, str], bytes]


class Fake:
    """A server: ``answer`` makes an answer of a statement. ``asked``: path, headers and body."""

    def __init__(self, answer: Callable[[str], Answer]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.port = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, _, body in self.asked]


UNPACK = {"gzip": gzip.decompress, "zstd": zstd.decompress}


@contextlib.contextmanager
def serving(answer: Callable[[str], Answer]) -> Iterator[Fake]:
    fake = Fake(answer)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            body = UNPACK.get(self.headers.get("Content-Encoding", ""), bytes)(body)
            fake.asked.append((self.path, dict(self.headers), body))
            status, headers, said = fake.answer(body.decode("utf-8", "replace"))
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(said)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        fake.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()


def of(*hosts: str) -> Address:
    return Address(scheme="http", hosts=hosts, database="db", user="u", password="s3cret")


def said(code: int, status: int = 500, why: str = "because") -> Answer:
    return (
        status,
        {},
        f"Code: {code}, e.displayText() = DB::Exception: {why}, e.what() = x".encode(),
    )


def usual(sql: str, version: str = "18.16.1") -> Answer:
    return 200, {}, version.encode() if "version()" in sql else b""


def refusing(answer: Answer) -> Callable[[str], Answer]:
    return lambda sql: answer if sql.startswith("INSERT") else usual(sql)


ROW = batch.make([example(WaitRow)])


@pytest.mark.parametrize("code", [26, 27, 38, 53, 72, 117, 130, 349])
def test_rows_that_cannot_be_read_are_refused(code: int) -> None:
    with serving(refusing(said(code))) as fake, pytest.raises(SendError) as caught:
        ClickHouseDestination(of(fake.host)).send(ROW)
    assert caught.value.refused


@pytest.mark.parametrize(
    "code", [60, 81, 159, 164, 192, 193, 209, 225, 241, 242, 243, 252, 279, 285, 319, 497, 516, 999]
)
def test_what_can_end_is_tried_again(code: int) -> None:
    answer = refusing(said(code, 401 if code == 193 else 500))
    with serving(answer) as fake, pytest.raises(SendError, match="because") as caught:
        ClickHouseDestination(of(fake.host)).send(ROW)
    assert not caught.value.refused
    assert "s3cret" not in str(caught.value)
    assert (caught.value.after > 0) == (code in (241, 243, 252))


@pytest.mark.parametrize(
    ("answer", "words", "refused"),
    [
        ((413, {}, b"too large"), "413", True),
        ((302, {"Location": "http://elsewhere/"}, b""), "give the address itself", False),
        ((404, {}, b"<html>nginx"), "not as ClickHouse does", False),
        ((500, {}, b"\xff\x1b[2J\n" * 500), "500", False),
        ((500, {}, b""), "nothing", False),
    ],
)
def test_what_is_no_clickhouse_is_said(answer: Answer, words: str, refused: bool) -> None:
    with serving(refusing(answer)) as fake, pytest.raises(SendError, match=words) as caught:
        ClickHouseDestination(of(fake.host)).send(ROW)
    assert caught.value.refused is refused
    assert str(caught.value).isprintable()


def test_an_answer_can_ask_for_a_pause() -> None:
    busy = (503, {"Retry-After": "17"}, b"busy")
    with serving(refusing(busy)) as fake, pytest.raises(SendError) as caught:
        ClickHouseDestination(of(fake.host)).send(ROW)
    assert caught.value.after == 17


def test_a_server_that_hangs_or_is_gone_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clickhouse, "_SEND_SECONDS", 0.1)
    over = threading.Event()

    def hanging(sql: str) -> Answer:
        if sql.startswith("INSERT"):
            over.wait(60)
        return usual(sql)

    with serving(hanging) as fake:
        for host in (fake.host, "127.0.0.1:1"):
            with pytest.raises(SendError) as caught:
                ClickHouseDestination(of(host)).send(ROW)
            assert not caught.value.refused
            assert "s3cret" not in str(caught.value)
        over.set()


def test_a_node_that_cannot_is_skipped() -> None:
    with serving(lambda _: said(242)) as readonly, serving(usual) as good:
        client = Client(of("127.0.0.1:1", readonly.host, good.host))
        for _ in range(5):
            assert client.execute("SELECT version()") == b"18.16.1"
        assert len(good.asked) == 5
        # It stays with the node that is able to.
        assert len(readonly.asked) <= 1


def test_where_no_node_can_the_one_that_answers_is_named() -> None:
    with serving(lambda _: said(242, why="read-only")) as fake:
        client = Client(of("127.0.0.1:1", fake.host))
        with pytest.raises(Failure, match=r"read-only .*none of the 2 nodes is able to"):
            client.execute("SELECT 1")


@pytest.mark.parametrize(("version", "how"), [("18.16.1", "gzip"), ("20.10.1", "zstd")])
def test_inserts_are_packed_and_durable(version: str, how: str) -> None:
    with serving(lambda sql: usual(sql, version)) as fake:
        ClickHouseDestination(of(fake.host)).send(batch.make([example(WaitRow, "x" * 2000)]))
    path, headers, body = fake.asked[-1]
    assert headers["Content-Encoding"] == how
    assert body.startswith(b"INSERT INTO waits FORMAT JSONEachRow\n{")
    assert "insert_distributed_sync=1" in path
    assert "s3cret" not in path
    assert headers["X-ClickHouse-Key"] == "s3cret"


@pytest.mark.parametrize(("version", "waits"), [("21.10.1", False), ("21.11.1", True)])
def test_asynchronous_inserts_are_waited_for(version: str, waits: bool) -> None:
    with serving(lambda sql: usual(sql, version)) as fake:
        ClickHouseDestination(of(fake.host)).send(ROW)
    assert ("async_insert=1&wait_for_async_insert=1" in fake.asked[-1][0]) is waits


def test_an_insert_has_ninety_days_at_most() -> None:
    rows = [example(WaitRow, minute_ms=NOON - n * DAY_MS) for n in range(200)]
    with serving(usual) as fake:
        ClickHouseDestination(of(fake.host)).send(batch.make(rows * 2))
    inserts = [body for body in fake.bodies if body.startswith(b"INSERT")]
    days = [set(re.findall(rb'"day":"([-0-9]+)"', body)) for body in inserts]
    assert [len(one) for one in days] == [90, 90, 20]
    assert set.union(*days) == {day_of(NOON - n * DAY_MS).encode() for n in range(200)}
    assert sum(body.count(b"\n{") for body in inserts) == 400


def test_stacks_are_there_before_what_refers_to_them() -> None:
    lines: dict[str, tuple[bytes, ...]] = {"incidents": (b"{}",), "stacks": (b"{}",)}
    with serving(usual) as fake:
        ClickHouseDestination(of(fake.host)).send(Batch(lines))
    inserts = [body.split()[2] for body in fake.bodies if body.startswith(b"INSERT")]
    assert inserts == [b"stacks", b"incidents"]


def test_an_account_that_may_not_read_writes() -> None:
    forbidden = said(497)
    answer = lambda sql: forbidden if " FROM " in sql else usual(sql)  # noqa: E731
    with serving(answer) as fake:
        destination = ClickHouseDestination(of(fake.host))
        destination.send(ROW)
        destination.send(ROW)
    assert sum(body.startswith(b"INSERT") for body in fake.bodies) == 2
    assert destination.notes == ()


@pytest.mark.parametrize(
    "date", ["Sun, 29 Nov 2026 00:57:22 GMT", "", "nonsense", "\xff", "0" * 99]
)
def test_any_date_is_taken(date: str) -> None:
    with serving(lambda _: (200, {"Date": date}, b"18.16.1")) as fake:
        client = Client(of(fake.host))
        client.execute("SELECT 1")
    assert (client.skew_ms is not None) == date.startswith("Sun")


@pytest.mark.parametrize(
    "damaged",
    [b"", b"{", b"[]", b'{"meta":[],"data":[[1]]}', b'{"meta":1,"data":[]}', b"\xff" * 10],
)
def test_damaged_answers_are_said(damaged: bytes) -> None:
    answer = lambda sql: usual(sql) if "version()" in sql else (200, {}, damaged)  # noqa: E731
    with serving(answer) as fake, pytest.raises(EngineError, match="damaged"):
        ClickHouse(of(fake.host)).rows("SELECT 1")


@given(st.binary(max_size=200))
def test_no_answer_ends_in_a_traceback(answer: bytes) -> None:
    from stallscope.fleet.engines.clickhouse import _rows

    with contextlib.suppress(EngineError):
        assert isinstance(_rows(answer, "x"), list)


def test_quoted_numbers_become_numbers() -> None:
    answer = (
        b'{"meta":[{"name":"a","type":"Nullable(Int64)"},{"name":"b","type":"Array(UInt64)"},'
        b'{"name":"c","type":"String"}],"data":[["-9223372036854775808",["1","2"],"7"],[null,[],""]]}'
    )
    with serving(lambda s: usual(s) if "version()" in s else (200, {}, answer)) as fake:
        rows = ClickHouse(of(fake.host)).rows("SELECT 1")
    assert rows == [{"a": -(2**63), "b": [1, 2], "c": "7"}, {"a": None, "b": [], "c": ""}]


def test_a_statement_is_not_asked_again_without_readonly() -> None:
    why = said(164, why="Cannot execute query in readonly mode")
    answer = lambda sql: usual(sql) if "version()" in sql else why  # noqa: E731
    with serving(answer) as fake, pytest.raises(EngineError, match="readonly"):
        ClickHouse(of(fake.host)).rows("DROP TABLE waits")
    assert [
        path for path, _, body in fake.asked if b"DROP" in body and "readonly=2" not in path
    ] == []


@pytest.mark.parametrize("version", [(18, 16), (19, 6), (20, 3), (26, 9)])
@pytest.mark.parametrize("cluster", ["", "fleet"])
def test_definitions_use_what_the_version_has(version: tuple[int, int], cluster: str) -> None:
    made = dict(definitions(Layout("db", version, cluster, replicated=bool(cluster))))
    text = "\n".join(made.values())
    assert (" TTL " in text) == (version >= (19, 6))
    assert ("CODEC" in text) == (version >= (19, 6))
    assert ("LowCardinality" in text) == (version >= (20, 3))
    assert ("ReplicatedReplacingMergeTree" in text) == bool(cluster)
    local = {f"{name}_local" for name in TABLES} if cluster else set()
    assert made.keys() == {*TABLES, *PARTS, *local, "agents_buffer"}
