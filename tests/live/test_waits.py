# SPDX-License-Identifier: Apache-2.0
"""What a waiting thread waits for.

On a server of its own: where a debugger has stopped it before, a timed wait goes on as
restart_syscall(2) and no longer says what it was.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.model.capture import Label, LockKind
from tests.live.shots import take, threads_with, unharmed
from tests.support.servers import MariaDB
from tests.support.stalls import metadata_lock_pileup

pytestmark = pytest.mark.needs("root", "bpf", "mariadb")

WAITERS = 20


def test_waiters_are_verified_with_their_wait(mariadb: MariaDB, tmp_path: Path) -> None:
    with metadata_lock_pileup(mariadb, WAITERS), unharmed(mariadb):
        capture = take(tmp_path, "-p", mariadb.pid, "--backend", "bpf").capture
    waiters = threads_with(capture, "MDL_context::acquire_lock")
    assert len(waiters) == WAITERS + 1
    for thread in waiters:
        assert thread.label is Label.VERIFIED
        assert not thread.on_cpu
        assert thread.syscall is not None
        assert thread.syscall.name == "futex"
        assert thread.lock is not None
        assert capture.locks[thread.lock].kind is LockKind.COND
