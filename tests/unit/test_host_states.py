# SPDX-License-Identifier: Apache-2.0
"""What the host does to a server: the numbers, the triggers that they fire, the words for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stallscope.analyzers import catalog, hoststates
from stallscope.collectors.disks import serverpaths
from stallscope.collectors.host import Limits, Load, Memory, Space
from stallscope.collectors.host.measured import COUNTERS, GAUGES, rates
from stallscope.collectors.paths import asking
from stallscope.collectors.processes import ProcessInfo, Server
from stallscope.collectors.triggers import triggerfile
from stallscope.collectors.triggers.engine import Engine
from stallscope.model.samples import Sample

NS = 10**9
PID = 7


def write(folder: Path, files: dict[str, object]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def group(folder: Path, *, old: bool) -> None:
    """Put process 7 in a group within a group, of one version."""
    kind = "cgroup c rw,cpu,memory" if old else "cgroup2 c rw"
    lines = "4:cpu,memory:/pod/db\n0::/" if old else "0::/pod/db"
    write(
        folder,
        {"7/cgroup": lines, "self/mountinfo": f"41 31 0:38 / {folder}/mount rw - {kind}"},
    )


def old_group(folder: Path, name: str, throttled: int, quota: int = -1) -> None:
    write(
        folder / "mount" / name,
        {
            "cpu.stat": f"nr_periods 99\nnr_throttled {throttled}\nthrottled_time 5000",
            "cpu.cfs_quota_us": quota,
            "cpu.cfs_period_us": 50_000,
            "memory.limit_in_bytes": 2**63 - 4096 if quota < 0 else 1000,
            "memory.usage_in_bytes": 900,
            "memory.failcnt": 3,
            "memory.oom_control": "under_oom 0\noom_kill 1",
        },
    )


def new_group(folder: Path, name: str, throttled: int, quota: str = "max 100000") -> None:
    limit = "max" if quota.startswith("max") else 1000
    write(
        folder / "mount" / name,
        {
            "cpu.stat": f"usage_usec 7\nnr_periods 99\nnr_throttled {throttled}\nthrottled_usec 5",
            "cpu.max": quota,
            "memory.high": "max",
            "memory.max": limit,
            "memory.current": 900,
            "memory.events": "low 0\nhigh 9\nmax 9\noom 0\noom_kill 1",
            "memory.events.local": "low 0\nhigh 1\nmax 2\noom 0\noom_kill 0",
        },
    )


def test_a_quota_of_version_1(tmp_path: Path) -> None:
    group(tmp_path, old=True)
    old_group(tmp_path, "pod", 10, quota=25_000)
    old_group(tmp_path, "pod/db", 0)
    collector = Limits(PID, proc=tmp_path)
    first = collector.read(0)
    assert first == {
        "cgroup.cpu.limit": 0.5,
        "cgroup.cpu.throttled_us": 5,
        "cgroup.memory.limit_bytes": 1000,
        "cgroup.memory.used_bytes": 900,
        "cgroup.memory.limited": 6,
        "cgroup.memory.oom_kills": 1,
    }, "there is no share without an earlier sample"
    old_group(tmp_path, "pod", 28, quota=25_000)
    assert collector.read(NS)["cgroup.cpu.throttled_share"] == 0.9
    assert collector.names() == {"cgroup.cpu": "/pod", "cgroup.memory": "/pod"}
    assert collector.read(2 * NS)["cgroup.cpu.throttled_share"] == 0
    old_group(tmp_path, "pod", 1)
    assert "cgroup.cpu.throttled_share" in collector.read(3 * NS), "that of the inner group"
    collector.close()


def test_a_quota_of_version_2(tmp_path: Path) -> None:
    group(tmp_path, old=False)
    new_group(tmp_path, "pod", 0)
    new_group(tmp_path, "pod/db", 0, quota="20000 100000")
    collector = Limits(PID, proc=tmp_path)
    first = collector.read(0)
    assert first["cgroup.cpu.limit"] == 0.2
    assert first["cgroup.memory.limited"] == 6
    new_group(tmp_path, "pod/db", 10, quota="20000 100000")
    assert collector.read(NS)["cgroup.cpu.throttled_share"] == 1
    assert collector.names() == {"cgroup.cpu": "/pod/db", "cgroup.memory": "/pod/db"}
    collector.close()


def test_a_process_that_is_moved(tmp_path: Path) -> None:
    group(tmp_path, old=False)
    new_group(tmp_path, "pod", 0)
    new_group(tmp_path, "pod/db", 0)
    new_group(tmp_path, "other", 0, quota="30000 100000")
    collector = Limits(PID, proc=tmp_path)
    assert "cgroup.cpu.limit" not in collector.read(0)
    write(tmp_path, {"7/cgroup": "0::/other"})
    found = collector.read(NS)
    assert found["cgroup.cpu.limit"] == 0.3
    assert "cgroup.cpu.throttled_share" not in found, "it has just come"
    collector.close()


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("0::/", {"cgroup.cpu.throttled_share": 0, "cgroup.memory.limited": 0}),
        ("4:cpu:/x\n0::/", {"cgroup.memory.limited": 0}),
        ("4:cpu,memory:/x", {}),
    ],
)
def test_a_root_group_has_no_limit_and_another_is_unknown(
    tmp_path: Path, text: str, known: dict[str, float]
) -> None:
    mounts = f"41 31 0:38 / {tmp_path} rw - cgroup2 c rw"
    write(tmp_path, {"self/mountinfo": mounts, "7/cgroup": text})
    collector = Limits(PID, proc=tmp_path)
    assert collector.read(0) == known
    assert collector.missing is not None
    write(tmp_path, {"vmstat": "pswpin 0\noom_kill 3"})
    assert collector.read(0)["cgroup.memory.oom_kills"] == 3, "the root's are the host's"


def test_steal_between_two_readings(tmp_path: Path) -> None:
    """Made as those of a host of two CPUs, ten seconds apart: this one's hypervisor takes none."""
    write(tmp_path, {"loadavg": "9.1 4.2 1.9 9/312 4711"})
    collector = Load(proc=tmp_path)
    write(tmp_path, {"stat": "cpu  84211 12 20110 990201 4100 0 1201 3300 0 0"})
    assert "host.cpu.steal" not in collector.read(NS)
    write(tmp_path, {"stat": "cpu  84911 12 20310 990301 4100 0 1221 4280 0 0"})
    steal = collector.read(11 * NS)["host.cpu.steal"]
    assert steal == pytest.approx(0.49)
    assert shown({"host.cpu.steal": steal}) == {
        "cpu-steal": "the hypervisor withholds 49% of the CPU time of this host"
    }


