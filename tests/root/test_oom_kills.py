# SPDX-License-Identifier: Apache-2.0
"""A process that the kernel's OOM killer ends, and what is said of its end."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from stallscope.collectors.host import exits
from stallscope.collectors.host.oomkills import LOG, OomKills, logged
from tests.support.cgroups import limited

pytestmark = pytest.mark.needs("root", "cgroups")

HUNGRY = "print(flush=True); input(); x = b'a' * (400 << 20)"
LIMIT = 60 << 20
RECORD = "oom-kill:constraint=CONSTRAINT_MEMCG,cpuset=/,oom_memcg=/no,task_memcg=/no,task=x"


def test_the_limit_of_a_group_ends_a_server(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    with limited("memory") as group:
        group.limit_memory(LIMIT)
        argv = [*group.wrapper, sys.executable, "-c", HUNGRY]
        with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as child:
            assert child.stdout is not None
            child.stdout.readline()
            descriptor = os.pidfd_open(child.pid)
            name = f"/{group.folder.name}"
            forged = f"{RECORD},pid={child.pid},uid=0"
            assert logged(forged, child.pid)
            with (
                closing(exits.Life(child.pid, ())) as life,
                closing(OomKills(child.pid)) as kills,
                closing(OomKills(child.pid, log=tmp_path / "none")) as without_log,
            ):
                LOG.write_text(f"<4>{forged}\n")
                assert not kills.of_server()
                child.communicate(b"\n")
                assert group.killed() == 1
                words = f"killed by the OOM killer (memory limit of cgroup {name})"
                assert life.ending(descriptor) == (words, False)
                words = (
                    f"killed by the OOM killer, as it seems: it ended a process of cgroup {name}"
                )
                assert without_log.of_server() == words
            os.close(descriptor)
