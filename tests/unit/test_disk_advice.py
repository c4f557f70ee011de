# SPDX-License-Identifier: Apache-2.0
"""Each rule about storage fires on one fact, and not on its twin."""

from __future__ import annotations

import inspect
import shlex
import subprocess
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.analyzers.disks import advice, rules
from stallscope.analyzers.disks.advice import Finding
from stallscope.model.diskfacts import Device, DiskFacts, FileSystem, Place
from tests.unit.diskscenes import GOOD, changed

_XFS: dict[str, Any] = {
    "kind": "xfs",
    "texts": {},
    "log_bytes": 512 << 20,
    "stripe_bytes": 0,
    "width_bytes": 0,
}
_BTRFS: dict[str, Any] = {"kind": "btrfs", "texts": {}, "inodes": 0, "free_inodes": 0}
_NFS: dict[str, Any] = {"kind": "nfs4", "texts": {}, "devices": (), "device": "nas:/db"}
_OVERLAY: dict[str, Any] = {"kind": "overlay", "texts": {}, "upper": "/up"}
_TMPFS: dict[str, Any] = {"kind": "tmpfs", "texts": {}, "devices": (), "device": "tmpfs"}
_HDD = {"queue/rotational": "1", "queue/scheduler": "none [mq-deadline] bfq"}
_MD: dict[str, Any] = {"kind": "md", "name": "md0"}
_RAID = {
    "md/level": "raid10",
    "md/degraded": "0",
    "md/sync_action": "idle",
    "md/raid_disks": "4",
    "md/chunk_size": "0",
}
_RAID0 = {**_RAID, "md/level": "raid0", "md/chunk_size": str(256 << 10)}
_DM: dict[str, Any] = {"kind": "dm", "name": "dm-0"}
_LOOP: dict[str, Any] = {"kind": "loop", "name": "loop0"}
_VM = "/proc/sys/vm"
_IO_MAX = "/sys/fs/cgroup/system.slice/mariadb.service/io.max"
_NO_DIRECT = {"innodb_flush_method": "fsync"}

CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("scheduler", "speed", {"disk": {"queue/scheduler": "none mq-deadline [bfq]"}}, {}),
    ("scheduler", "speed", {"disk": {"queue/scheduler": "noop deadline [cfq] mq-deadline"}},
     {"disk": {"queue/scheduler": "none [kyber]"}}),
    ("scheduler", "speed", {"disk": {**_HDD, "queue/scheduler": "[none] mq-deadline bfq"}},
     {"disk": _HDD}),
    ("rotational", "speed", {"variables": {"innodb_flush_neighbors": "1"}},
     {"variables": {"innodb_flush_neighbors": "1"}, "disk": _HDD}),
    ("write-cache", "loss", {"disk": {"queue/write_cache": "write through"}},
     {"disk": {"queue/write_cache": "write through",
               "device/scsi_disk/0:0:0:0/cache_type": "write through"}}),
    ("queue-depth", "speed", {"disk": {"queue/nr_requests": "4"}}, {}),
    ("queue-depth", "speed", {"disk": {"device/queue_depth": "1"}},
     {"disk": {"device/queue_depth": None}}),
    ("read-ahead", "speed", {"disk": {"queue/read_ahead_kb": "8192"}}, {}),
    ("read-ahead", "speed", {"disk": {"queue/read_ahead_kb": "0"}},
     {"disk": {"queue/read_ahead_kb": "1024"}}),
    ("writeback-throttling", "speed", {"disk": {"queue/wbt_lat_usec": "100"}},
     {"disk": {"queue/wbt_lat_usec": "0"}}),
    ("request-size", "speed", {"disk": {"queue/max_sectors_kb": "8"}},
     {"disk": {"queue/max_sectors_kb": "8"}, "variables": {"innodb_page_size": "8192"}}),
    ("statistics", "speed", {"disk": {"queue/iostats": "0"}}, {}),
    ("loop", "speed", {"device": _LOOP, "disk": {"loop/dio": "0", "loop/backing_file": "/f"}},
     {"device": _LOOP, "disk": {"loop/dio": "1", "loop/backing_file": "/f"}}),
    ("snapshot", "speed", {"device": _DM, "disk": {"dm/name": "vg-data-real"}},
     {"device": _DM, "disk": {"dm/name": "vg-data"}}),
    ("raid", "loss", {"device": _MD, "disk": {**_RAID, "md/degraded": "1"}},
     {"device": _MD, "disk": _RAID}),
    ("raid", "speed", {"device": _MD, "disk": {**_RAID, "md/level": "raid5"}},
     {"device": _MD, "disk": _RAID}),
    ("raid", "speed", {"device": _MD, "disk": {**_RAID, "md/sync_action": "check"}},
     {"device": _MD, "disk": _RAID}),
    ("alignment", "speed", {"partition": {"start": "63"}}, {"partition": {"start": "64"}}),
    ("alignment", "speed", {"partition": {"alignment_offset": "-1"}}, {}),
    ("alignment", "speed",
     {"disk": {"queue/optimal_io_size": "262144"}, "partition": {"start": "128"}},
     {"disk": {"queue/optimal_io_size": "196608"}, "partition": {"start": "2048"}}),
    ("barriers", "loss", {"options": "rw,relatime,nobarrier"}, {}),
    ("barriers", "loss", {"options": "rw,relatime,barrier=0"},
     {"options": "rw,relatime,barrier=1"}),
    ("synchronous", "speed", {"options": "rw,relatime,sync"}, {}),
    ("synchronous", "speed", {"options": "rw,relatime,dirsync"}, {}),
    ("access-times", "speed", {"options": "rw"}, {"options": "rw,noatime"}),
    ("discard", "speed", {"options": "rw,relatime,discard"}, {}),
    ("discard", "speed", {"options": "rw,relatime,discard", "mount": _BTRFS},
     {"options": "rw,relatime,discard=async", "mount": _BTRFS}),
    ("journaled-data", "speed", {"options": "rw,relatime,data=journal"},
     {"options": "rw,relatime,data=ordered"}),
    ("journaled-data", "speed", {"ext4": "rw,data=journal,errors=remount-ro"}, {}),
    ("journaled-data", "speed", {"place": {"journaled": True}}, {}),
    ("unordered-data", "loss", {"options": "rw,relatime,data=writeback"}, {}),
    ("network", "loss", {"options": "rw,relatime,soft,vers=4.2", "mount": _NFS},
     {"options": "rw,relatime,hard,vers=4.2,local_lock=none", "mount": _NFS}),
    ("network", "loss", {"options": "rw,relatime,hard,vers=3", "mount": _NFS},
     {"options": "rw,relatime,hard,vers=4.0", "mount": _NFS}),
    ("network", "loss", {"options": "rw,hard,vers=3,nolock", "mount": _NFS},
     {"options": "rw,hard,vers=4.1", "mount": _NFS}),
    ("network", "loss", {"options": "rw,hard,vers=4.1,local_lock=all", "mount": _NFS},
     {"options": "rw,hard,vers=4.1,local_lock=none", "mount": _NFS}),
    ("network", "loss", {"options": "rw,hard,vers=4.0,proto=udp", "mount": _NFS},
     {"options": "rw,hard,vers=4.0,proto=tcp", "mount": _NFS}),
    ("network", "speed", {"options": "rw,hard,vers=4.1,noac", "mount": _NFS},
     {"options": "rw,hard,vers=4.1", "mount": _NFS}),
    ("block-size", "speed", {"mount": {"block_bytes": 65536}},
     {"mount": {"block_bytes": 16384}}),
    ("block-size", "speed", {"mount": {"block_bytes": 1024}}, {}),
    ("block-size", "speed",
     {"mount": {"block_bytes": 16384}, "variables": {"innodb_page_size": "4096"}},
     {"variables": {"innodb_page_size": "4096"}}),
    ("copy-on-write", "speed", {"mount": _BTRFS, "place": {"nocow": False}},
     {"mount": _BTRFS, "place": {"nocow": True}}),
    ("copy-on-write", "speed", {"mount": _BTRFS, "place": {"nocow": False}},
     {"mount": _BTRFS, "place": {"nocow": False}, "options": "rw,relatime,nodatacow"}),
    ("extents", "speed", {"place": {"extents": False}}, {}),
    ("clusters", "space", {"place": {"cluster_bytes": 65536}}, {}),
    ("journal", "loss", {"ext4": "rw,barrier,errors=remount-ro"}, {}),
    ("journal", "loss", {"mount": {"kind": "ext2", "texts": {}}}, {}),
    ("errors", "loss", {"mount": {"texts": {"/sys/fs/ext4/sda1/errors_count": "3"}}},
     {"mount": {"texts": {"/sys/fs/ext4/sda1/errors_count": "0"}}}),
    ("on-errors", "loss", {"ext4": "rw,data=ordered,errors=continue"}, {}),
    ("xfs-log", "speed", {"mount": {**_XFS, "log_bytes": 16 << 20}}, {"mount": _XFS}),
    ("preallocation", "space", {"mount": _XFS, "options": "rw,relatime,allocsize=1048576k"},
     {"mount": _XFS, "options": "rw,relatime,allocsize=64k"}),
    ("overlay", "loss", {"mount": _OVERLAY, "options": "rw,relatime,upperdir=/up"},
     {"mount": _OVERLAY, "options": "rw,relatime", "place": {"role": "temporary"}}),
    ("overlay", "loss", {"mount": _OVERLAY, "options": "rw,relatime,volatile"},
     {"mount": _OVERLAY, "options": "rw,relatime", "place": {"role": "temporary"}}),
    ("memory", "loss", {"mount": _TMPFS}, {}),
    ("space", "space", {"mount": {"free_bytes": 2 << 30}}, {}),
    ("space", "space", {"mount": {"size_bytes": 1 << 30, "free_bytes": 200 << 20}},
     {"mount": {"size_bytes": 200 << 20, "free_bytes": 100 << 20}}),
    ("inodes", "space", {"mount": {"free_inodes": 10}}, {"mount": {"inodes": 0}}),
    ("stripe", "speed", {"device": _MD, "disk": _RAID0},
     {"device": _MD, "disk": _RAID0, "options": "rw,relatime,stripe=256"}),
    ("stripe", "speed", {"device": _MD, "disk": _RAID0, "mount": _XFS},
     {"device": _MD, "disk": _RAID0,
      "mount": {**_XFS, "stripe_bytes": 256 << 10, "width_bytes": 1 << 20}}),
    ("flush-method", "speed", {"variables": _NO_DIRECT, "place": {"direct": False}}, {}),
    ("flush-method", "speed", {"mount": {**_TMPFS, "kind": "zfs"}}, {}),
    ("flush-method", "speed", {"place": {"direct": False}}, {"place": {"direct": None}}),
    ("flush-method", "loss", {"variables": {"innodb_flush_method": "nosync"}},
     {"variables": {"innodb_flush_method": "O_DIRECT_NO_FSYNC"}}),
    ("doublewrite", "loss", {"variables": {"innodb_doublewrite": "OFF"}},
     {"variables": {"innodb_doublewrite": "OFF"}, "mount": _BTRFS, "place": {"nocow": False}}),
    ("write-ahead", "speed",
     {"variables": {"innodb_log_write_ahead_size": "512", "innodb_redo_log_capacity": "9999999"}},
     {"variables": {"innodb_redo_log_capacity": "999999999999"}}),
    ("redo-size", "speed", {"status": {"Innodb_os_log_written": 1e12, "Uptime": 86_400.0}}, {}),
    ("sharing", "speed", {"disk": _HDD}, {}),
    ("dirty-pages", "speed", {"kernel": {f"{_VM}/dirty_background_ratio": "10"}}, {}),
    ("dirty-pages", "speed", {"kernel": {f"{_VM}/dirty_ratio": "20"}},
     {"kernel": {f"{_VM}/dirty_ratio": "0", f"{_VM}/dirty_bytes": "1073741824"}}),
    ("swappiness", "speed", {"kernel": {f"{_VM}/swappiness": "60"}}, {}),
    ("zone-reclaim", "speed", {"kernel": {f"{_VM}/zone_reclaim_mode": "1"}}, {}),
    ("disk-limit", "speed",
     {"kernel": {_IO_MAX: "8:0 rbps=max wbps=1048576 riops=max wiops=max"}},
     {"kernel": {_IO_MAX: "8:0 rbps=max wbps=max riops=max wiops=max"}}),
]  # fmt: skip


