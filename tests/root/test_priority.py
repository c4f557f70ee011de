# SPDX-License-Identifier: Apache-2.0
"""The priority of a probe that watches: among processes, and of its session among sessions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stallscope.agent.probe_session import ProbeSettings, arguments
from stallscope.collectors.probestream import Stream
from tests.support.known_waits import known_waits
from tests.support.watching import watcher

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "waits")

RAISED = -20


def session_of(pid: int | str) -> str:
    """Return the group of a session, ``/autogroup-17 nice -20``; empty on a kernel without."""
    file = Path(f"/proc/{pid}/autogroup")
    return file.read_text().strip() if file.exists() else ""


def test_the_probe_of_an_agent_comes_before_all_sessions(tmp_path: Path) -> None:
    own = session_of("self")
    with known_waits(tmp_path, 1) as target:
        args = arguments((target.pid,), ProbeSettings(tmp_path), watch=True)
        with Stream(args, max_line=1 << 20) as stream:
            assert b"ready" in next(stream.lines(60.0, lambda: 60.0))
            assert os.getpriority(os.PRIO_PROCESS, stream.pid) == RAISED
            assert session_of(stream.pid).endswith(f" nice {RAISED}" if own else "")
    assert session_of("self") == own


def test_a_session_that_is_not_its_own_is_left_alone(tmp_path: Path) -> None:
    own = session_of("self")
    with known_waits(tmp_path, 1) as target, watcher(target.pid) as watch:
        assert os.getpriority(os.PRIO_PROCESS, watch.pid) == RAISED
        assert session_of(watch.pid) == own
