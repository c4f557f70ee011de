# SPDX-License-Identifier: Apache-2.0
"""Collectors of /proc: this kernel's own files, and those of kernels that lack some."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stallscope.base.errors import StallscopeError
from stallscope.collectors.host import (
    Backends,
    Disks,
    Load,
    Memory,
    Pressure,
    ProcessNumbers,
    host_collectors,
)
from stallscope.collectors.host.backends import activity
from stallscope.collectors.host.collecting import OpenedFile, Pace
from stallscope.collectors.paths import asking

STAT = "7 (my) sqld) S 1 7 7 0 -1 4194304 11 0 22 0 {cpu} 0 0 0 20 0 33 0 {start} 1 1 1"


def _write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def _process(folder: Path, *, cpu: int = 100, start: int = 5) -> Path:
    return _write(
        folder,
        {
            "7/stat": STAT.format(cpu=cpu, start=start),
            "7/status": "Name:\tmysqld\nVmRSS:\t  2048 kB\nVmSwap:\t 4 kB\n",
            "7/task/7/status": "Name:\tx\nState:\tS (sleeping)\nvoluntary_ctxt_switches:\t5\n"
            "nonvoluntary_ctxt_switches:\t2\n",
            "7/task/8/status": "Name:\tState:\tR\nState:\tD (disk sleep)\n",
        },
    )


def test_process_that_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        collector = ProcessNumbers(child.pid)
        assert collector.collect().values["process.threads"] == 1
        child.communicate(b"\n")
    with pytest.raises(StallscopeError, match="has ended"):
        collector.collect()


def test_process_numbers_of_a_fixture(tmp_path: Path) -> None:
    collector = ProcessNumbers(7, proc=_process(tmp_path))
    values = collector.read(10**9)
    ticks = os.sysconf("SC_CLK_TCK")
    assert values["process.cpu_seconds"] == 100 / ticks
    assert "process.cpu_share" not in values  # there is no share without an earlier sample
    assert values["process.threads"] == 33
    assert values["process.major_faults"] == 22

    assert values["process.rss_bytes"] == 2 << 20
    assert values["process.swap_bytes"] == 4096
    assert {k: v for k, v in values.items() if k.startswith("process.threads.")} == {
        "process.threads.R": 0,
        "process.threads.S": 1,
        "process.threads.D": 1,
    }
    assert "process.read_bytes" not in values  # /proc/PID/io is its owner's
    (tmp_path / "7" / "stat").write_text(STAT.format(cpu=100 + ticks, start=5))
    assert collector.read(5 * 10**9)["process.cpu_share"] == 0.25
    collector.close()
    with pytest.raises(StallscopeError, match="closed"):
        collector.collect()


def test_another_process_with_the_same_number(tmp_path: Path) -> None:
    collector = ProcessNumbers(7, start_time=4, proc=_process(tmp_path, start=5))
    with pytest.raises(StallscopeError, match="another process has its pid"):
        collector.collect()


def test_kernel_without_pressure(tmp_path: Path) -> None:
    with pytest.raises(
        StallscopeError, match=r"no /proc/pressure: this kernel is older than 4\.20"
    ):
        Pressure(proc=tmp_path).collect()


def test_pressure_of_the_cgroup_alone(tmp_path: Path) -> None:
    """A container can hide /proc/pressure; before 5.13 the CPU has no ``full``."""
    group = tmp_path / "cgroup"
    line = "some avg10=12.50 avg60=0.00 avg300=0.00 total=77\n"
    _write(group, {f"db/{name}.pressure": line for name in ("cpu", "io", "memory")})
    proc = _write(
        tmp_path / "proc",
        {
            "7/cgroup": "5:memory:/x\n0::/db\n",
            "self/mountinfo": f"41 31 0:38 / {group} rw - cgroup2 cgroup2 rw\n",
        },
    )
    values = Pressure(7, proc=proc).collect().values
    assert values["psi.cgroup.cpu.some_avg10"] == 12.5
    assert values["psi.cgroup.io.some_us"] == 77
    assert not any("full" in name for name in values)


@pytest.mark.parametrize(
    ("cgroup", "why"),
    [
        ("5:memory:/x\n", "is not in a version 2 cgroup"),
        ("0::/\n", "the root cgroup"),
        ("0::/gone\n", "has no cpu.pressure"),
    ],
)
def test_why_a_cgroup_has_no_pressure(tmp_path: Path, cgroup: str, why: str) -> None:
    mounts = f"41 31 0:38 / {tmp_path} rw - cgroup2 cgroup2 rw\n"
    _write(tmp_path, {"7/cgroup": cgroup, "self/mountinfo": mounts})
    assert why in (Pressure(7, proc=tmp_path).cgroup_missing or "")


DISK = "   8       0 sda {} 5 {} {} {} 6 {} {} 3 {} 999"


def _disks(folder: Path, line: str) -> None:
    part = line.replace("   0 sda", "   1 sda1")
    old = "   8       2 sda2 1 2 3 4\n"  # a partition before 2.6.25
    (folder / "diskstats").write_text(f"{line}\n{part}\n{old}")


def test_disks_of_a_fixture(tmp_path: Path) -> None:
    (tmp_path / "sys/block/sda").mkdir(parents=True)
    collector = Disks(proc=tmp_path, sys=tmp_path / "sys")
    _disks(tmp_path, DISK.format(100, 1000, 50, 200, 2000, 80, 500))
    first = collector.read(10**9).items()
    assert ("disk.sda.read_bytes", 512_000) in first
    assert not any("await" in name or "util" in name for name, _ in first)
    _disks(tmp_path, DISK.format(110, 1100, 90, 200, 2000, 80, 750))
    values = collector.read(2 * 10**9)
    assert values["disk.sda.util"] == 0.25
    assert values["disk.sda.iops"] == 10
    assert values["disk.sda.read_await_ms"] == 4
    assert values["disk.sda.in_flight"] == 3
    assert "disk.sda.write_await_ms" not in values  # nothing was written
    assert not any(name.startswith("disk.sda1") for name in values)
    _disks(tmp_path, DISK.format(1, 1, 1, 1, 1, 1, 1))  # it was taken away and came back
    assert "disk.sda.util" not in collector.read(3 * 10**9)


def test_the_device_of_the_data(tmp_path: Path) -> None:
    data = tmp_path / "7/root/var/data"
    data.mkdir(parents=True)
    device = data.stat().st_dev
    line = f"   {os.major(device)} {os.minor(device)} sdz9 1 2 3 4 5 6 7 8 9 10 11\n"
    (tmp_path / "diskstats").write_text(line)
    collector = Disks(7, "/var/data", proc=tmp_path, sys=tmp_path)
    assert collector.read(1)["disk.datadir.reads"] == 1
    assert collector.datadir_missing is None
    (tmp_path / "diskstats").write_text("")
    elsewhere = Disks(7, "/var/data", proc=tmp_path, sys=tmp_path)
    assert elsewhere.read(1) == {}
    assert "is not on a block device" in (elsewhere.datadir_missing or "")
    gone = Disks(7, "/gone", proc=tmp_path, sys=tmp_path)
    assert "No such file" in (gone.datadir_missing or "")


def test_load_that_is_no_load(tmp_path: Path) -> None:
    with pytest.raises(StallscopeError, match=r"cannot read .*loadavg: it does not exist"):
        Load(proc=tmp_path).collect()
    _write(tmp_path, {"loadavg": "garbage", "stat": ""})
    with pytest.raises(StallscopeError, match="/proc/loadavg"):
        Load(proc=tmp_path).collect()


def test_memory_of_an_old_kernel(tmp_path: Path) -> None:
    """2.6.32 has no MemAvailable, and counts reclaim for each zone."""
    _write(
        tmp_path,
        {
            "meminfo": "MemTotal:  1000 kB\nCached:  100 kB\nDirty:  7 kB\n"
            "SwapTotal:  50 kB\nSwapFree:  20 kB\n",
            "vmstat": "pgscan_direct_dma 1\npgscan_direct_normal 4\nallocstall 3\npgmajfault 9\n",
        },
    )
    values = Memory(proc=tmp_path).collect().values
    assert values == {
        "memory.total_bytes": 1_024_000,
        "memory.page_cache_bytes": 102_400,
        "memory.dirty_bytes": 7168,
        "memory.swap_total_bytes": 51_200,
        "memory.swap_used_bytes": 30_720,
        "memory.scanned_direct": 5,
        "memory.direct_reclaims": 3,
        "memory.major_faults": 9,
    }


def test_a_file_is_cut_at_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * 100_000)
    assert len(OpenedFile(path, 1000).read()) == 1000


def test_an_expensive_sample_is_taken_rarely() -> None:
    pace = Pace()
    assert pace.due(0, share=0.01)
    used = time.thread_time_ns()
    while time.thread_time_ns() - used < 2_000_000:
        pass
    pace.done(0)
    assert not pace.due(190_000_000, share=0.01)
    assert pace.due(10**10, share=0.01)
    assert not pace.due(190_000_000, share=0.001)
    assert pace.due(190_000_000, share=0.9), "the rest is over"


def test_all_of_them_keep_few_files_open() -> None:
    gc.collect()  # what earlier tests left open is not closed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    collectors = host_collectors(os.getpid(), datadir=os.getcwd())
    values: dict[str, float] = {}
    for _ in range(3):
        for collector in collectors:
            sample = collector.collect()
            assert sample.source == collector.name
            values |= sample.values
    assert values["process.rss_bytes"] > 1 << 20
    assert before <= values["process.fds"] <= before + 20 + 8 * 6

    assert values["host.cpus"] >= 1
    assert min(values["host.run_queue"], values["host.blocked"]) >= 0
    assert values["memory.total_bytes"] > values["memory.available_bytes"] > 0
    for name in ("cpu", "io", "memory"):
        assert 0 <= values[f"psi.{name}.some_avg10"] <= 100
    assert len(os.listdir("/proc/self/fd")) - before <= 16 + 8 * 6, "six for each of 8 groups"
    assert {c.thread for c in collectors} == {c.name for c in collectors}
    for collector in collectors:
        collector.close()
    asking.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("postgres: app shop [local] UPDATE waiting", "waiting"),
        ("postgres: app shop 10.0.0.7(51324) SELECT", "active"),
        ("postgres: 15/main: app shop 10.0.0.7(51324) idle in transaction", "idle_in_transaction"),
        ("postgres: app shop [local] idle in transaction (aborted)", "idle_in_transaction"),
        ("postgres: app shop fe80::1(5432) idle  ", "idle"),
        ("postgres: app shop [local] startup", None),
        ("postgres: app shop [local] authentication", None),
        ("postgres: checkpointer ", None),
        ("postgres: autovacuum worker shop", None),
        ("postgres: walsender rep 10.0.0.8(4711) streaming 0/3000060", None),
        ("postgres: parallel worker for PID 4711", None),
        ("/usr/lib/postgresql/15/bin/postgres -D /var/lib/postgresql/15/main", None),
        ("", None),
    ],
)
def test_what_a_backend_does_is_in_its_title(title: str, expected: str | None) -> None:
    assert activity(title) == expected


def test_backends_are_counted(tmp_path: Path) -> None:
    titles = ["app shop [local] UPDATE waiting"] * 3 + ["app shop [local] SELECT"] * 2
    titles += ["app shop [local] idle", "app shop [local] idle in transaction", "walwriter "]
    files = {f"{100 + i}/cmdline": f"postgres: {text}\0\0" for i, text in enumerate(titles)}
    children = " ".join(str(100 + i) for i in range(len(titles) + 1))  # one has ended meanwhile
    proc = _write(tmp_path, {"7/task/7/children": children, **files})
    collector = Backends(7, proc=proc)
    assert collector.collect().values == {
        "backends.total": 7.0,
        "backends.active": 5.0,
        "backends.waiting": 3.0,
        "backends.idle": 1.0,
        "backends.idle_in_transaction": 1.0,
        "backends.blocked_s": 0.0,
    }
    collector.close()
    with pytest.raises(StallscopeError):
        Backends(8, proc=proc).collect()


class _Server:
    """What SQL says of the backends, poll by poll."""

    def __init__(self, *answers: dict[int, str] | StallscopeError) -> None:
        self._answers = list(answers)

    def __call__(self) -> dict[int, str]:
        found = self._answers.pop(0)
        if isinstance(found, StallscopeError):
            raise found
        return found


def _backends(tmp_path: Path, *titles: str, ask: _Server | None = None) -> Backends:
    files = {f"{100 + i}/cmdline": f"postgres: {text}\0\0" for i, text in enumerate(titles)}
    children = " ".join(str(100 + i) for i in range(len(titles)))
    proc = _write(tmp_path, {"7/task/7/children": children, **files})
    return Backends(7, ask, proc=proc)


def test_a_backend_is_blocked_since_it_was_first_seen_to_wait(tmp_path: Path) -> None:
    collector = _backends(tmp_path, "app shop [local] UPDATE waiting", "app shop [local] idle")
    second = 1_000_000_000
    assert collector.read(5 * second)["backends.blocked_s"] == 0
    assert collector.read(1000 * second)["backends.blocked_s"] == 995
    (tmp_path / "100" / "cmdline").write_text("postgres: app shop [local] UPDATE")
    assert collector.read(2000 * second)["backends.blocked_s"] == 0
    (tmp_path / "100" / "cmdline").write_text("postgres: app shop [local] UPDATE waiting")
    assert collector.read(3000 * second)["backends.blocked_s"] == 0


def test_sql_counts_where_it_answers_and_titles_where_it_does_not(tmp_path: Path) -> None:
    waits = {1: "waiting", 2: "waiting", 3: "idle_in_transaction"}
    ask = _Server(waits, StallscopeError("late"), waits)
    collector = _backends(tmp_path, "app shop [local] UPDATE waiting", ask=ask)
    second = 1_000_000_000
    assert collector.read(second)["backends.waiting"] == 2
    assert collector.read(1000 * second)["backends.waiting"] == 1
    assert collector.read(2000 * second)["backends.waiting"] == 2


def test_at_rest_sql_is_asked_only_where_a_title_says_that_one_waits(tmp_path: Path) -> None:
    ask = _Server({1: "waiting"})
    collector = _backends(tmp_path, "app shop [local] idle", ask=ask)
    collector.at_rest = True
    assert collector.collect().values["backends.waiting"] == 0
    (tmp_path / "100" / "cmdline").write_text("postgres: app shop [local] UPDATE waiting")
    assert collector.read(10**15)["backends.waiting"] == 1


def test_at_rest_sql_is_asked_where_titles_say_nothing(tmp_path: Path) -> None:
    """update_process_title is off."""
    collector = _backends(tmp_path, "app shop [local]", ask=_Server({1: "active"}))
    collector.at_rest = True
    assert collector.collect().values["backends.active"] == 1
