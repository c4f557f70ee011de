# SPDX-License-Identifier: Apache-2.0
"""Facts about disks from recorded trees of /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.collectors.disks import mounts, serverpaths
from stallscope.collectors.disks.gather import Subject, gather
from stallscope.collectors.disks.serverpaths import OpenFile

MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 22 253:0 / /srv/my\040data rw,noatime - xfs /dev/mapper/vg-data rw,sunit=512,swidth=2048
"""


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def recorded(root: Path) -> None:
    """A server on LVM on RAID on two disks, in its tree."""
    for pid in ("42", "self"):
        put(root, f"proc/{pid}/mountinfo", MOUNTS)
    (root / "proc/42/root/srv/my data/mysql").mkdir(parents=True)
    put(root, "proc/sys/vm/swappiness", "60\n")
    put(root, "proc/meminfo", "MemTotal:  8388608 kB\nMemAvailable:  4194304 kB\n")
    put(root, "proc/42/cgroup", "0::/system.slice/mysql.service\n")
    put(root, "sys/fs/cgroup/system.slice/mysql.service/io.max", "8:0 wbps=1048576\n")
    for name, texts in {
        "dm-0": {"dm/name": "vg-data", "dm/uuid": "LVM-x"},
        "md0": {"md/level": "raid5", "md/chunk_size": "65536", "md/raid_disks": "3"},
        "sda": {"queue/scheduler": "none [bfq]", "queue/rotational": "0"},
        "sdb": {"queue/scheduler": "[none] bfq", "queue/rotational": "0"},
    }.items():
        for key, text in texts.items():
            put(root, f"sys/devices/virtual/{name}/{key}", f"{text}\n")
    for upper, lower in (("dm-0", "md0"), ("md0", "sda"), ("md0", "sdb")):
        slaves = root / "sys/devices/virtual" / upper / "slaves"
        slaves.mkdir(exist_ok=True)
        (slaves / lower).symlink_to(f"../../{lower}")
    (root / "sys/dev/block").mkdir(parents=True)
    (root / "sys/dev/block/253:0").symlink_to("../../devices/virtual/dm-0")


def test_recorded_tree(tmp_path: Path) -> None:
    recorded(tmp_path)
    subject = Subject(42, "mysql", ("mysqld", "--no-defaults", "--datadir=/srv/my data/mysql"))
    facts = gather(subject, root=tmp_path)
    place = next(place for place in facts.places if place.role == "data")
    assert place.origin == "--datadir"
    mount = facts.mount_of(place)
    assert mount is not None
    assert (mount.point, mount.kind, mount.options["swidth"]) == ("/srv/my data", "xfs", "2048")
    assert [device.name for device in facts.stack(mount)] == ["dm-0", "md0", "sda", "sdb"]
    assert [device.name for device in facts.bottoms(mount)] == ["sda", "sdb"]
    assert [device.kind for device in facts.stack(mount)] == ["dm", "md", "disk", "disk"]
    assert facts.kernel["/proc/sys/vm/swappiness"] == "60"
    assert facts.kernel["/proc/meminfo MemTotal"] == str(8 << 30)
    assert any(path.endswith("/io.max") for path in facts.kernel)
    assert any("open files" in text for text in facts.missing)


def test_a_place_that_is_not_there(tmp_path: Path) -> None:
    recorded(tmp_path)
    facts = gather(
        Subject(42, "mysql", ("mysqld", "--no-defaults", "--datadir=/gone")), root=tmp_path
    )
    assert facts.places[0].mount is None
    assert "No such file" in (facts.places[0].why or "")


def test_the_mount_on_top_counts() -> None:
    found = tuple(mounts.parse(MOUNTS + MOUNTS.replace("253:0", "253:9")))
    assert [m.number for m in found] == ["8:1", "253:0", "8:1", "253:9"]
    at = mounts.mount_of(found, "/srv/my data/x", None)
    assert at is not None
    assert at.number == "253:9"
    hidden = mounts.mount_of(found, "/srv/my data/x", "253:0")
    assert hidden is not None
    assert hidden.number == "253:0"
    other = mounts.mount_of(found, "/srv/my datax", None)
    assert other is not None
    assert other.point == "/"


@given(st.text(max_size=300))
def test_any_mountinfo(text: str) -> None:
    for mount in mounts.parse(text):
        assert ":" in mount.number


@pytest.mark.parametrize(
    ("variables", "role", "path"),
    [
        ({"datadir": "/d"}, "redo", "/d"),
        ({"datadir": "/d", "innodb_log_group_home_dir": "./log"}, "redo", "/d/log"),
        ({"datadir": "/d", "log_bin_basename": "/b/bin"}, "binlog", "/b"),
        ({"datadir": "/d", "innodb_undo_directory": "/u/"}, "undo", "/u"),
        ({"datadir": "/d", "innodb_doublewrite_dir": "/w"}, "doublewrite", "/w"),
        ({"datadir": "/d", "tmpdir": "/t1:/t2"}, "temporary", "/t2"),
    ],
)
def test_where_a_server_keeps_what(variables: dict[str, str], role: str, path: str) -> None:
    found = serverpaths.places(variables, "@@{}", None, (), "mysql")
    assert (role, path) in {(place.role, place.path) for place in found}


def test_open_files_show_what_no_variable_names() -> None:
    files = [OpenFile("/b/host-bin.000001", 0), OpenFile("/l/ib_logfile0", 0)]
    found = {p.role: p for p in serverpaths.places({}, "@@{}", "/d", files, "mariadb")}
    assert (found["binlog"].path, found["binlog"].origin) == ("/b", "its open files")
    assert found["redo"].path == "/l"


def test_postgres_has_its_own_places() -> None:
    found = serverpaths.places({}, "{}", "/pg", (), "postgres")
    assert [(place.role, place.path) for place in found] == [
        ("data", "/pg"),
        ("redo", "/pg/pg_wal"),
    ]


@given(st.lists(st.text(max_size=40), max_size=8))
def test_any_command_line(words: list[str]) -> None:
    options, _ = serverpaths.options_of(("mysqld", "--no-defaults", *words), files=False)
    serverpaths.places(options, "--{}", None, (), "mysql")
