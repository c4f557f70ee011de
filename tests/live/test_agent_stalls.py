# SPDX-License-Identifier: Apache-2.0
"""Left alone, the agent has one incident for each stall, with its name, and no other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from stallscope.collectors.triggers.triggerfile import DEFAULTS
from stallscope.model.incident import Incident
from tests.support.agents import AgentProcess, agent, incidents
from tests.support.servers import (
    MEMORY,
    Late,
    MariaDB,
    MySQL55,
    SqlServer,
    wait_until,
)
from tests.support.stalls import (
    FILE_EXTEND_OPTIONS,
    REDO_SYNC_OPTIONS,
    deadlock_check_storm,
    file_extend,
    global_read_lock,
    loop_device,
    make_journals,
    metadata_lock_pileup,
    redo_sync,
    row_lock_convoy,
)
from tests.support.stalls.full_disks import FULL_OPTIONS, full_binlog, small_disk
from tests.support.stalls.quotas import cpu_quota
from tests.support.targets import trouble

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "bpf", "waits")]

Stall = Callable[[SqlServer], AbstractContextManager[object]]


class Watched:
    """A server and its agent; what was done to the one, and what the other has to say of it."""

    def __init__(self, server: SqlServer, watch: AgentProcess, dest: Path) -> None:
        self.server = server
        self.watch = watch
        self.dest = dest
        self.expected: list[tuple[str, set[str]]] = []

    def expect(self, name: str, stall: Stall, *signatures: str) -> None:
        """Make one stall, and undo it once the agent has kept an incident with its name.

        The first captures may be of a moment before the stall; those that follow name it.
        """
        # What begins before the last one has ended would be a part of the same incident.
        ended = len(self.expected)
        self.watch.wait(lambda: len(self.watch.of("end")) >= ended, f"end before {name}")

        def named() -> bool:
            return any(_name(incident) in signatures for incident in incidents(self.dest)[ended:])

        with stall(self.server):
            try:
                wait_until(named, f"incident {name}")
            except Late as late:
                pytest.fail(f"{late}; {self.watch.outline()}")
        self.expected.append((name, set(signatures)))
        assert trouble(self.server.pid) == []
        assert self.server.answers()

    def check(self) -> list[str]:
        """Return what is wrong with the incidents, once the agent has ended."""
        found = incidents(self.dest)
        wrong = [
            f"{name}: {_name(incident)} is none of {sorted(signatures)}: {_why(incident)}"
            for (name, signatures), incident in zip(self.expected, found, strict=False)
            if _name(incident) not in signatures
        ]
        if len(found) != len(self.expected):
            kept = [f"{_name(incident)} by {_why(incident)}" for incident in found]
            wrong.append(f"{len(found)} incidents of {len(self.expected)} stalls: {kept}")
        return wrong


def without_disk(text: str) -> str:
    """Return triggers without those of the disk."""
    return re.sub(r'(\nname = "(?:sync|space)-wait")', r"\1\nenabled = false", text)


def _name(incident: Incident) -> str | None:
    return None if incident.verdict is None else incident.verdict.signature


def _why(incident: Incident) -> str:
    return "; ".join(f"{fired.trigger}: {fired.why}" for fired in incident.triggers)


@pytest.fixture
def triggers(tmp_path: Path) -> str:
    """Return the agent's own triggers, ready again soon after each stall."""
    return re.sub(r"\nsleep = \d+", "\nsleep = 3\nrun-time = 2", DEFAULTS.read_text())


@contextmanager
def one_incident_each(server: SqlServer, folder: Path, triggers: str) -> Iterator[Watched]:
    """Watch a server until the block ends; then there is an incident for each stall, no other."""
    file = folder / "triggers.toml"
    file.write_text("defaults = false\n" + triggers)
    dest = folder / "store"
    with agent(server, dest, "--triggers", file) as watch:
        watched = Watched(server, watch, dest)
        yield watched
        watch.stop()
    wrong = watched.check()
    assert not wrong, "\n".join(wrong)


@pytest.mark.needs("mariadb")
def test_mariadb(tmp_path: Path, triggers: str) -> None:
    # In memory: whatever else the machine's disk is busy with is a stall of its own.
    with (
        MariaDB(parent=MEMORY) as server,
        one_incident_each(server, tmp_path, triggers) as watched,
    ):
        watched.expect("metadata lock", metadata_lock_pileup, "metadata-lock")
        watched.expect("global read lock", global_read_lock, "global-read-lock")


@pytest.mark.needs("mariadb", "cgroups", "slap")
def test_what_the_host_does(tmp_path: Path, triggers: str) -> None:
    """The verdict has what was sampled: no stack shows a quota or a full disk."""
    with small_disk() as disk:
        options = (*FULL_OPTIONS, f"--log-bin={disk}/binlog")
        with (
            MariaDB(*options, parent=MEMORY) as server,
            one_incident_each(server, tmp_path, triggers) as watched,
        ):
            watched.expect("CPU quota", cpu_quota, "cpu-quota")
            watched.expect("full disk", lambda server: full_binlog(server, disk), "disk-full")
        fired = [{one.trigger for one in found.triggers} for found in incidents(watched.dest)]
        assert "cpu-quota" in fired[0]
        assert "disk-full-binlog" in fired[1]


@pytest.mark.needs("mysql55", "freeze", "slap")
def test_mysql55(tmp_path: Path, triggers: str) -> None:
    options = (*FILE_EXTEND_OPTIONS, *REDO_SYNC_OPTIONS)
    with loop_device(MEMORY) as device, MySQL55(*options, parent=device.folder) as server:
        journals = make_journals(server)
        with one_incident_each(server, tmp_path, triggers) as watched:
            watched.expect(
                "file extension", lambda server: file_extend(server, device), "innodb-file-extend"
            )
            watched.expect("row lock", row_lock_convoy, "innodb-row-lock")
            watched.expect(
                "redo sync", lambda server: redo_sync(server, device, journals), "innodb-redo-sync"
            )
            # With a sync at each commit the holder would be in the stall before this one.
            # Without it 190 connections are too quick for the trigger on a fast machine; the check
            # of each waiter against all others makes 400 slow anywhere.
            server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
            watched.expect(
                "deadlock check",
                lambda server: deadlock_check_storm(server, 400),
                "innodb-deadlock-check",
                "innodb-row-lock",
            )
