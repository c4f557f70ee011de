# SPDX-License-Identifier: Apache-2.0
"""Stalls captured in a jail by an ordinary user, and from the host by BPF: the same verdict.

The jail (tests/support/jail.py) has no capability, and refuses ptrace, BPF and perf.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from stallscope.analyzers import catalog, engine
from stallscope.analyzers.analysis import Finding
from stallscope.collectors import probe
from stallscope.model import capturefile
from stallscope.model.capture import Capture
from tests.live.shots import (
    CHECKOUT,
    Captured,
    run,
    served,
    take,
    unharmed,
)
from tests.support.agents import agent, incidents
from tests.support.jail import Jail, jailed, python
from tests.support.servers import MEMORY, MariaDB, MySQL55, MySQL97, SqlServer
from tests.support.servers.inside import agent_inside, one_ring
from tests.support.stalls import (
    REDO_SYNC_OPTIONS,
    global_read_lock,
    loop_device,
    metadata_lock_pileup,
    redo_sync,
    row_lock_convoy,
    sysbench_load,
)
from tests.support.targets import trouble

__all__: list[str] = []

pytestmark = [
    pytest.mark.needs("probe", "library", "jail", "mysql55"),
]

HEALTHY_SHOTS = 60
HEALTHY_RATE = 50
"""Transactions a second, of twenty statements each."""
SURE = 0.5

Stall = Callable[[SqlServer], AbstractContextManager[object]]


class Inmate:
    """A server in a jail, with the library inside, and an ordinary user in the jail."""

    def __init__(self, server: MySQL55, jail: Jail, rings: Path, folder: Path) -> None:
        self.server = server
        self.jail = jail
        self.folder = folder
        self.env = {"STALLSCOPE_RUNTIME_DIR": str(rings)}

    def stallscope(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run the checkout's stallscope in the jail."""
        return self.jail.run(*python(), "-m", "stallscope", *words, env=self.env, cwd=CHECKOUT)

    def inside(self) -> Captured:
        """Take a capture in the jail, by the server's ring."""
        options = ("-p", self.jail.pid, "--backend", "inproc", "--no-sql")
        return take(self.folder, *options, runner=self.stallscope)

    def outside(self) -> Captured:
        """Take a capture as root, by BPF."""
        return take(self.folder, "-p", self.server.pid, "--backend", "bpf", "--no-sql")

    def served_inside(self, count: int) -> Iterator[Path]:
        """Yield captures of a probe that goes on, in the jail."""
        serve = (probe.find(), "serve", "--pid", self.jail.pid, "--backend", "inproc")
        return served(self.jail.command(*serve), self.folder, count, self.env)


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a folder in which the jail's user can write, too."""
    folder = Path(tempfile.mkdtemp(prefix="stallscope-shared-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def inmate(server: MySQL55, folder: Path, **variables: str) -> Iterator[Inmate]:
    """Start a server in a jail of its own."""
    with agent_inside(server, **variables) as rings, jailed(server) as jail, server:
        yield Inmate(server, jail, rings, folder)


def ns_blocker(shot: Captured) -> int | None:
    """Return the number that the verdict's blocker has in the server's own pid namespace."""
    blocker = shot.analysis["findings"][0]["blocker"]
    if blocker is None:
        return None
    (thread,) = [thread for thread in shot.capture.threads if thread.tid == blocker["tid"]]
    return thread.ns_tid or thread.tid


SIGNATURES = catalog.load()


def verdict(file: Path) -> tuple[Capture, Finding | None]:
    capture = capturefile.read(file)
    findings = engine.analyze(capture, SIGNATURES).findings
    return capture, findings[0] if findings else None


def test_nothing_else_works_in_the_jail(shared: Path) -> None:
    with inmate(MySQL55(), shared) as server:
        for backend in ("bpf", "ptrace", "proc", "gdb"):
            words = ("snap", "-p", server.jail.pid, "--backend", backend, "--no-sql")
            done = server.stallscope(*words)
            assert done.returncode == 1, done.stdout
            assert len(done.stderr.strip().splitlines()) == 1, done.stderr
            assert re.match(r"stallscope: .*(CAP_SYS_PTRACE|run it as root)", done.stderr)
        for name in ("mem", "maps", "exe"):
            done = server.jail.run("cat", f"/proc/{server.jail.pid}/{name}")
            assert "Permission denied" in done.stderr
        status = server.jail.run("cat", "/proc/self/status").stdout
        fields = dict(line.split(":", 1) for line in status.splitlines())
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(fields[name], 16) == 0
        assert fields["NoNewPrivs"].strip() == "1"
        assert fields["Seccomp"].strip() == "2"
        assert fields["Uid"].split()[0] != "0"
        assert server.server.answers()


@pytest.mark.needs("bpf", "freeze")
def test_redo_sync(shared: Path) -> None:
    """The same verdict in the jail, on the host, of the agent in the jail, and of a dead server's
    ring."""
    dest = shared / "store"
    with loop_device(MEMORY) as device:
        server = MySQL55(*REDO_SYNC_OPTIONS, parent=device.folder)
        with inmate(server, shared) as inner:
            ring = one_ring(Path(inner.env["STALLSCOPE_RUNTIME_DIR"]))
            there = inner.jail.command(*python())
            options = ("--backend", "inproc", "--no-sql")
            with (
                agent(inner.jail.pid, dest, *options, python=there, env=inner.env) as watch,
                redo_sync(server, device),
            ):
                with unharmed(server):
                    inside, outside = inner.inside(), inner.outside()
                    # It is woken by the ring: its capture is taken while the sync goes on.
                    watch.wait(lambda: watch.of("stall"), "stall")
                server.stop()
            killed = run("analyze", ring, "--json")
    assert inside.signatures[0] == outside.signatures[0] == "innodb-redo-sync"
    assert ns_blocker(inside) == ns_blocker(outside)
    assert inside.analysis["backend"] == "inproc"
    assert killed.returncode == 0, killed.stderr
    for analysis in (inside.analysis, json.loads(killed.stdout)):
        found = analysis["findings"][0]
        assert found["signature"] == "innodb-redo-sync"
        assert found["blocker"]["frames"][0] == "fsync"
        assert found["threads"] >= 15
    assert verdicts(dest) == ["innodb-redo-sync"]


def verdicts(dest: Path) -> list[str | None]:
    """Return the signatures of all incidents of a store."""
    found = [incident.verdict for incident in incidents(dest)]
    return [None if verdict is None else verdict.signature for verdict in found]


OTHERS: dict[str, Callable[[], SqlServer]] = {
    "mariadb": functools.partial(MariaDB, parent=MEMORY),
    "mysql55": functools.partial(MySQL55, parent=MEMORY),
    # Without /proc the library cannot read what is loaded: then nothing has a name.
    "mysql97": functools.partial(MySQL97, "--innodb-flush-method=nosync", with_proc=True),
}
STALLS: dict[str, Stall] = {
    "metadata-lock": metadata_lock_pileup,
    "global-read-lock": global_read_lock,
    "innodb-row-lock": row_lock_convoy,
}
WATCHED = "metadata-lock"
"""The first of them."""
UNNAMED = {("mariadb", "innodb-row-lock")}
"""Debian's MariaDB hides InnoDB's functions."""


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.needs(k)) for k in OTHERS])
def test_servers_go_through_their_stalls(kind: str, tmp_path: Path) -> None:
    """An agent that reads the ring makes one incident of the first stall."""
    server: SqlServer = OTHERS[kind]()
    dest = tmp_path / "store"
    with agent_inside(server) as rings, server:
        ring = one_ring(rings)
        # Without SQL: the connections of a calibration come and go, and others are counted.
        with agent(server, dest, "--backend", "inproc", "--ring", ring, "--no-sql") as watch:
            for name, stall in STALLS.items():
                with stall(server):
                    with unharmed(server):
                        shot = take(tmp_path, "-p", server.pid, "--ring", ring, "--no-sql")
                    if name == WATCHED:
                        watch.wait(lambda: watch.of("stall"), "stall")
                if name == WATCHED:
                    watch.stop()
                expected = {name, None} if (kind, name) in UNNAMED else {name}
                assert shot.signatures[0] in expected, (kind, name, shot.signatures)
                assert shot.analysis["findings"][0]["threads"] >= 20
                assert trouble(server.pid) == []
        assert server.answers()
        server.shut_down()
        assert list(rings.iterdir()) == []
    assert verdicts(dest) == [WATCHED]


