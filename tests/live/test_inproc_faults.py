# SPDX-License-Identifier: Apache-2.0
"""A server that dies with the in-process library inside leaves behind what its threads waited
for."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from stallscope.collectors import rings as find_rings
from stallscope.model import capturefile
from stallscope.model.capture import Capture
from stallscope.model.rings import Life
from tests.live.shots import run
from tests.root.support import run_probe
from tests.support.servers import MariaDB, MySQL55, MySQL97, SqlServer, wait_until
from tests.support.servers.inside import RINGS, agent_inside, one_ring
from tests.support.stalls import global_read_lock, sysbench_load

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "probe", "library")]

KILLS = int(os.environ.get("STALLSCOPE_KILLS", "2"))
LONGEST_LIFE = 2.0
"""Seconds under load."""
LASTING_MS = 100
"""Waits of a few milliseconds are no stall, and have no name."""


def left_behind(ring: Path) -> Capture:
    """Read the ring of a dead server as the probe does."""
    assert find_rings.look([ring])[0].life is not Life.ENDED
    done = run_probe("ring", "--ring", str(ring))
    assert done.code in (0, 3), done.stderr
    return capturefile.loads(done.stdout, str(ring))


SERVERS = [
    pytest.param(kind, marks=pytest.mark.needs(kind.name), id=kind.name)
    for kind in (MySQL55, MariaDB, MySQL97)
]


@pytest.mark.needs("sysbench")
@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_killed_under_load_leaves_a_ring_and_starts_again(kind: type[SqlServer]) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    server = kind()
    with agent_inside(server) as rings, server:
        for number in range(KILLS):
            ended_by = (signal.SIGSEGV, signal.SIGKILL)[number % 2]
            with sysbench_load(server, 8, "oltp_write_only") as load:
                with pytest.raises(subprocess.TimeoutExpired):
                    load.wait(chance.uniform(0, LONGEST_LIFE))
                os.kill(server.pid, ended_by)
                server.child.wait()
            (ring,) = rings.glob(RINGS)
            capture = left_behind(ring)
            assert capture.backend == "inproc"
            assert any(thread.frames for thread in capture.threads), f"kill {number}"
            ring.unlink()
            server.stop()
            server.start()
            assert server.query("SELECT COUNT(*) FROM sbtest.sbtest1") == ((10_000,),)


@pytest.mark.needs("mariadb")
def test_what_a_killed_server_waited_for_is_named() -> None:
    server = MariaDB()
    with agent_inside(server) as rings, server:
        with global_read_lock(server):
            lasting = "SELECT COUNT(*) = 0 FROM information_schema.processlist"
            lasting += f" WHERE state LIKE 'Waiting for %' AND time_ms < {LASTING_MS}"
            wait_until(lambda: server.number(lasting), "all have waited for a while")
            os.kill(server.pid, signal.SIGKILL)
            server.child.wait()
        ring = one_ring(rings)
        done = run("analyze", "--json", ring)
        assert done.returncode == 0, done.stderr
        assert '"global-read-lock"' in done.stdout
