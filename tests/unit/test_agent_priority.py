# SPDX-License-Identifier: Apache-2.0
"""The agent's priority among other processes, and its session's among other sessions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.skipif(os.getpriority(os.PRIO_PROCESS, 0) > 7, reason="this test runs at less")
@pytest.mark.parametrize("own_session", [True, False])
def test_a_session_leader_sets_the_priority_of_its_session_and_of_no_other(
    own_session: bool,
) -> None:
    before = AUTOGROUP.read_text()  # empty where nothing since boot has led a session
    done = subprocess.run(
        [sys.executable, "-c", LOWER],
        cwd=Path(__file__).parents[2],
        start_new_session=own_session,
        capture_output=True,
        text=True,
        check=True,
    )
    nice, *session = done.stdout.splitlines()
    assert nice == "7"
    if own_session:
        assert session[0].endswith(" nice 7")
    else:
        assert session == before.splitlines()
    assert AUTOGROUP.read_text() == before
