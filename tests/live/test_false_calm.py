# SPDX-License-Identifier: Apache-2.0
"""Stalls in which the server's threads look idle: what it answers and counts names them.

Each is seen by the agent with its default triggers, and by ``snap``; its fixed twin by neither.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.live.shots import CHECKOUT, take
from tests.support.agents import AgentProcess, agent
from tests.support.stall import STALLS

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "bpf")

SECONDS = 150.0
"""Until the agent has fired: two samples of a replica at rest take a minute."""


class Calm(NamedTuple):
    """What must be said of a stall. ``headline``: in the first line of ``snap``, or the line that
    begins with ``also``; None: ``snap`` alone cannot know."""

    needs: tuple[str, ...]
    trigger: str
    headline: str | None
    ends: bool = True
    """The stall is over when its cause is."""


CASES = {
    "connections-used-up-mariadb": Calm(
        ("mariadb",), "connections-used-up", "its own login was refused: all"
    ),
    "connections-used-up-mysql97": Calm(
        ("mysql97",), "connections-used-up", "its own login was refused: all"
    ),
    "connections-used-up-postgres": Calm(
        ("postgres",), "connections-used-up", "its own login was refused: all"
    ),
    "login-dns": Calm(("mariadb",), "login-hang", "12 clients hang in their login", ends=False),
    "login-pool": Calm(("mariadb",), "no-answer", "its own login has had no answer", ends=False),
    "semisync-no-replica": Calm(
        ("mariadb",), "semisync-wait", "for a replica's acknowledgement, and no replica"
    ),
    "semisync-no-replica-mysql97": Calm(
        ("mysql97",), "semisync-wait", "for a replica's acknowledgement, and no replica"
    ),
    "replica-stopped": Calm(("mariadb",), "replica-stopped", "replication is stopped", ends=False),
    "replica-lag": Calm(("mariadb",), "replica-lag", "also: replication is", ends=False),
    "galera-flow-control": Calm(
        ("galera",), "galera-flow-control", "flow control has paused the cluster"
    ),
    "galera-not-primary": Calm(
        ("galera",), "galera-not-primary", "not part of the primary cluster", ends=False
    ),
    "group-flow-control": Calm(
        ("mysql97",),
        "group-flow-control",
        "flow control of the group slows commits down",
        ends=False,  # its other member ends, and leaves a group without a majority
    ),
    "group-no-majority": Calm(
        ("mysql97",), "group-no-majority", "the group has no majority", ends=False
    ),
    "read-only": Calm(("mariadb",), "read-only", "the server is read-only"),
    "handshakes-aborted": Calm(("mariadb",), "handshakes-aborted", None),
}


def fired(watch: AgentProcess) -> set[str]:
    return {
        one["trigger"]
        for event in list(watch.events)
        for one in event["incident"].get("triggers", ())
    }


def first_lines(pid: int) -> str:
    """Return what ``snap`` says, with its lines joined."""
    argv = [sys.executable, "-m", "stallscope", "snap", "-p", str(pid), "--sql-deadline", "5"]
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


IN_EACH_RUN = (
    "connections-used-up-mariadb",
    "connections-used-up-postgres",
    "login-dns",
    "semisync-no-replica",
    "galera-not-primary",
)
"""One of each kind that takes no minutes; all are nightly."""


def cases(*, twin: bool) -> list[Any]:
    """Return all cases; a twin takes a server of its own, and shows what the others do."""
    often = IN_EACH_RUN[:1] if twin else IN_EACH_RUN
    return [
        pytest.param(name, marks=() if name in often else pytest.mark.nightly) for name in CASES
    ]


@pytest.mark.parametrize("name", cases(twin=False))
def test_the_agent_and_snap_name_it(
    require: Callable[..., None], tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    require(*case.needs)
    with (
        STALLS[name].started() as (server, made),
        agent(server.pid, tmp_path / "store") as watch,
    ):
        with made:
            if case.headline is not None:
                assert case.headline in first_lines(server.pid)
            watch.wait(lambda: case.trigger in fired(watch), case.trigger, SECONDS)
            assert not watch.of("end")
        if case.ends:
            watch.wait(lambda: watch.of("end"), "end", SECONDS)


@pytest.mark.parametrize("name", cases(twin=True))
def test_the_fixed_twin_is_calm(require: Callable[..., None], tmp_path: Path, name: str) -> None:
    require(*CASES[name].needs)
    with STALLS[f"{name}-fixed"].started() as (server, made), made:
        shot = take(tmp_path, "-p", server.pid)
    named = [f["signature"] for f in shot.analysis["findings"] if f["confidence"] >= 0.5]
    assert named == []


def test_dns_is_named_by_stacks_alone(require: Callable[..., None], tmp_path: Path) -> None:
    """Where the account is not let in either, the library that asks DNS shows it."""
    require("mariadb")
    with STALLS["login-dns"].started() as (server, made), made:
        assert take(tmp_path, "-p", server.pid, "--no-sql").signatures[:1] == ["login-hang"]