def test_rates_of_two_samples_of_one_host(tmp_path: Path) -> None:
    write(tmp_path, {"meminfo": "MemTotal: 100 kB", "vmstat": "pswpin 100\nallocstall_normal 7"})
    collector = Memory(proc=tmp_path)
    before = Sample("memory", 1, NS, collector.read(NS))
    write(tmp_path, {"vmstat": "pswpin 1100\nallocstall_normal 5"})
    after = Sample("memory", 1, 3 * NS, collector.read(3 * NS))
    assert rates(before, after) == {"rate(memory.swapped_in)": 500.0}, "a lower counter is unknown"


def server(pid: int, datadir: Path, *options: str) -> Server:
    argv = ("mariadbd", "--no-defaults", f"--datadir={datadir}", *options)
    main = ProcessInfo(pid, 1, "mariadbd", "S", 5, False, "/usr/sbin/mariadbd", (1, 2), argv)
    return Server(main, (pid,), datadir=str(datadir))


def test_the_room_of_each_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data", "binlog"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(serverpaths, "open_files", lambda *_: ())
    known = asking.status(tmp_path / "data").st_dev
    real = asking.status
    log = os.path.join(tmp_path, "binlog")

    def status(path: str) -> os.stat_result:
        found = list(real(path))
        found[2] = known + 1 if str(path).endswith(log) else known
        return os.stat_result(found)

    monkeypatch.setattr(asking, "status", status)
    collector = Space(server(os.getpid(), tmp_path / "data", f"--log-bin={log}/b"))
    values = collector.collect().values
    assert values["space.data.free_bytes"] > 0
    assert values["space.redo.full"] == 0, "it is with the data"
    assert values["space.binlog.read_only"] == values["space.read_only"] == 0
    assert "space.redo.free_bytes" not in values
    assert "redo" in collector.names()["space.data.with"].split()

    def silent(path: str) -> os.statvfs_result:
        if str(path).endswith(log):
            raise asking.SilentDiskError(path)
        return os.statvfs(tmp_path)

    monkeypatch.setattr(asking, "space", silent)
    values = collector.collect().values
    assert "space.binlog.full" not in values
    assert "space.read_only" not in values, "one of them is unknown"
    asking.close()


