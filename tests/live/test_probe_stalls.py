# SPDX-License-Identifier: Apache-2.0
"""Real stalls are seen by the wait programs while they go on: who waits, for what, and who holds
it.

And a server that is well has no event.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from stallscope.analyzers import catalog, engine
from stallscope.analyzers.analysis import Finding
from stallscope.model.capture import Capture
from stallscope.model.waitkinds import FILE_KINDS
from tests.live.shots import unharmed
from tests.support.servers import PATIENCE, MariaDB, MySQL55, SqlServer, wait_until
from tests.support.servers.clients import idle_connections
from tests.support.stalls import (
    FILE_EXTEND_OPTIONS,
    LONG_CHECKS,
    REDO_SYNC_OPTIONS,
    deadlock_check_storm,
    file_extend,
    loop_device,
    metadata_lock_pileup,
    redo_sync,
    sysbench_load,
)
from tests.support.watching import Line, Watcher, watcher

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "waits")

CAPTURE_MS = 200
TELLING = ("--threshold", "50", "--capture-threshold", "3600000")
"""What goes on is told, and takes no capture before the stall stands: see caught()."""
KERNEL_MUTEX = "srv0srv.c:"
"""InnoDB's mutexes are named by where they are made; srv0srv.c makes one that threads queue for."""
CHECKS = {
    "lock_deadlock_recursive",
    "lock_deadlock_occurs",
    "lock_rec_enqueue_waiting",
    "lock_clust_rec_read_check_and_lock",
}
"""Deadlock checking, down to the function that takes the kernel mutex for it."""
RATE = 10


@pytest.fixture(params=["mariadb", "mysql55", "mysql97"])
def server(request: pytest.FixtureRequest) -> SqlServer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, SqlServer)
    return found


@contextmanager
def watched(server: SqlServer, *options: str) -> Iterator[Watcher]:
    """Watch a server; to attach the probes must cost it nothing."""
    with ExitStack() as stack:
        with unharmed(server):
            watch = stack.enter_context(watcher(server.pid, options=("--events", *options)))
        yield watch


def functions(frames: list[str]) -> set[str]:
    """Return the names of the functions, arguments left aside, in the stack of an event."""
    return {frame.partition("(")[0] for frame in frames}


def in_flight(*kinds: str, within: str = "", name: str = "") -> Callable[[Line], bool]:
    """Return what tells an event of a wait of these kinds that goes on."""
    return lambda event: (
        event["in_flight"]
        and event["kind"] in kinds
        and name in event["name"]
        and (not within or within in functions(event["frames"]))
    )


@functools.cache
def signatures() -> catalog.Catalog:
    return catalog.load()


def verdict(capture: Capture) -> Finding | None:
    findings = engine.analyze(capture, signatures()).findings
    return findings[0] if findings else None


def caught(watch: Watcher, signature: str, kind: str = "all") -> tuple[Capture, Finding]:
    """Let waits of this kind take captures; return the first one that has this verdict.

    What is slow before has taken none: a disk may be, or a machine that starts one thread now and
    the next one much later.
    """
    watch.ask(f"capture-threshold {kind} {CAPTURE_MS}", "capture-threshold")
    return first_of(watch, signature)


def first_of(watch: Watcher, signature: str) -> tuple[Capture, Finding]:
    """Return the first capture of this verdict that a wait has taken; wait for it."""
    seen: Counter[str | None] = Counter()
    deadline = time.monotonic() + PATIENCE
    for number in itertools.count():
        capture = watch.capture(number)
        found = verdict(capture)
        if found is not None and found.signature == signature and found.blocker is not None:
            return capture, found
        seen[found.signature if found is not None else None] += 1
        assert time.monotonic() < deadline, f"no {signature} with a blocker among {seen}"
    raise AssertionError


@pytest.mark.needs("freeze", "mysql55")
def test_file_extension() -> None:
    """One thread makes the file larger; the others wait for the latch of the index it changes."""
    with loop_device() as device, MySQL55(*FILE_EXTEND_OPTIONS, parent=device.folder) as server:
        with (
            watched(server, *TELLING) as watch,
            file_extend(server, device),
            unharmed(server),
        ):
            extends = watch.event(
                in_flight("extend", within="fil_extend_space_to_desired_size"), "extension"
            )
            assert extends["name"].endswith("/yard/heap.ibd")
            assert extends["label"] == "verified"
            waits = watch.event(
                in_flight("rwlock", within="btr_cur_search_to_nth_level"), "wait for the latch"
            )
            assert waits["waiters"] > 10
            assert waits["tid"] != extends["tid"]
            capture, found = caught(watch, "innodb-file-extend")
        assert capture.trigger is not None
        assert capture.trigger.kind in ("extend", "rwlock", "mutex")
        assert found.threads > 10
        assert found.blocker is not None
        assert found.blocker.tid == extends["tid"]
        assert "fil_extend_space_to_desired_size" in functions(list(found.blocker.frames))


@pytest.mark.needs("freeze", "mysql55")
def test_fsync() -> None:
    """The commit that syncs the log is seen in its fsync; it is what the others wait for."""
    with loop_device() as device, MySQL55(*REDO_SYNC_OPTIONS, parent=device.folder) as server:
        with (
            watched(server, *TELLING) as watch,
            redo_sync(server, device),
            unharmed(server),
        ):
            capture, found = caught(watch, "innodb-redo-sync", "fsync")
            trigger = capture.trigger
            assert trigger is not None
            # A slow disk may have had others before.
            syncs = watch.event(
                lambda event: event["tid"] == trigger.tid and in_log_sync(event), "sync of the log"
            )
            assert syncs["name"].endswith("/ib_logfile0")
            assert {"fil_flush", "innobase_commit"} <= functions(syncs["frames"])
            assert syncs["label"] == "verified"
        assert (trigger.kind, trigger.name) == ("fsync", syncs["name"])
        assert found.threads > 10
        assert found.blocker is not None
        assert found.blocker.tid == syncs["tid"]
        assert found.blocker.frames[0] == "fsync"