def _found(facts: DiskFacts, rule: str, status: str = "degraded") -> list[Finding]:
    return [f for f in rules.advise(facts) if f.rule == rule and f.status == status]


@pytest.mark.parametrize(("rule", "risk", "bad", "good"), CASES)
def test_rule_and_twin(rule: str, risk: str, bad: dict[str, Any], good: dict[str, Any]) -> None:
    found = [finding for finding in _found(changed(**bad), rule) if finding.risk == risk]
    assert found, rule
    assert found[0].why
    assert found[0].fix
    assert any(found[0].sources)
    assert _found(changed(**good), rule) == []


def test_each_rule_has_a_case() -> None:
    """A rule that only says what is not known has none."""
    table: tuple[Any, ...] = (*rules.DEVICE_RULES, *rules.MOUNT_RULES, *rules.SERVER_RULES)
    sources = map(inspect.getsource, table)
    tried = {rule for rule, *_ in CASES}
    for source in sources:
        if "wrong(" in source:
            assert any(f'"{rule}"' in source for rule in tried), source


def test_nothing_is_wrong_and_all_that_was_checked_is_listed() -> None:
    found = rules.advise(GOOD)
    assert {finding.status for finding in found} == {"ok"}
    named = {finding.rule for finding in found}
    assert {"place", "scheduler", "barriers", "space", "flush-method", "swappiness"} <= named
    assert found[0].what == "data /data/mysql: ext4 at /data on sda1 on sda"


