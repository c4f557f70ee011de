# SPDX-License-Identifier: Apache-2.0
"""What agents in other pid namespaces and on other hosts have in the store is theirs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from stallscope.agent.spool import spool
from stallscope.base import host, mounts
from stallscope.model.incident import Origin
from stallscope.store import Store, layout, listing, owners
from tests.unit.storelife import FakeTimes, incident

OTHER_HOST, OTHER_BOOT = "0" * 8, "1" * 8


def own_boot() -> str:
    return host.digest("boot", host.boot_id())


def shared(monkeypatch: pytest.MonkeyPatch, *, yes: bool) -> None:
    monkeypatch.setattr(mounts, "is_shared", lambda _: yes)


@pytest.mark.parametrize(
    ("of", "boot", "on_shared", "gone"),
    [
        (None, None, False, True),  # this host and boot, and nobody holds the lock
        (None, None, True, True),
        (OTHER_HOST, None, True, True),  # another container: the kernel is the same
        (None, OTHER_BOOT, True, True),  # this host before it was started again
        (OTHER_HOST, OTHER_BOOT, False, True),  # a copied store
        (OTHER_HOST, OTHER_BOOT, True, False),  # may run there
    ],
)
def test_whose_owner_has_ended(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    of: str | None,
    boot: str | None,
    on_shared: bool,
    gone: bool,
) -> None:
    shared(monkeypatch, yes=on_shared)
    name = f"4711-{of or host.host_id()}-{boot or own_boot()}"
    left = tmp_path / layout.SPOOL / name
    left.mkdir(parents=True)
    (left / "a.jsonl.zst").write_bytes(b"x")
    with spool(tmp_path) as folder:
        assert left.exists() != gone
        assert folder.exists()
    assert not folder.exists()


def test_what_is_no_folder_of_an_agent_stays(tmp_path: Path) -> None:
    for name in ("4711", "mine", "1-2-3"):
        (tmp_path / layout.SPOOL / name).mkdir(parents=True)
    with spool(tmp_path):
        assert len(os.listdir(tmp_path / layout.SPOOL)) == 4
    assert sorted(os.listdir(tmp_path / layout.SPOOL)) == ["1-2-3", "4711", "mine"]


def test_two_with_the_same_pid_have_two_folders(tmp_path: Path) -> None:
    with spool(tmp_path) as one, spool(tmp_path) as two:
        assert one != two
        (one / "a").write_bytes(b"")
        with spool(tmp_path):
            assert (one / "a").exists()
            assert two.exists()


AGENT = """
import os, sys
from pathlib import Path
from stallscope.agent.spool import spool
from stallscope.store import Store
from tests.unit.storelife import incident
store = Store.open(Path(sys.argv[1]))
folder = store.begin(incident(int(sys.argv[2])))
with spool(store.dest) as path:
    (path / "capture").write_bytes(b"x")
    print(os.getpid(), path.name, flush=True)
    sys.stdin.read()
"""


def test_agents_in_two_pid_namespaces(tmp_path: Path, require: Callable[..., None]) -> None:
    """Both are pid 1 or 2 in theirs, and neither is seen in the other one's /proc."""
    require("namespaces")
    argv = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", AGENT]
    agents = []
    try:
        for number in ("1", "2"):
            child = subprocess.Popen(
                [*argv, str(tmp_path), number], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            agents.append(child)
            assert child.stdout is not None
            pid, name = child.stdout.readline().decode().split()
            assert (pid, name.partition("-")[0]) == ("1", "1")
        store = Store.open(tmp_path)
        with spool(tmp_path):
            assert store.recover() == []
            assert len(list((tmp_path / layout.SPOOL).glob("*/capture"))) == 2
        assert [one.going_on for one in listing(tmp_path).incidents] == [True, True]
        for child in agents:
            child.communicate()
        assert store.recover() == [incident(1).id, incident(2).id]
    finally:
        for child in agents:
            child.kill()
            child.communicate()


def begun_elsewhere(store: Store) -> Path:
    """An incident that another host has begun, whose lock is not seen here."""
    folder = store.begin(incident(1))
    origin = folder.incident.origin
    assert origin is not None
    folder.close()
    theirs = msgspec.structs.replace(
        folder.incident, origin=Origin(OTHER_HOST, OTHER_BOOT, origin.at_ns)
    )
    (folder.path / layout.INCIDENT).write_bytes(msgspec.json.encode(theirs))
    return folder.path


def test_an_incident_of_another_host_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = FakeTimes(time.time_ns())
    store = Store.open(tmp_path, times)
    begun_elsewhere(store)
    monkeypatch.setattr("stallscope.store.storeclock.HostTimes", lambda: times)
    shared(monkeypatch, yes=True)
    assert store.recover() == []
    times.set_ns(100 * 86_400 * 10**9)
    assert store.recover() == [], "it is the clock that was set"
    times.pass_ns(2 * owners.LONGEST_INCIDENT_NS)
    assert store.recover() == [incident(1).id]


def test_on_a_disk_of_this_host_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path)
    begun_elsewhere(store)
    shared(monkeypatch, yes=False)
    assert store.recover() == [incident(1).id]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("36 1 0:40 / {} rw - nfs4 server:/export rw", True),
        ("36 1 0:40 / {} rw shared:1 - fuse.sshfs me@x: rw", True),
        ("36 1 254:1 / {} rw - ext4 /dev/vda1 rw", False),
        ("36 1 254:1 / / rw - xfs /dev/vda1 rw", False),
        ("36 1", False),
        ("", False),
    ],
)
def test_file_systems_that_several_hosts_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, expected: bool
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(line.format(tmp_path) + "\n")
    found: Callable[[str, Path], mounts.Place | None] = mounts.place
    monkeypatch.setattr(mounts, "place", lambda path: found(path, table))
    assert mounts.is_shared(tmp_path / "store") is expected


def test_a_store_without_a_place_for_captures(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / layout.SPOOL).write_text("in the way\n")
    with spool(tmp_path) as folder:
        assert folder.is_dir()
        assert tmp_path / layout.SPOOL not in folder.parents
    assert not folder.exists()
    assert "incidents are not stored" in caplog.text
