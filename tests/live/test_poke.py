# SPDX-License-Identifier: Apache-2.0
"""A few pokes of MySQL 5.5.9: what they do to InnoDB, and that all is undone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.base.errors import StallscopeError
from stallscope.collectors.poke import allowlist, looking, poking, records
from stallscope.model.pokes import Plan
from tests.support.servers import MySQL55, SqlServer, wait_until
from tests.support.targets import trouble

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "probe", "mysql55")

CHECKOUT = Path(__file__).resolve().parents[2]
READ_AHEAD = "Innodb_buffer_pool_read_ahead"


def poke(*words: str | int | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "stallscope", "poke", *map(str, words)],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
    )


def plan_of(server: SqlServer) -> Plan:
    allowed = allowlist.load()
    return poking.word_plan(allowed, "linear-read-ahead", looking.look(server.pid, allowed), None)


def read_ahead(server: SqlServer) -> int:
    """Return the pages that a scan of the table reads ahead."""
    before = server.status(READ_AHEAD)
    server.query("SELECT SUM(LENGTH(pad)) FROM p.t")
    return server.status(READ_AHEAD) - before


def test_read_ahead_stops_and_goes_on(tmp_path: Path) -> None:
    with MySQL55("--innodb-buffer-pool-size=5M", "--innodb-file-per-table") as server:
        idle = server.connect()
        server.execute("CREATE DATABASE p")
        server.execute(
            "CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, pad VARBINARY(2000)) ENGINE=InnoDB",
            "INSERT INTO t (pad) VALUES (REPEAT('x', 2000))",
            *["INSERT INTO t (pad) SELECT pad FROM t"] * 13,
            database="p",
        )
        assert read_ahead(server) > 0
        words = ("linear-read-ahead", "-p", server.pid, "--records", tmp_path / "r", "--json")
        dry = poke(*words)
        assert (dry.returncode, json.loads(dry.stdout)["old"]) == (0, 0), dry.stderr
        assert read_ahead(server) > 0
        done = poke(*words, "--yes", "--for", "600")
        assert done.returncode == 0, done.stderr
        assert read_ahead(server) == 0
        listed = json.loads(poke("--undo", "--records", tmp_path / "r", "--json").stdout)
        (one,) = listed["pokes"]
        assert (one["state"], len(one["supervisors"])) == ("active", 2)
        assert poke("--undo", one["id"], "--records", tmp_path / "r").returncode == 0
        assert read_ahead(server) > 0
        assert trouble(server.pid) == []
        idle.ping(reconnect=False)
        idle.close()


def test_a_restart_and_a_deadline(tmp_path: Path) -> None:
    with MySQL55() as server:
        stored = poking.write(plan_of(server), tmp_path, None)
        server.shut_down()
        server.start()
        with pytest.raises(StallscopeError, match="has ended or was restarted"):
            poking.undo(stored.record.id, tmp_path)
        stored = poking.write(plan_of(server), tmp_path, 0.3)
        wait_until(lambda: records.read(stored.path).end is not None, "it is undone")
        assert plan_of(server).old == 0
        assert server.answers()


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on a disk that the server's user can enter."""
    with tempfile.TemporaryDirectory(prefix="stallscope-poke-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_redo_with_direct_writes(tmp_path: Path, disk: Path) -> None:
    with MySQL55("--innodb-flush-log-at-trx-commit=1", parent=disk) as server:
        server.execute("CREATE DATABASE p")
        server.execute("CREATE TABLE t (id INT PRIMARY KEY) ENGINE=InnoDB", database="p")
        allowed = allowlist.load()
        looked = looking.look(server.pid, allowed, files=True)
        try:
            plan = poking.direct_io_plan(allowed, "redo", looked)
        except poking.PokeError as error:
            pytest.skip(f"{disk}: {error}")
        assert len(plan.files) == 2
        stored = poking.write(plan, tmp_path / "r", None)
        assert _direct(server) == 2
        for number in range(50):
            server.execute(f"INSERT INTO t VALUES ({number})", database="p")
        poking.undo(stored.record.id, tmp_path / "r")
        assert _direct(server) == 0
        server.execute("INSERT INTO t VALUES (1000)", database="p")
        server.shut_down()
        server.start()
        assert server.number("SELECT COUNT(*) FROM p.t") == 51


def _direct(server: SqlServer) -> int:
    """Return how many of its redo files are open with O_DIRECT."""
    count = 0
    for entry in Path(f"/proc/{server.pid}/fd").iterdir():
        if "ib_logfile" in os.readlink(entry):
            flags = Path(f"/proc/{server.pid}/fdinfo/{entry.name}").read_text()
            count += bool(int(flags.split("flags:")[1].split()[0], 8) & os.O_DIRECT)
    return count
