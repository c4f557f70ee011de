# SPDX-License-Identifier: Apache-2.0
"""Left alone, the agent has one incident for each stall, with its name, and no other."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import msgspec
import pytest

from stallscope.collectors.triggers.triggerfile import DEFAULTS
from stallscope.incident import Incident
from tests.support.agents import AgentProcess, agent, incidents
from tests.support.servers import MariaDB, MySQL55, MySQL97, SqlServer
from tests.support.stalls import (
    FILE_EXTEND_OPTIONS,
    INDEX_LOCK_OPTIONS,
    REDO_SYNC_OPTIONS,
    TABLE_STORM_OPTIONS,
    deadlock_check_storm,
    file_extend,
    global_read_lock,
    index_lock,
    loop_device,
    metadata_lock_pileup,
    redo_sync,
    row_lock_convoy,
    table_open_storm,
    template_of_tables,
)
from tests.support.stalls.index_lock import fill
from tests.support.targets import trouble

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "bpf", "waits")]

MEMORY = Path("/dev/shm")

Stall = Callable[[SqlServer], AbstractContextManager[object]]


class Watched:
    """A server and its agent; what was done to the one, and what the other has to say of it."""

    def __init__(self, server: SqlServer, watch: AgentProcess, dest: Path) -> None:
        self.server = server
        self.watch = watch
        self.dest = dest
        self.expected: list[tuple[str, set[str]]] = []

    def suffer(self, name: str, stall: Stall, *signatures: str) -> None:
        """Make one stall, and undo it once the agent has told of one with its name."""
        # What begins before the last one has ended would be a part of the same incident.
        ended = len(self.expected)
        self.watch.wait(lambda: len(self.watch.of("end")) >= ended, f"end before {name}")
        before = len(self.watch.of("stall"))

        def named() -> bool:
            told = [msgspec.convert(one, Incident) for one in self.watch.of("stall")[before:]]
            return any(_name(incident) in signatures for incident in told)

        with stall(self.server):
            self.watch.wait(named, f"stall {name}")
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
            told = [f"{_name(incident)} by {_why(incident)}" for incident in found]
            wrong.append(f"{len(found)} incidents of {len(self.expected)} stalls: {told}")
        return wrong


def sensitive(text: str, name: str, threshold: int) -> str:
    """Return triggers of which one fires at another threshold."""
    changed, count = re.subn(
        rf'(name = "{name}"\n(?:[a-z].*\n)*threshold = )\d+', rf"\g<1>{threshold}", text
    )
    assert count == 1, f"{count} triggers {name}"
    return changed


def without_disk(file: Path, text: str) -> Path:
    """Write triggers that leave the disk aside."""
    text = re.sub(r'(\nname = "(?:sync|space)-wait")', r"\1\nenabled = false", text)
    file.write_text("defaults = false\n" + text)
    return file


def _name(incident: Incident) -> str | None:
    return None if incident.verdict is None else incident.verdict.signature


def _why(incident: Incident) -> str:
    return "; ".join(f"{fired.trigger}: {fired.why}" for fired in incident.triggers)


@pytest.mark.needs("mariadb", "mysql55", "freeze", "slap")
def test_one_incident_for_each_stall(tmp_path: Path) -> None:
    with ExitStack() as stack:
        watched: list[Watched] = []

        def watch(server: SqlServer, *options: object) -> Watched:
            dest = tmp_path / f"store-{len(watched)}"
            process = stack.enter_context(agent(server, dest, *options))
            watched.append(Watched(server, process, dest))
            return watched[-1]

        # In memory: whatever else the machine's disk is busy with is a stall of its own.
        device = stack.enter_context(loop_device(MEMORY))
        mariadb = watch(stack.enter_context(MariaDB(parent=MEMORY)))
        on_device = MySQL55(*FILE_EXTEND_OPTIONS, *REDO_SYNC_OPTIONS, parent=device.folder)
        mysql = watch(stack.enter_context(on_device))

        # Stalls that the same triggers see are half a minute apart, which is those triggers' sleep.
        mysql.suffer(
            "file extension", lambda server: file_extend(server, device), "innodb-file-extend"
        )
        mariadb.suffer("metadata lock", metadata_lock_pileup, "metadata-lock")
        tables = MySQL55(*TABLE_STORM_OPTIONS, template=template_of_tables(), parent=MEMORY)
        with tables as many:
            storm = watch(many)
            # The dictionary is cold, and its mutex the narrower place at first.
            storm.suffer("table opening", table_open_storm, "table-open-lock", "innodb-dict-lock")
            storm.watch.stop()
        mysql.suffer("row lock", row_lock_convoy, "innodb-row-lock")
        mariadb.suffer("global read lock", global_read_lock, "global-read-lock")
        with MySQL55(*INDEX_LOCK_OPTIONS) as fat:
            fill(fat)
            # What its statements read comes from the machine's disk, whose stalls are its own. The
            # index is held for a few reads: on a fast disk that is far less than the usual 500 ms.
            quick = sensitive(DEFAULTS.read_text(), "lock-convoy", 50)
            triggers = without_disk(tmp_path / "triggers.toml", quick)
            index = watch(fat, "--triggers", triggers)
            index.suffer("index lock", index_lock, "innodb-index-lock")
            index.watch.stop()
        mysql.suffer("redo sync", lambda server: redo_sync(server, device), "innodb-redo-sync")
        # Who has the row would sync the log at each commit: the stall before this one, and true.
        # Without that 190 connections are too quick for the trigger on a fast machine; the check
        # of each waiter against all others makes 400 slow anywhere.
        mysql.server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
        mysql.suffer(
            "deadlock check",
            lambda server: deadlock_check_storm(server, 400),
            "innodb-deadlock-check",
            "innodb-row-lock",
        )
        for one in watched:
            one.watch.stop()
        wrong = [line for one in watched for line in one.check()]
        assert not wrong, "\n".join(wrong)


@pytest.mark.needs("mysql97")
def test_one_incident_for_each_stall_of_the_newest_server(tmp_path: Path) -> None:
    # Recoveries are short here; and its data lie on the machine's disk, whose stalls are its own.
    text = re.sub(r"\nsleep = \d+", "\nsleep = 3\nrun-time = 2", DEFAULTS.read_text())
    triggers = without_disk(tmp_path / "triggers.toml", text)
    with MySQL97() as server, agent(server, tmp_path / "store", "--triggers", triggers) as watch:
        mysql = Watched(server, watch, tmp_path / "store")
        mysql.suffer("metadata lock", metadata_lock_pileup, "metadata-lock")
        mysql.suffer("row lock", row_lock_convoy, "innodb-row-lock")
        mysql.suffer("global read lock", global_read_lock, "global-read-lock")
        watch.stop()
        wrong = mysql.check()
        assert not wrong, "\n".join(wrong)