def shown(values: dict[str, float], names: dict[str, str] | None = None) -> dict[str, str]:
    return {name: said.headline for name, said in hoststates.shown(values, names or {})}


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"cgroup.cpu.throttled_share": 0.9}, "cpu-quota"),
        ({"space.binlog.full": 1.0}, "disk-full"),
        ({"space.data.full": 1.0, "space.data.free_bytes": 1e9}, "disk-full"),
        ({"space.redo.read_only": 1.0}, "disk-read-only"),
        (
            {"rate(process.major_faults)": 500.0, "rate(memory.swapped_in)": 900.0},
            "process-swapped",
        ),
        (
            {"rate(process.major_faults)": 500.0, "rate(cgroup.memory.limited)": 900.0},
            "memory-limit",
        ),
        ({"rate(memory.direct_reclaims)": 500.0}, "memory-reclaim"),
        ({"rate(memory.compaction_stalls)": 500.0}, "memory-compaction"),
        ({"rate(cgroup.memory.oom_kills)": 2.0}, "oom-kill"),
    ],
)
def test_a_state_has_a_headline_and_a_signature(values: dict[str, float], name: str) -> None:
    assert list(shown(values)) == [name]
    assert name in catalog.load().by_id
    assert shown(dict.fromkeys(values, 0.0)) == {}
    assert shown({}) == {}


def test_a_full_disk_is_named_with_what_to_free() -> None:
    names = {"space.binlog": "/logs\x1b[1m", "space.data": "/data", "space.data.with": "redo"}
    values = {"space.binlog.free_bytes": 8192.0, "space.binlog.full": 1.0, "space.data.full": 1.0}
    ((name, said),) = hoststates.shown(values, names)
    assert name == "disk-full"
    assert said.root
    assert said.headline == (
        "the disk under the binary log is full: 8 kB are free on /logs\\x1b[1m"
    )
    assert said.says == ("also full: /data",)
    assert "PURGE BINARY LOGS" in " ".join(said.remedies)
    assert not any("KILL QUERY" in text for text in said.remedies)
    ((_, said),) = hoststates.shown({"space.temporary.full": 1.0}, names)
    assert not said.root, "statements fail, and nobody waits"


SAMPLES: list[tuple[str, str, Callable[[int], dict[str, float]]]] = [
    ("cpu-quota", "cgroup", lambda _: {"cgroup.cpu.throttled_share": 1.0}),
    ("cpu-steal", "load", lambda _: {"host.cpu.steal": 0.4}),
    ("disk-full-data", "space", lambda _: {"space.data.full": 1.0}),
    ("disk-full-redo", "space", lambda _: {"space.redo.full": 1.0}),
    ("disk-full-binlog", "space", lambda _: {"space.binlog.full": 1.0}),
    ("disk-full-temporary", "space", lambda _: {"space.temporary.full": 1.0}),
    ("disk-read-only", "space", lambda _: {"space.read_only": 1.0}),
    (
        "swapping",
        "memory",
        lambda n: {"process.major_faults": 500.0 * n, "memory.swapped_in": 500.0 * n},
    ),
    (
        "memory-limit",
        "cgroup",
        lambda n: {"process.major_faults": 500.0 * n, "cgroup.memory.limited": 500.0 * n},
    ),
    ("memory-reclaim", "memory", lambda n: {"memory.direct_reclaims": 500.0 * n}),
    ("memory-compaction", "memory", lambda n: {"memory.compaction_stalls": 500.0 * n}),
    ("oom-kill", "cgroup", lambda n: {"cgroup.memory.oom_kills": float(n > 5)}),
]


@pytest.mark.parametrize(("name", "source", "values"), SAMPLES)
def test_a_trigger_fires_and_unknown_does_not(
    name: str, source: str, values: Callable[[int], dict[str, float]]
) -> None:
    engine = Engine(triggerfile.defaults(), {})
    fired = [
        one.trigger for n in range(10) for one in engine.feed(Sample(source, n, n * NS, values(n)))
    ]
    assert fired == [name]
    engine = Engine(triggerfile.defaults(), {})
    for n in range(10):
        assert not engine.feed(Sample(source, n, n * NS, {}))


def test_what_is_measured_is_what_is_read() -> None:
    """A name that is misspelled would be unknown always."""
    collectors = (Limits(os.getpid()), Load(), Memory())
    known = {name for one in collectors for name in one.collect().values}
    for one in collectors:
        one.close()
    ours = {name for name in GAUGES | COUNTERS if not name.startswith(("cgroup.", "process."))}
    assert ours - known <= {"host.cpu.steal"}
