# SPDX-License-Identifier: Apache-2.0
"""``stallscope memory`` on real servers: a statement that needs memory, and who ran it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stallscope.base.errors import Exit
from stallscope.collectors import memory
from stallscope.main import main
from stallscope.model.memory import MemoryReport, decode_report
from tests.bench.memory import OPTIONS, holders, make_tables, opened, union
from tests.support.servers import PATIENCE, MariaDB, MySQL55, MySQL97, SqlServer
from tests.support.targets import trouble_left

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "bpf")

PARTITIONS = 100
MENTIONS = 200
JEMALLOC = Path("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2")


def check(report: MemoryReport) -> None:
    assert report.attributed_share is not None, report
    assert 0.9 <= report.attributed_share <= 1.1, report.stacks[:5]
    assert report.complete, report.notes


@pytest.mark.parametrize("kind", [MySQL55, MariaDB, MySQL97])
def test_stacks_explain_what_a_statement_takes(
    kind: type[SqlServer], require: Callable[..., None]
) -> None:
    require(kind.name)
    with kind(*OPTIONS) as server:
        make_tables(server, PARTITIONS)
        server.shut_down()
        server.start()
        with server.connect() as idle:
            opening = opened(server)
            check(opening)
            assert holders(opening, "mysql_execute_command") > 0.3
            if kind is MySQL55:
                assert holders(opening, "ha_partition::open") > 0.5
            check(union(server, MENTIONS))
            idle.ping(reconnect=False)  # no connection was lost
        assert server.answers()
        assert not trouble_left(server.pid)


def test_the_connection_and_its_statement_are_named(
    mariadb: MariaDB,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The statement begins when the probe records: nothing depends on time."""
    begun = memory.record
    made: list[int] = []
    size = 48 << 20

    def act() -> None:
        with asking.cursor() as cursor:
            cursor.execute(f"SET @kept = REPEAT('x', {size})")
        made.append(int(asking.thread_id()))  # type: ignore[no-untyped-call]
        over.set()

    over = threading.Event()

    def record(pid: int, options: memory.Options, **_: object) -> object:
        return begun(
            pid, options, ready=lambda: threading.Thread(target=act).start(), ended=over.is_set
        )

    monkeypatch.setattr(memory, "record", record)
    mariadb.execute(f"SET GLOBAL max_allowed_packet = {2 * size}")
    asking = mariadb.connect()  # which has that limit
    path = tmp_path / "growth.json"
    arguments = ["memory", "-p", str(mariadb.pid), "--seconds", str(PATIENCE), "--json"]
    assert main([*arguments, "-o", str(path), "--sql-deadline", "30"]) == Exit.DONE
    report = decode_report(path.read_bytes(), "x")
    assert json.loads(capsys.readouterr().out)["schema"] == "stallscope.memory/1"
    assert os.stat(path).st_mode & 0o777 == 0o600
    asking.close()
    check(report)
    largest = report.threads[0]
    assert largest.bytes >= size // 2
    assert largest.connection == made[0]
    assert largest.user == "root"
    assert report.connections
    assert report.bytes_per_connection


def test_jemalloc(require: Callable[..., None]) -> None:
    """Another allocator changes nothing but what malloc holds, which is not known then."""
    require("mariadb")
    if not JEMALLOC.exists():
        pytest.skip("libjemalloc2 is not installed")
    server = MariaDB(*OPTIONS)
    server.env = {"LD_PRELOAD": str(JEMALLOC)}
    with server:
        make_tables(server, PARTITIONS)
        server.shut_down()
        server.start()
        report = union(server, MENTIONS)
        check(report)
        assert report.malloc is not None
        assert report.malloc.unknown is not None
        assert server.answers()


def test_several_servers_are_one_too_many(
    mariadb: MariaDB, capsys: pytest.CaptureFixture[str]
) -> None:
    pids = ["-p", str(mariadb.pid), "-p", str(os.getpid())]
    assert main(["memory", *pids, "--seconds", "1"]) == Exit.USAGE
    assert "one server" in capsys.readouterr().err
