# SPDX-License-Identifier: Apache-2.0
"""A healthy server has no stall: none is found, and none is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.analyzers import catalog, engine, waits
from stallscope.model import capturefile
from stallscope.model.waitkinds import FILE_KINDS
from tests.live.shots import serve_command, served, take, unharmed
from tests.live.watches import watched
from tests.support.servers import MariaDB, SqlServer, wait_until
from tests.support.servers.clients import idle_connections
from tests.support.servers.tasks import at_rest
from tests.support.stalls import sysbench_load
from tests.support.watching import Line, Watcher

pytestmark = pytest.mark.needs("root", "bpf")

CAPTURES = 30
COMMITS = 3
"""Between two captures of a busy server."""
ACT_ON_IT = 0.9
"""Confidence from which on a verdict is to be acted on: docs/verdict.md."""
RATE = 20
"""Transactions a second, of 20 statements each: a small part of what one CPU does."""
LIGHT_RATE = 10
ASYNCHRONOUS = ("read", "write")
"""What MariaDB does by libaio or io_uring too: then no thread waits, and an event has no stack."""


@pytest.mark.needs("waits")
def test_idle(server: SqlServer, tmp_path: Path) -> None:
    """All its threads wait, for work, and each has been sampled."""
    with (
        idle_connections(server, 20),
        watched(server, "--threshold", "50", "--capture-threshold", "50") as watch,
        unharmed(server),
    ):
        started = watch.ask("waits", "waits")
        wait_until(lambda: at_rest(server.pid), "each connection waits for a statement")
        shot = take(tmp_path, "-p", server.pid)
        assert shot.analysis["findings"] == []
        assert shot.analysis["threads"]["idle"] >= 20
        known = catalog.load()
        for file in served(serve_command(server), tmp_path, CAPTURES):
            found = engine.analyze(capturefile.read(file), known)
            assert found.findings == ()
            assert found.states.count(waits.IDLE) >= 20
        # Longer than the sleeps of InnoDB's threads: a second, and ten.
        wait_until(lambda: watch.ask("waits", "waits")["ts"] > started["ts"] + 11, "11 seconds")
        # A slow disk is no error of the probe: what the server writes by itself may take long.
        assert [event for event in watch.events() if event["kind"] not in FILE_KINDS] == []
        triggers = [capture.trigger for capture in watch.captures]
        assert [one for one in triggers if one is None or one.kind not in FILE_KINDS] == []


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.needs("sysbench")
def test_busy(server: SqlServer, tmp_path: Path) -> None:
    """A queue behind a thread that has lost its CPU is a moment: most captures are without."""
    queues = []
    known = catalog.load()
    with sysbench_load(server, 8, "oltp_read_write", f"--rate={RATE}"), unharmed(server):
        for file in served(serve_command(server), tmp_path, CAPTURES):
            for finding in engine.analyze(capturefile.read(file), known).findings[:1]:
                assert finding.confidence < ACT_ON_IT, finding
                queues.append(f"{finding.signature} {finding.confidence}")
            # The next one is of another moment.
            enough = server.status("Com_commit") + COMMITS
            wait_until(lambda: server.status("Com_commit") >= enough, "the load goes on")  # noqa: B023
    assert len(queues) <= CAPTURES // 3, queues


@pytest.mark.nightly
@pytest.mark.needs("sysbench", "waits")
def test_light_load_has_true_events_alone(server: SqlServer) -> None:
    """What is reported of a healthy server is a file or a lock that a statement waited for."""
    with (
        sysbench_load(server, 4, "oltp_read_write", f"--rate={LIGHT_RATE}"),
        watched(server, "--threshold", "100") as watch,
        unharmed(server),
    ):
        done = server.status("Questions")
        wait_until(lambda: server.status("Questions") > done + 1500, "load for a while")
        watch.ask("waits", "waits")
        # A slow disk is no error of the probe; a reported thread without work would be one.
        for event in watch.events():
            assert event["kind"] not in ("cond", "join", "sem"), event
            assert event["kind"] != "futex" or nameless_latch(server, event), event
            no_waiter = event["kind"] in ASYNCHRONOUS and not event["in_flight"]
            if not event["frames"]:
                assert event["label"] is None, event
                assert no_waiter or has_stack_at_its_end(watch, event), event
            assert event["name"], event


def has_stack_at_its_end(watch: Watcher, event: Line) -> bool:
    """Return whether this wait in flight has ended, and its stack was copied then.

    A wait that a slow machine has made long may end before its stack is copied.
    """
    wait = ("tid", "address", "start_ns")
    end = watch.event(
        lambda other: not other["in_flight"] and all(other[key] == event[key] for key in wait),
        f"end of {event}",
    )
    return event["in_flight"] and bool(end["frames"])


def nameless_latch(server: SqlServer, event: Line) -> bool:
    """Return whether it is a wait for a latch of InnoDB that the binary does not name.

    MariaDB makes its latches of bare futex calls, and Debian's binary exports none of their
    functions. A thread without work waits in libc's functions instead.
    """
    return isinstance(server, MariaDB) and event["frames"][:1] == ["syscall"]
