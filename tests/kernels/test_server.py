# SPDX-License-Identifier: Apache-2.0
"""In a guest: a real stall of a real server gets its name, and the server does not notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.model.capture import Label
from tests.live.shots import take, unharmed
from tests.needs import why_not
from tests.support.servers import MariaDB
from tests.support.stalls import metadata_lock_pileup

pytestmark = [pytest.mark.kernels("server"), pytest.mark.needs("root", "mariadb")]

WAITERS = 12


def test_metadata_lock_of_mariadb(tmp_path: Path) -> None:
    with (
        MariaDB() as server,
        metadata_lock_pileup(server, WAITERS),
        unharmed(server),
    ):
        shot = take(tmp_path, "-p", server.pid)
    assert shot.signatures[0] == "metadata-lock"
    finding = shot.analysis["findings"][0]
    assert finding["threads"] >= WAITERS
    assert shot.analysis["stopped_ns"] == 0
    if why_not("bpf") is None:
        assert shot.analysis["backend"] == "bpf"
        blocked = [thread for thread in shot.capture.threads if thread.state == "S"]
        assert len(blocked) > WAITERS
        assert {thread.label for thread in blocked} == {Label.VERIFIED}
    else:
        assert shot.analysis["backend"] == "proc"
