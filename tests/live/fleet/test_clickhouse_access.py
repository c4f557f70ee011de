# SPDX-License-Identifier: Apache-2.0
"""Accounts of ClickHouse, and TLS: what works, and what is said where it does not."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from stallscope.base.sending import SendError
from stallscope.fleet import batch
from stallscope.fleet.address import Address, parse
from stallscope.fleet.destination import EngineError
from stallscope.fleet.engines.clickhouse import ClickHouse, ClickHouseDestination
from stallscope.fleet.engines.clickhousetables import init
from stallscope.fleet.tables import IncidentRow, WaitRow
from tests.support.certificates import Certificates, certificates
from tests.support.fleet import clickhouse as server
from tests.support.fleet.clickhouse import User
from tests.support.fleet.examples import example
from tests.support.servers import MEMORY

__all__: list[str] = []

NO_ANSWER = r"cannot be reached|gives no answer"
pytestmark = pytest.mark.needs("clickhouse")

SAID = "check user and password|the account has a password"
SECRET = "s3cr%t/ w:ord@"
USERS = (
    User(),
    User("agent", SECRET, {"allow_ddl": 0}, ("stallscope",)),
    User("people", SECRET, {"readonly": 2, "allow_ddl": 0}, ("stallscope",)),
    User("strict", SECRET, {"readonly": 1}, ("stallscope",)),
)


@pytest.fixture(scope="module")
def node() -> Iterator[server.ClickHouse]:
    """Return a server with accounts, and tables."""
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as folder,
        server.ClickHouse(Path(folder), users=USERS) as found,
    ):
        init([parse(found.url)])
        yield found


def of(node: server.ClickHouse, user: str, password: str = SECRET) -> Address:
    return msgspec.structs.replace(parse(node.url), user=user, password=password)


@pytest.mark.parametrize(
    ("user", "password"), [("agent", "wrong" + SECRET), ("agent", ""), ("nobody", SECRET)]
)
def test_a_wrong_password_is_said_and_tried_again(
    node: server.ClickHouse, user: str, password: str
) -> None:
    address = of(node, user, password)
    with pytest.raises(SendError, match=SAID) as caught:
        ClickHouseDestination(address).send(batch.make([example(WaitRow)]))
    assert not caught.value.refused
    with pytest.raises(EngineError, match=SAID) as asked:
        ClickHouse(address).rows("SELECT 1")
    with pytest.raises(EngineError) as made:
        init([address])
    for error in (caught, asked, made):
        assert SECRET not in str(error.value)
        assert "\n" not in str(error.value)


def test_an_account_of_agents_writes_and_makes_nothing(node: server.ClickHouse) -> None:
    address = of(node, "agent")
    destination = ClickHouseDestination(address)
    destination.send(batch.make([example(IncidentRow, uid="of an agent")]))
    assert destination.notes == ()
    with pytest.raises(EngineError):
        ClickHouse(address).rows("DROP TABLE incidents")
    with pytest.raises(EngineError):
        init([msgspec.structs.replace(address, database="other")])
    question = "SELECT count() AS n FROM incidents FINAL WHERE uid = 'of an agent'"
    assert ClickHouse(of(node, "default", "")).rows(question) == [{"n": 1}]


@pytest.mark.parametrize("user", ["people", "strict"])
def test_an_account_of_people_reads_and_writes_nothing(node: server.ClickHouse, user: str) -> None:
    address = of(node, user)
    engine = ClickHouse(address)
    assert engine.rows("SELECT toInt64(5) AS n, [toUInt64(1)] AS m") == [{"n": 5, "m": [1]}]
    assert engine.rows("SELECT count() AS n FROM waits WHERE host = 'none'") == [{"n": 0}]
    assert engine.notes == ()
    with pytest.raises(SendError, match="the account needs to write") as caught:
        ClickHouseDestination(address).send(batch.make([example(WaitRow)]))
    assert not caught.value.refused


def test_joins_work_for_people(node: server.ClickHouse) -> None:
    engine = ClickHouse(of(node, "people"))
    pairs = "SELECT number AS a, 1 AS b FROM system.numbers LIMIT 3"
    sql = f"SELECT count() AS n FROM ({pairs}) JOIN ({pairs}) USING b"
    assert engine.rows(sql) == [{"n": 9}]


@pytest.mark.parametrize("user", ["default", "people", "strict"])
def test_questions_cannot_change_anything(node: server.ClickHouse, user: str) -> None:
    engine = ClickHouse(of(node, user, "" if user == "default" else SECRET))
    for _ in range(2):
        with pytest.raises(EngineError, match="readonly"):
            engine.rows("DROP TABLE IF EXISTS nothing")
    assert engine.rows("SELECT 1 AS n") == [{"n": 1}]


def test_a_password_is_in_no_query_log_or_process_list(node: server.ClickHouse) -> None:
    ClickHouse(of(node, "people")).rows("SELECT 1")
    assert SECRET not in repr(of(node, "people"))
    assert SECRET not in of(node, "people").shown
    for path in node.folder.rglob("log*"):
        assert SECRET.encode() not in path.read_bytes()


@contextmanager
def encrypted(tls: Certificates) -> Iterator[server.ClickHouse]:
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as folder,
        server.ClickHouse(Path(folder), tls=tls) as node,
    ):
        yield node


def by_tls(node: server.ClickHouse) -> Address:
    return parse(f"clickhouse+https://default@127.0.0.1:{node.ports.https}/stallscope")


def is_refused(address: Address, ca_file: str, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        ClickHouse(address, ca_file=ca_file).rows("SELECT 1")
    with pytest.raises(SendError, match=said) as caught:
        ClickHouseDestination(address, ca_file=ca_file).send(batch.make([example(WaitRow)]))
    assert not caught.value.refused


def test_tls(tmp_path: Path) -> None:
    made = certificates(tmp_path)
    with encrypted(made) as node:
        address, ca_file = by_tls(node), str(made.ca)
        init([address], ca_file=ca_file)
        ClickHouseDestination(address, ca_file=ca_file).send(batch.make([example(WaitRow)]))
        assert ClickHouse(address, ca_file=ca_file).rows("SELECT host FROM waits") == [
            {"host": "x"}
        ]
        is_refused(address, "", "self-signed certificate|unable to get local issuer")
        # Plain text to a port of TLS, and the other way round.
        with pytest.raises(EngineError, match=NO_ANSWER):
            ClickHouse(parse(f"clickhouse+http://127.0.0.1:{node.ports.https}/x")).rows("SELECT 1")
        with pytest.raises(EngineError, match=NO_ANSWER):
            ClickHouse(parse(f"clickhouse+https://127.0.0.1:{node.ports.http}/x")).rows("SELECT 1")


@pytest.mark.parametrize(
    ("address", "days", "said"),
    [
        ("127.0.0.2", 2, "certificate is not valid for '127.0.0.1'|mismatch"),
        ("127.0.0.1", -1, "certificate has expired"),
    ],
    ids=["another host", "expired"],
)
def test_a_certificate_that_is_not_for_it(
    tmp_path: Path, address: str, days: int, said: str
) -> None:
    made = certificates(tmp_path, address=address, days=days)
    with encrypted(made) as node:
        is_refused(by_tls(node), str(made.ca), said)


def test_a_file_of_certificates_that_is_missing_is_named(tmp_path: Path) -> None:
    address = parse("clickhouse+https://127.0.0.1:1/x")
    with pytest.raises(EngineError, match=r"nowhere\.pem"):
        ClickHouse(address, ca_file=str(tmp_path / "nowhere.pem")).rows("SELECT 1")
