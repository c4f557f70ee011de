# SPDX-License-Identifier: Apache-2.0
"""A healthy server has no stall."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.analyzers import catalog, engine, waits
from stallscope.model import capturefile
from tests.live.shots import serve_command, served, take, unharmed
from tests.support.servers import SqlServer, wait_until
from tests.support.servers.clients import idle_connections
from tests.support.servers.tasks import at_rest
from tests.support.stalls import sysbench_load

pytestmark = pytest.mark.needs("root", "bpf")

CAPTURES = 30
COMMITS = 3
"""Between two captures of a busy server."""
ACT_ON_IT = 0.9
"""Confidence from which on a verdict is to be acted on: docs/verdict.md."""
RATE = 20
"""Transactions a second, of 20 statements each: a small part of what one CPU does."""


def test_idle(server: SqlServer, tmp_path: Path) -> None:
    with idle_connections(server, 20), unharmed(server):
        wait_until(lambda: at_rest(server.pid), "each connection waits for a statement")
        shot = take(tmp_path, "-p", server.pid)
        assert shot.analysis["findings"] == []
        assert shot.analysis["threads"]["idle"] >= 20
        known = catalog.load()
        for file in served(serve_command(server), tmp_path, CAPTURES):
            found = engine.analyze(capturefile.read(file), known)
            assert found.findings == ()
            assert found.states.count(waits.IDLE) >= 20


@pytest.mark.alone
@pytest.mark.needs("sysbench")
def test_busy(server: SqlServer, tmp_path: Path) -> None:
    """A queue behind a thread that has lost its CPU is a moment: most captures are without."""
    queues = []
    known = catalog.load()
    with sysbench_load(server, 8, "oltp_read_write", f"--rate={RATE}"), unharmed(server):
        for file in served(serve_command(server), tmp_path, CAPTURES):
            for finding in engine.analyze(capturefile.read(file), known).findings[:1]:
                assert finding.confidence < ACT_ON_IT, finding
                queues.append(f"{finding.signature} {finding.confidence}")
            # The next one is of another moment.
            enough = server.status("Com_commit") + COMMITS
            wait_until(lambda: server.status("Com_commit") >= enough, "the load goes on")  # noqa: B023
    assert len(queues) <= CAPTURES // 3, queues
