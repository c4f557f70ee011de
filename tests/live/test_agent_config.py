# SPDX-License-Identifier: Apache-2.0
"""One agent with a configuration: two servers, an account of its own, a server that comes later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.agents import CHECKOUT, AgentProcess
from tests.support.servers import MariaDB, wait_until
from tests.support.stalls import metadata_lock_pileup

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "bpf")]


def test_a_stall_of_each_server_is_notified_once(tmp_path: Path) -> None:
    with MariaDB() as early, MariaDB() as late:
        early.execute(
            "CREATE USER watcher@localhost IDENTIFIED BY 'it''s secret'",
            "GRANT PROCESS ON *.* TO watcher@localhost",
        )
        late.shut_down()
        (tmp_path / "password").write_text("it's secret\n")
        config = tmp_path / "two.toml"
        config.write_text(f"""\
[agent]
dest = "{tmp_path}/store"
json = true
prometheus = "{tmp_path}/agent.prom"

[[server]]
name = "early"
socket = "{early.socket}"
[server.sql]
user = "watcher"
password-file = "{tmp_path}/password"

[[server]]
name = "late"
socket = "{late.socket}"
""")
        config.chmod(0o640)
        words = [sys.executable, "-m", "stallscope", "watch", "--config", str(config)]
        with subprocess.Popen(
            words,
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ,
            start_new_session=True,
        ) as process:
            watch = AgentProcess(process)
            try:
                watch.wait_said("early: ready to capture")
                watch.wait_said("late: waiting for")
                late.start()
                watch.wait_said("late: ready to capture")
                metrics = tmp_path / "agent.prom"
                up = 'what="sql"} 1'
                wait_until(lambda: metrics.exists() and up in metrics.read_text(), "SQL answers")
                for number, server in enumerate((early, late), 1):
                    with metadata_lock_pileup(server):
                        watch.wait(
                            lambda: len(watch.of("stall")) >= number,  # noqa: B023
                            "the stall",
                        )
                    watch.wait(lambda: len(watch.of("end")) >= number, "its end")  # noqa: B023
                    assert watch.of("stall")[-1]["target"]["pid"] == server.pid
                assert watch.stop(signal.SIGTERM) == 0
            finally:
                watch.kill()
    assert len({one["id"] for one in watch.of("end")}) == 2, watch.outline()
    assert not any("secret" in line for line in watch.said)
