# SPDX-License-Identifier: Apache-2.0
"""While a page fault on a frozen disk keeps its mmap_lock, threads of a server get their locks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.root.test_nothing_stalls_it import frozen_disk, keep_mmap_lock
from tests.support.servers import wait_until
from tests.support.servers.inside import preloaded
from tests.support.targets import Target, trouble

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "library", "freeze")]

WAITERS = 6
"""Three have waited before the disk froze, and for three it is the first wait of their lives."""


def test_waits_end_while_the_mmap_lock_is_held(rings: Path) -> None:
    env = preloaded(rings, STALLSCOPE_THRESHOLD="1")
    with (
        frozen_disk() as (disk, freeze),
        Target("mmap_lock", str(disk.folder / "mapped"), "late", env=env) as target,
    ):
        keep_mmap_lock(target, freeze)
        target.ask("wait")
        target.ask("give")
        wait_until(lambda: target.ask("state")["passed"] == WAITERS, "all got the mutex")
        assert target.ask("state") == {"passed": WAITERS, "written": 0, "changed": 0}
        disk.thaw()
        wait_until(lambda: target.ask("state")["changed"] == 1, "the target goes on")
        assert not trouble(target.pid)