@pytest.mark.needs("freeze", "mariadb")
def test_mariadb_whose_disk_is_frozen(tmp_path: Path) -> None:
    """It writes little, in a call that is not watched, and waits in bare calls of futex: unseen.

    That is said, and nothing is made up. Sometimes the commits are far enough to be seen.
    """
    with loop_device(MEMORY) as device:
        server = MariaDB(*REDO_SYNC_OPTIONS, parent=device.folder)
        with agent_inside(server) as rings, server, redo_sync(server, device), unharmed(server):
            shot = take(tmp_path, "-p", server.pid, "--ring", one_ring(rings), "--no-sql")
    assert shot.signatures[:1] in ([], ["innodb-redo-sync"])
    threads = shot.analysis["threads"]
    assert threads["idle"] >= threads["unseen"]
    if not shot.signatures:
        assert threads["unseen"] >= 19
    assert "D" in {thread.state for thread in shot.capture.threads}


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.needs("sysbench")
def test_load_that_is_no_stall_has_no_sure_finding(shared: Path) -> None:
    """Threads that release a lock in order, and queue for rows at times, are no stall.

    As many as the server can do would fill the CPUs: then a holder that lost its own keeps all
    others for tens of milliseconds, and that is one. A machine that stands still for a moment does
    so, too: such a queue is gone by the next capture.
    """
    server = MySQL55(parent=MEMORY)
    sure: list[str | None] = []
    load = sysbench_load(server, 8, "oltp_read_write", f"--rate={HEALTHY_RATE}")
    with inmate(server, shared) as inner, load, unharmed(server):
        for file in inner.served_inside(HEALTHY_SHOTS):
            _, found = verdict(file)
            is_sure = found is not None and found.confidence >= SURE
            sure.append((found.signature or "unnamed") if found and is_sure else None)
    lasting = [one for one, then in pairwise(sure) if one is not None and one == then]
    assert lasting == []
    assert len(sure) - sure.count(None) <= HEALTHY_SHOTS // 20


@pytest.mark.needs("mysql97")
def test_server_without_proc_has_no_names(tmp_path: Path) -> None:
    server = MySQL97()
    with agent_inside(server) as rings, server, row_lock_convoy(server), unharmed(server):
        shot = take(tmp_path, "-p", server.pid, "--ring", one_ring(rings), "--no-sql")
    assert "inproc-maps" in {note.code for note in shot.capture.notes}
    assert shot.analysis["threads"]["waiting"] >= 40