in_log_sync = in_flight("fsync", within="log_write_up_to")


@pytest.mark.needs("mysql55")
def test_deadlock_check(mysql55: MySQL55) -> None:
    """The deadlock checker holds the kernel mutex: it wakes those that wait for that."""
    # Not one capture after the other: waits that go on meanwhile would be over when they are met.
    # And none of the waits for rows, which are told ten times as often: this program has to read
    # what is told, and would hold the probe up.
    options = ("--kind", "mutex", "--threshold", "2")
    captures = ("--capture-threshold", "mutex=2", "--capture-interval", "250")
    with (
        watched(mysql55, *options, *captures) as watch,
        deadlock_check_storm(mysql55, LONG_CHECKS),
        unharmed(mysql55),
    ):
        waits = watch.event(in_flight("mutex", name=KERNEL_MUTEX), "wait for the kernel mutex")
        assert waits["waiters"] >= 1
        in_wait = watch.event(
            in_flight("mutex", within="mutex_spin_wait", name=KERNEL_MUTEX), "its stack"
        )
        assert in_wait["label"] == "verified"
        held = watch.event(woken_by_a_checker, "waiter whose holder checks for deadlocks")
        assert held["name"] == in_wait["name"]
        capture, found = first_of(watch, "innodb-deadlock-check")
    assert capture.trigger is not None
    assert capture.trigger.kind == "mutex"
    assert found.blocker is not None
    assert functions(list(found.blocker.frames)) & CHECKS


def woken_by_a_checker(event: Line) -> bool:
    """Say whether it is the end of a wait for the mutex, let go where deadlocks are checked."""
    return (
        not event["in_flight"]
        and event["kind"] == "mutex"
        and KERNEL_MUTEX in event["name"]
        and event["waker"] is not None
        and bool(functions(event["waker"]["frames"]) & CHECKS)
    )


def test_metadata_locks(server: SqlServer) -> None:
    """Each of them is seen, by the name of its table; the statement that they wait for is named."""
    waiters = 10
    with (
        watched(server, *TELLING) as watch,
        metadata_lock_pileup(server, waiters),
        unharmed(server),
    ):
        wait_until(
            lambda: len(tids(watch, in_flight("metadata-lock"))) > waiters,
            "an event of each waiter",
        )
        events = [event for event in watch.events() if event["kind"] == "metadata-lock"]
        assert {event["name"] for event in events} == {"shop.orders"}
        for event in events:
            assert "MDL_context::acquire_lock" in functions(event["frames"]), event
            assert event["label"] == "verified"
        _, found = caught(watch, "metadata-lock")
        assert found.threads >= waiters
        assert found.blocker is not None
        assert "mysql_alter_table" in functions(list(found.blocker.frames))


def tids(watch: Watcher, wanted: Callable[[Line], bool]) -> set[int]:
    return {event["tid"] for event in watch.events() if wanted(event)}


def test_an_idle_server_has_no_event(server: SqlServer) -> None:
    """All its threads wait, for work, and each has been looked at."""
    with (
        idle_connections(server, 20),
        watched(server, "--threshold", "50", "--capture-threshold", "50") as watch,
        unharmed(server),
    ):
        started = watch.ask("waits", "waits")
        # Longer than the sleeps of InnoDB's threads: a second, and ten.
        wait_until(lambda: watch.ask("waits", "waits")["ts"] > started["ts"] + 11, "11 seconds")
        # A slow disk is no error of the probe: what the server writes by itself may take long.
        assert [event for event in watch.events() if event["kind"] not in FILE_KINDS] == []
        triggers = [capture.trigger for capture in watch.captures]
        assert [one for one in triggers if one is None or one.kind not in FILE_KINDS] == []


@pytest.mark.needs("sysbench")
def test_light_load_has_true_events_alone(server: SqlServer) -> None:
    """What is told of a healthy server is a file or a lock that a statement waited for."""
    with (
        sysbench_load(server, 4, "oltp_read_write", f"--rate={RATE}"),
        watched(server, "--threshold", "100") as watch,
        unharmed(server),
    ):
        done = server.status("Questions")
        wait_until(lambda: server.status("Questions") > done + 1500, "load for a while")
        watch.ask("waits", "waits")
        # A slow disk is no error of the probe; a thread without work that is told would be one.
        for event in watch.events():
            assert event["kind"] not in ("cond", "join", "futex", "sem"), event
            assert event["frames"], event
            assert event["name"], event


def test_servers_are_distinguished(mariadb: MariaDB, mysql55: MySQL55) -> None:
    """One probe watches two servers; a stall of one is an event of that one."""
    with (
        watcher(mariadb.pid, mysql55.pid, options=("--events", "--threshold", "50")) as watch,
        metadata_lock_pileup(mysql55, 5),
        unharmed(mariadb),
        unharmed(mysql55),
    ):
        event = watch.event(in_flight("metadata-lock"), "wait for a metadata lock")
        assert {event["pid"] for event in watch.events()} == {mysql55.pid}
        assert event["name"] == "shop.orders"
