# SPDX-License-Identifier: Apache-2.0
"""Waits of healthy servers, of several at once, and of a lock that threads pass on."""

from __future__ import annotations

import pytest

from stallscope.model.waitkinds import FILE_KINDS
from tests.live.shots import unharmed
from tests.live.watches import (
    EVENTS_FIRST,
    captured_by,
    first_capture,
    functions,
    in_flight,
    watched,
)
from tests.support.servers import MariaDB, MySQL55, SqlServer, wait_until
from tests.support.servers.clients import idle_connections
from tests.support.stalls import (
    FILE_EXTEND_OPTIONS,
    LONG_CHECKS,
    deadlock_check_storm,
    file_extend,
    loop_device,
    metadata_lock_pileup,
    sysbench_load,
)
from tests.support.watching import Line, Watcher, watcher

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "waits")

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
ASYNCHRONOUS = ("read", "write")
"""What MariaDB does by libaio or io_uring too: then no thread waits, and an event has no stack."""


@pytest.mark.needs("freeze", "mysql55")
def test_file_extension() -> None:
    """One thread makes the file larger; the others wait for the latch of the index it changes."""
    with loop_device() as device, MySQL55(*FILE_EXTEND_OPTIONS, parent=device.folder) as server:
        with (
            watched(server, *EVENTS_FIRST) as watch,
            file_extend(server, device),
            unharmed(server),
        ):
            extension = in_flight("extend", within="fil_extend_space_to_desired_size")
            first = watch.event(extension, "extension")
            assert first["name"].endswith("/yard/heap.ibd")
            assert first["label"] == "verified"
            # The first to wait is reported before a slow machine has started the last.
            waits_for_latch = in_flight("rwlock", within="btr_cur_search_to_nth_level")
            waits = watch.event(
                lambda event: (
                    waits_for_latch(event)
                    and event["waiters"] > 10
                    and event["start_ns"] > first["start_ns"]
                ),
                "many wait for it",
            )
            events = watch.events()
            extends = [event for event in events[: events.index(waits)] if extension(event)]
            assert waits["tid"] != extends[-1]["tid"]
            capture, found = captured_by(watch, "innodb-file-extend")
            # On a slow disk an earlier extension can be long, too.
            extending = {event["tid"] for event in watch.events() if extension(event)}
        assert capture.trigger is not None
        assert capture.trigger.kind in ("extend", "rwlock", "mutex")
        assert found.threads > 10
        assert found.blocker is not None
        assert found.blocker.tid in extending
        assert "fil_extend_space_to_desired_size" in functions(list(found.blocker.frames))


@pytest.mark.needs("mysql55")
def test_deadlock_check(mysql55: MySQL55) -> None:
    """The deadlock checker holds the kernel mutex: it wakes those that wait for that."""
    # Not one capture after the other: waits that go on meanwhile would be over when they are met.
    # And none of the waits for rows, which are reported ten times as often: this program has to
    # read the reports, and would hold the probe up.
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
        capture, found = first_capture(watch, "innodb-deadlock-check")
    assert capture.trigger is not None
    assert capture.trigger.kind == "mutex"
    assert found.blocker is not None
    assert functions(list(found.blocker.frames)) & CHECKS


def woken_by_a_checker(event: Line) -> bool:
    """Return whether it ends a wait for the mutex that the deadlock check released."""
    return (
        not event["in_flight"]
        and event["kind"] == "mutex"
        and KERNEL_MUTEX in event["name"]
        and event["waker"] is not None
        and bool(functions(event["waker"]["frames"]) & CHECKS)
    )


def test_an_idle_server_has_no_event(server: SqlServer) -> None:
    """All its threads wait, for work, and each has been sampled."""
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
    """What is reported of a healthy server is a file or a lock that a statement waited for."""
    with (
        sysbench_load(server, 4, "oltp_read_write", f"--rate={RATE}"),
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
