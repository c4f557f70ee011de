# SPDX-License-Identifier: Apache-2.0
"""A server in a container, and the agent in another one with the privileges of its manifest."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stallscope.agent.http.address import Address
from stallscope.model.capture import Capture, Label, Thread
from stallscope.model.incident import Incident
from stallscope.store import read_incident
from tests.support import manifests
from tests.support.agents import AgentProcess, agent, incidents
from tests.support.containers import STORE, Box, any_python, box, contained
from tests.support.servers import PATIENCE, MariaDB
from tests.support.servers.child import UNPRIVILEGED
from tests.support.servers.mariadb import lock_plugin_options
from tests.support.stalls import metadata_lock_pileup
from tests.support.targets import trouble
from tests.unit.httpclient import get

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "bpf", "mariadb", "containers")]

DAEMON_SET, SIDECAR = "daemonset.yaml", "sidecar.yaml"
WAITS_IN = "MDL_context::acquire_lock"
"""A function of the server, whose name is in the server's file alone."""


@pytest.fixture
def outside() -> Iterator[MariaDB]:
    """Yield a server that the agent sees from outside of its container."""
    with contained(user_namespace=True) as server:
        yield server


@pytest.fixture
def beside() -> Iterator[MariaDB]:
    """Yield a server with which the agent shares pid and net namespaces."""
    with contained(user_namespace=False) as server:
        yield server


@contextmanager
def watching(made: Box, pid: int, *options: object) -> Iterator[AgentProcess]:
    """Run the agent in a box; it is ended by its own pid, since nsenter passes no signal on."""
    login = made.volume / "my.cnf"
    login.write_text("[client]\nuser=root\n")
    login.chmod(0o644)
    words = ("--defaults-file", f"{STORE}/my.cnf", "--listen", f"unix:{STORE}/http", *options)
    with agent(pid, Path(STORE) / "store", *words, python=made.command(*any_python())) as watch:
        yield watch


def stalled(server: MariaDB, made: Box, watch: AgentProcess) -> tuple[Incident, list[Capture]]:
    """Make a stall; return its incident, and the captures of it that were whole."""
    with metadata_lock_pileup(server):
        watch.wait(lambda: watch.of("stall"), "stall")
    watch.wait(lambda: watch.of("end"), "end")
    found = incidents(made.volume / "store")
    # A host that is busy can breach a trigger of its own; that is no stall of this server.
    (incident,) = [one for one in found if one.verdict is not None]
    stored = read_incident(made.volume / "store" / "incidents" / incident.id)
    captures = [one.capture for one in stored.captures()]
    assert trouble(server.pid) == []
    assert server.answers()
    return incident, [one for one in captures if one is not None]


def check(incident: Incident, captures: Sequence[Capture], pid: int, backend: str) -> None:
    """Assert that stacks, names, statements and numbers are there."""
    assert incident.verdict is not None
    assert incident.verdict.signature == "metadata-lock"
    assert incident.target.pid == pid
    assert captures
    for capture in captures:
        assert capture.backend == backend, capture.backend_reason
        assert [one.pid for one in capture.processes] == [pid]
    # Those of the first moments may be from before the stall.
    best = max(captures, key=lambda capture: len(waiters(capture)))
    found = waiters(best)
    assert len(found) >= 20
    assert sum(one.label == Label.VERIFIED for one in found) >= 20
    known = [one for one in found if one.connection is not None]
    assert len(known) >= 20, best.notes
    assert all(one.query and one.source is None for one in known), "over its own socket"


def waiters(capture: Capture) -> list[Thread]:
    """Return the threads that wait for the metadata lock, by the names of their functions."""
    return [
        thread
        for thread in capture.threads
        if any(WAITS_IN in (frame.symbol or "") for frame in thread.frames)
    ]


def test_a_daemon_set(outside: MariaDB) -> None:
    """Outside of the server's container, with the node's pids: theirs are other ones inside."""
    with box(manifests.capabilities(DAEMON_SET)) as made, watching(made, outside.pid) as watch:
        incident, captures = stalled(outside, made, watch)
        check(incident, captures, outside.pid, "bpf")
        tids = {int(path.name) for path in Path(f"/proc/{outside.pid}/task").iterdir()}
        assert {one.tid for one in captures[0].threads} & tids
        health = get(Address(path=str(made.volume / "http")), "/healthz")
        assert (health.status, json.loads(health.body)["status"]) == (200, "ok")
        assert "wait programs are attached when a wait is long" in " ".join(watch.said)


def test_a_sidecar(beside: MariaDB) -> None:
    """In the server's pid namespace, as its user, without any privilege."""
    given = manifests.capabilities(SIDECAR)
    assert given == ()
    with (
        box(given, beside=beside.pid, user=UNPRIVILEGED) as made,
        watching(made, 1) as watch,
    ):
        incident, captures = stalled(beside, made, watch)
        check(incident, captures, 1, "proc")
        health = get(Address(path=str(made.volume / "http")), "/healthz")
        assert (health.status, json.loads(health.body)["status"]) == (200, "ok")


def test_a_sidecar_with_the_privileges_of_the_daemon_set(beside: MariaDB) -> None:
    with (
        box(manifests.capabilities(DAEMON_SET), beside=beside.pid) as made,
        watching(made, 1) as watch,
    ):
        incident, captures = stalled(beside, made, watch)
        check(incident, captures, 1, "bpf")


def snap(made: Box, pid: int) -> tuple[dict[str, Any] | None, str]:
    """Take a capture in a box: its analysis, or None; and what was said."""
    done = subprocess.run(
        made.stallscope("snap", "-p", pid, "--json", "--once", "-o", f"{STORE}/a.jsonl.zst"),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        cwd="/",
    )
    assert "Traceback" not in done.stderr
    return (json.loads(done.stdout) if done.stdout else None), done.stderr


def test_each_capability_is_needed(outside: MariaDB) -> None:
    given = manifests.capabilities(DAEMON_SET)
    assert set(given) == {"bpf", "perfmon", "sys_ptrace"}
    for missing in given:
        with box([name for name in given if name != missing]) as made:
            found, said = snap(made, outside.pid)
        assert found is None, found
        assert "CAP_" in said
        assert said.count("\n") == 1


def test_a_sidecar_of_another_user_says_what_it_needs(beside: MariaDB) -> None:
    with box((), beside=beside.pid, user="daemon") as made:
        found, said = snap(made, 1)
    assert found is None
    assert "needs its user, or CAP_SYS_PTRACE" in said


@pytest.mark.needs("mariadb-plugins")
def test_the_owner_of_a_lock_over_sql_through_its_root() -> None:
    """The socket is in the server's root alone; the plugin reports owners by thread ids inside."""
    with (
        contained(*lock_plugin_options(), user_namespace=True) as server,
        box(manifests.capabilities(DAEMON_SET)) as made,
        watching(made, server.pid) as watch,
    ):
        with metadata_lock_pileup(server) as holder:
            watch.wait(lambda: watch.of("stall"), "stall")
        watch.wait(lambda: watch.of("end"), "end")
        (found, *_) = watch.of("end")
        assert found["verdict"]["blocker"]
        stored = read_incident(made.volume / "store" / "incidents" / found["id"])
        named = {
            thread.connection
            for one in stored.captures()
            if one.capture is not None
            for thread in one.capture.threads
            for lock in one.capture.locks
            if lock.owner_tid == thread.tid and lock.source == "server"
        }
        assert holder in named
