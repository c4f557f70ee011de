# SPDX-License-Identifier: Apache-2.0
"""Captures by the hundred lose no connection of a server whose reads do not survive EINTR.

MySQL 5.5 gives a connection up when its read was interrupted net_retry_count times in a row.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pytest

from stallscope.collectors import probe
from tests.live.shots import unharmed
from tests.support.servers import PATIENCE, MySQL55
from tests.support.servers.clients import idle_connections

pytestmark = pytest.mark.needs("root", "probe", "mysql55")

IDLE = 20


@contextmanager
def serving(pid: int, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``stallscope-probe serve`` until the end of the block; it must end with 0."""
    command = [str(probe.find()), "serve", "--pid", str(pid), *options]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
            print("quit", file=process.stdin, flush=True)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def records(output: IO[str] | None) -> Iterator[dict[str, Any]]:
    """Yield the records of one capture."""
    assert output is not None
    for line in output:
        record = json.loads(line)
        yield record
        assert record["type"] != "error", record
        if record["type"] == "end":
            return
    pytest.fail("the probe ended in the middle of a capture")


@pytest.mark.parametrize(
    ("captures", "options", "stops"),
    [
        pytest.param(1000, ("--backend", "bpf"), False, marks=pytest.mark.needs("bpf")),
        pytest.param(100, ("--backend", "ptrace"), True, marks=pytest.mark.needs("ptrace")),
    ],
)
def test_idle_connections_survive(
    captures: int, options: tuple[str, ...], stops: bool, mysql55: MySQL55
) -> None:
    with idle_connections(mysql55, IDLE) as connections, unharmed(mysql55):
        ids = mysql55.connection_ids()
        assert len(ids) >= IDLE
        stopped = 0
        with serving(mysql55.pid, *options) as process:
            for _ in range(captures):
                print("snap", file=process.stdin, flush=True)
                *_, end = (r for r in records(process.stdout) if r["type"] != "ready")
                stopped = max(stopped, end["stopped_ns"])
                assert end["threads"] >= IDLE
        assert (stopped > 0) == stops
        assert ids <= mysql55.connection_ids()
        for connection in connections:
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
                assert cursor.fetchall() == ((1,),)
