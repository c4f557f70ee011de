# SPDX-License-Identifier: Apache-2.0
"""Real stalls get their names, and their blockers.

Each is made once, and examined by all that can see it from outside: the wait programs, which say
while it goes on who waits for what and who holds it, and take captures of it; ``stallscope snap``;
and debuggers, whose dumps have the same verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from stallscope.analyzers import catalog, engine
from stallscope.analyzers.analysis import Finding
from stallscope.model import capturefile
from stallscope.model.capture import Capture, Label
from tests.live.shots import (
    Captured,
    names_lock_open,
    serve_command,
    served,
    take,
    threads_with,
    unharmed,
)
from tests.live.watches import (
    EVENTS_FIRST,
    captured_by,
    functions,
    in_flight,
    tids,
    watched,
)
from tests.support.dumps import TOOLS, held, verdict
from tests.support.servers import MariaDB, MySQL55, MySQL97, SqlServer, wait_until
from tests.support.stalls import (
    FILE_EXTEND_OPTIONS,
    REDO_SYNC_OPTIONS,
    TABLE_STORM_OPTIONS,
    deadlock_check_storm,
    file_extend,
    loop_device,
    metadata_lock_pileup,
    redo_sync,
    row_lock_convoy,
    table_open_storm,
    template_of_tables,
)
from tests.support.targets import trouble
from tests.support.watching import watcher

pytestmark = pytest.mark.needs("root", "bpf")

TRIES = 60
"""Captures at most, until one catches a moment that comes and goes."""
PASSED_ON_TRIES = 20_000
"""A mutex that is passed on quickly has an owner for a moment only."""

STORM_TRIES = 20_000
STORM_SHOTS = 100
STORM_CONNECTIONS = 190

ENOUGH = 5
"""Captures that are to name the stall before its test is content."""

Check = Callable[[SqlServer, Captured], None]


def shots(server: SqlServer, folder: Path) -> Iterator[Captured]:
    for _ in range(TRIES):
        yield take(folder, "-p", server.pid, "--backend", "bpf")


@pytest.fixture
def same_verdict(require: Callable[..., None], tmp_path: Path) -> Check:
    """Return a check that what debuggers print has the verdict of a capture."""

    def check(server: SqlServer, shot: Captured) -> None:
        require("eu-stack", "gdb")
        for tool in ("eu-stack", "gdb"):
            TOOLS[tool](server, tmp_path / tool)
            theirs = verdict(tmp_path / tool)
            assert theirs.found, tool
            assert theirs.signature == shot.signatures[0], tool

    return check


def test_stall_without_names(mariadb: MariaDB, tmp_path: Path, same_verdict: Check) -> None:
    """Debian's MariaDB hides InnoDB's functions: a stall is seen, and no name is made up."""
    with row_lock_convoy(mariadb, 30):
        with unharmed(mariadb):
            shot = take(tmp_path, "-p", mariadb.pid, "--no-sql")
        assert shot.signatures[0] in (None, "innodb-row-lock")
        assert shot.analysis["findings"][0]["threads"] >= 30
        with unharmed(mariadb):
            same_verdict(mariadb, shot)


@pytest.mark.needs("waits")
def test_metadata_lock(server: SqlServer, tmp_path: Path, same_verdict: Check) -> None:
    """Each wait is seen, by the name of its table; the statement that they wait for is named."""
    waiters = 20
    with watched(server, *EVENTS_FIRST) as watch, metadata_lock_pileup(server, waiters):
        with unharmed(server):
            wait_until(
                lambda: len(tids(watch, in_flight("metadata-lock"))) > waiters,
                "an event of each waiter",
            )
            events = [event for event in watch.events() if event["kind"] == "metadata-lock"]
            assert {event["name"] for event in events} == {"shop.orders"}
            for event in events:
                assert "MDL_context::acquire_lock" in functions(event["frames"]), event
                assert event["label"] == "verified"
            _, found = captured_by(watch, "metadata-lock")
            assert found.threads >= waiters
            assert found.blocker is not None
            assert "mysql_alter_table" in functions(list(found.blocker.frames))
        with unharmed(server):
            shot = take(tmp_path, "-p", server.pid)
        assert shot.signatures[0] == "metadata-lock"
        with unharmed(server):
            same_verdict(server, shot)


@pytest.mark.timeout(1800)
def test_deadlock_check(mysql55: MySQL55, tmp_path: Path) -> None:
    """The checker holds the kernel mutex: it is the blocker of each capture that catches it.

    Most captures have a name: between two rounds the threads want the row's page, or start their
    transactions.
    """
    signatures = catalog.load()
    caught = 0
    names: list[str | None] = []
    with deadlock_check_storm(mysql55, STORM_CONNECTIONS), unharmed(mysql55):
        for file in served(serve_command(mysql55), tmp_path, STORM_TRIES):
            has_checker = b'"lock_deadlock_recursive' in file.read_bytes()
            if not has_checker and len(names) == STORM_SHOTS:
                continue
            capture = capturefile.read(file)
            findings = engine.analyze(capture, signatures).findings
            if len(names) < STORM_SHOTS:
                names.append(findings[0].signature if findings else None)
            caught += has_checker and names_the_checker(capture, findings)
            if caught >= ENOUGH and len(names) == STORM_SHOTS:
                break
    assert caught >= ENOUGH, f"{caught} of {STORM_TRIES} captures caught the deadlock checker"
    named = names.count("innodb-deadlock-check") + names.count("innodb-row-lock")
    assert named > STORM_SHOTS // 2, Counter(names)


def names_the_checker(capture: Capture, findings: Sequence[Finding]) -> bool:
    """Return whether a capture caught the checker and most of its waiters; it is the blocker."""
    checkers = threads_with(capture, "lock_deadlock_recursive")
    if not any(thread.label is Label.VERIFIED for thread in checkers):
        return False  # its frames may be inconsistent
    named = {finding.signature: finding for finding in findings}
    checked = named.get("innodb-deadlock-check")
    if checked is None or checked.threads < STORM_CONNECTIONS // 2:
        return False  # most wait for something else just then, as for the row's page
    assert findings[0].signature == "innodb-deadlock-check"
    assert checked.blocker is not None
    assert checked.blocker.tid in {thread.tid for thread in checkers}
    assert any("lock_deadlock_recursive" in frame for frame in checked.blocker.frames)
    return True


@pytest.mark.needs("mysql55")
@pytest.mark.timeout(1800)
def test_table_open(tmp_path: Path) -> None:
    many = MySQL55(*TABLE_STORM_OPTIONS, template=template_of_tables())
    with many as server, table_open_storm(server), unharmed(server):
        files = served(serve_command(server), tmp_path, PASSED_ON_TRIES)
        assert names_lock_open(files, catalog.load(), ENOUGH), (
            f"not {ENOUGH} of {PASSED_ON_TRIES} captures named table-open-lock, and once its owner"
        )


@pytest.mark.needs("freeze", "mariadb")
def test_redo_sync_of_mariadb(tmp_path: Path) -> None:
    """Its function names are hidden. A thread that nobody can stop is no obstacle."""
    with (
        loop_device() as device,
        MariaDB(*REDO_SYNC_OPTIONS, parent=device.folder) as server,
        redo_sync(server, device),
    ):
        with unharmed(server):
            shot = take(tmp_path, "-p", server.pid)
        assert "D" in {thread.state for thread in shot.capture.threads}
        assert shot.analysis["findings"][0]["threads"] >= 15


@pytest.mark.needs("freeze", "waits", "mysql55")
def test_redo_sync(tmp_path: Path, same_verdict: Check) -> None:
    """The commit that syncs the log is seen in its fsync; it is what the others wait for."""
    with (
        loop_device() as device,
        MySQL55(*REDO_SYNC_OPTIONS, parent=device.folder) as server,
        watched(server, *EVENTS_FIRST) as watch,
        redo_sync(server, device),
    ):
        with unharmed(server):
            capture, found = captured_by(watch, "innodb-redo-sync", "fsync")
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

        with unharmed(server):
            shot = take(tmp_path, "-p", server.pid)
        assert "D" in {thread.state for thread in shot.capture.threads}
        assert shot.signatures[0] == "innodb-redo-sync"
        assert shot.analysis["findings"][0]["threads"] >= 15
        assert shot.analysis["findings"][0]["blocker"]["frames"][0] == "fsync"
        with held(server.pid, device):
            same_verdict(server, shot)
        assert trouble(server.pid) == []
        assert server.answers()


in_log_sync = in_flight("fsync", within="log_write_up_to")


@pytest.mark.needs("freeze", "waits", "mysql55")
def test_file_extend(tmp_path: Path, same_verdict: Check) -> None:
    """One thread makes the file larger; the others wait for the latch of the index it changes."""
    with (
        loop_device() as device,
        MySQL55(*FILE_EXTEND_OPTIONS, parent=device.folder) as server,
        watched(server, *EVENTS_FIRST) as watch,
        file_extend(server, device, 20),
    ):
        with unharmed(server):
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
            for shot in shots(server, tmp_path):
                if shot.signatures[:1] == ["innodb-file-extend"]:
                    break
            else:
                pytest.fail("no capture named innodb-file-extend first")
        blocker = shot.analysis["findings"][0]["blocker"]
        assert "fil_extend_space_to_desired_size" in blocker["frames"]
        assert shot.analysis["findings"][0]["threads"] >= 10
        with held(server.pid, device):
            same_verdict(server, shot)
        assert trouble(server.pid) == []
        assert server.answers()


def test_mysql97_is_named_though_its_files_are_elsewhere(mysql97: MySQL97, tmp_path: Path) -> None:
    """It has a root of its own: outside, the paths of its maps are other files, or none."""
    with row_lock_convoy(mysql97, 10):
        shot = take(tmp_path, "-p", mysql97.pid)
    assert shot.signatures[0] == "innodb-row-lock"
    capture = shot.capture
    (module,) = {m for m in capture.modules if m.path == "/usr/sbin/mysqld"}
    assert module.error is None
    assert module.symbols == ".dynsym"
    assert len(threads_with(capture, "lock_wait_suspend_thread", "do_command")) == 10


@pytest.mark.needs("waits")
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