def test_what_loses_data_comes_first() -> None:
    found = rules.advise(changed(disk={"queue/scheduler": "none [bfq]"}, options="rw,nobarrier"))
    wrong = [finding for finding in found if finding.status == "degraded"]
    assert wrong[0].risk == "loss"
    assert wrong[-1].risk == "speed"


def test_unknown_is_said() -> None:
    bare = msgspec.structs.replace(
        GOOD, kernel={}, variables={}, status={}, missing=("the open files cannot be read",)
    )
    found = {f.rule: f for f in rules.advise(bare) if f.status == "unknown"}
    assert {"dirty-pages", "swappiness", "facts"} <= set(found)
    found = {
        f.rule: f
        for f in rules.advise(
            changed(disk={"queue/write_cache": None}, mount={"block_bytes": None})
        )
        if f.status == "unknown"
    }
    assert {"write-cache", "block-size"} <= set(found)
    crypt = changed(device=_DM, disk={"dm/uuid": "CRYPT-LUKS2-x", "dm/name": "data"})
    assert "cryptsetup" in (_found(crypt, "encryption", "unknown")[0].fix or "")
    young = changed(status={"Innodb_os_log_written": 1.0, "Uptime": 5.0})
    assert _found(young, "redo-size", "unknown")


def test_unknown_place() -> None:
    place = Place("data", "/x", "@@datadir", why="Permission denied")
    found = rules.advise(msgspec.structs.replace(GOOD, places=(place,), mounts={}, devices={}))
    assert found[0].status == "unknown"
    assert "Permission denied" in found[0].what


def test_no_variables_of_another_server() -> None:
    """PostgreSQL has no settings of InnoDB."""
    facts = msgspec.structs.replace(GOOD, family="postgres", variables={}, status={})
    named = {finding.rule for finding in rules.advise(facts)}
    assert not named & {"doublewrite", "flush-method", "redo-size", "write-ahead"}


def test_barriers_say_whether_a_cache_is_volatile() -> None:
    on = _found(changed(options="rw,noatime,nobarrier"), "barriers")[0]
    assert "sda caches writes" in on.what
    off = _found(
        changed(options="rw,noatime,nobarrier", disk={"queue/write_cache": "write through"}),
        "barriers",
    )[0]
    assert "no disk below says" in off.what


_names = st.text(min_size=1, max_size=40).filter(lambda text: "\0" not in text)


@given(_names)
def test_a_name_is_one_word_for_a_shell(name: str) -> None:
    try:
        data = name.encode()
    except UnicodeEncodeError:
        return
    done = subprocess.run(
        ["bash", "-c", f"printf %s {advice.quoted(name)}"], capture_output=True, check=True
    )
    assert done.stdout == data


@given(
    _names,
    st.dictionaries(st.sampled_from(sorted(GOOD.devices["sda"].texts)), st.text(max_size=60)),
    st.dictionaries(st.text(max_size=20), st.text(max_size=30), max_size=5),
    st.sampled_from(["ext4", "xfs", "btrfs", "nfs4", "overlay", "tmpfs", "zfs", "fuse.x"]),
)
def test_hostile_texts(
    name: str, texts: dict[str, str], options: dict[str, str], kind: str
) -> None:
    """Whatever the kernel's files say: no error, and nothing that controls a terminal."""
    disk = Device(name, f"/sys/block/{name}", "disk", texts)
    mount = FileSystem(f"/{name}", kind, name, options, "/proc/1/mountinfo", (name,))
    facts = msgspec.structs.replace(
        GOOD,
        places=(Place("data", f"/{name}/x", "@@datadir", mount.point, file=name, nocow=False),),
        mounts={mount.point: mount},
        devices={name: disk},
    )
    for finding in rules.advise(facts):
        for text in (finding.what, finding.why, finding.fix, finding.permanent, *finding.sources):
            assert text is None or text.isprintable()


def test_commands_are_commands() -> None:
    """Each fix of a device is one that a shell reads."""
    for rule, _, bad, _ in CASES:
        for finding in _found(changed(**bad), rule):
            for text in (finding.fix, finding.permanent):
                if text is not None and text.startswith(("echo ", "sudo ", "printf ")):
                    assert shlex.split(text)
