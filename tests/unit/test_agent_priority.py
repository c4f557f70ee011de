# SPDX-License-Identifier: Apache-2.0
"""The agent's priority among other processes, and its session's among other sessions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

__all__: list[str] = []

AUTOGROUP = Path("/proc/self/autogroup")
LOWER = """
import os
from pathlib import Path
from stallscope.base.priority import set_priority

set_priority(7)
print(os.getpriority(os.PRIO_PROCESS, 0))
print(Path("/proc/self/autogroup").read_text(), end="")
"""

# Alone: with other tests they run at a lower priority, from which only root comes back.
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel gives CPU time to no sessions"),
]


def lowered(*, own_session: bool) -> list[str]:
    """Return what a process of this priority says of itself, and of its session."""
    done = subprocess.run(
        [sys.executable, "-c", LOWER],
        cwd=Path(__file__).parents[2],
        start_new_session=own_session,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.skipif(os.getpriority(os.PRIO_PROCESS, 0) > 7, reason="these tests run at less")
def test_a_session_leader_sets_the_priority_of_its_session() -> None:
    nice, session = lowered(own_session=True)
    assert nice == "7"
    assert session.endswith(" nice 7")


@pytest.mark.skipif(os.getpriority(os.PRIO_PROCESS, 0) > 7, reason="these tests run at less")
def test_the_session_of_somebody_else_is_left_alone() -> None:
    before = AUTOGROUP.read_text()  # empty where nothing since boot has led a session
    assert lowered(own_session=False) == ["7", *before.splitlines()]
    assert AUTOGROUP.read_text() == before
