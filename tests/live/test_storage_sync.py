# SPDX-License-Identifier: Apache-2.0
"""`storage sync` on a real MariaDB whose syncs take a known time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import MEMORY, MariaDB, Unavailable
from tests.support.slowsyncs import slow_syncs
from tests.support.stalls.load import sysbench_load

pytestmark = pytest.mark.needs("root", "waits", "mariadb")

MS = 20.0
"""Below is memory: a disk's own syncs take any time."""
BUSY = 10
"""A thread that waits for a CPU makes its sync longer: a wrong unit or a sum would be more."""
OPTIONS = ("--log-bin=binlog", "--server-id=1", "--sync-binlog=1")


def test_the_price_of_a_sync_is_found() -> None:
    try:
        with slow_syncs(MS, MEMORY) as folder:
            found, alive = _measured(folder)
    except Unavailable as error:
        pytest.skip(str(error))
    costs = {one["class"]: one for one in found["classes"]}
    for name in ("redo", "binlog"):
        assert costs[name]["syncs"] > 10
        assert MS <= costs[name]["mean_ms"] < BUSY * MS
        assert 0 < costs[name]["syncs_per_commit"] <= 1.1
    assert found["setting"] == {"flush_log_at_trx_commit": 1, "sync_binlog": 1}
    rates = {
        (one["flush_log_at_trx_commit"], one["sync_binlog"]): one["commits_per_s"]
        for one in found["predictions"]
    }
    assert len(rates) == 6
    assert rates[1, 1] < rates[1, 0] < rates[0, 0]
    assert alive


def _measured(folder: Path) -> tuple[dict, bool]:  # type: ignore[type-arg]
    with MariaDB(*OPTIONS, parent=folder) as server:
        options = server.folder / "client.cnf"
        options.write_text(f"[client]\nuser=root\nsocket={server.socket}\nssl=0\n")
        with sysbench_load(server, 4, "oltp_update_non_index"):
            server.execute("SET GLOBAL innodb_flush_log_at_trx_commit=1")
            aborted = server.status("Aborted_clients")
            command = [sys.executable, "-P", "-m", "stallscope", "storage", "sync", "--json"]
            command += ["-p", str(server.pid), "--defaults-file", str(options), "--seconds", "4"]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
            assert done.returncode == 0, done.stderr
            alive = server.answers() and server.status("Aborted_clients") == aborted
        return json.loads(done.stdout.splitlines()[-1]), alive
