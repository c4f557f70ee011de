# SPDX-License-Identifier: Apache-2.0
"""What a durable commit costs: the fit, the model of commits, the report, the measurement."""

from __future__ import annotations

import json
import math
import os
import random
import socket
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stallscope.analyzers import commitmodel, durability, syncfit
from stallscope.analyzers.commitmodel import Load, Station
from stallscope.analyzers.durability import ClassUse, Durability, Measured, Setting, ThreadUse
from stallscope.analyzers.syncfit import SyncSums
from stallscope.base.errors import StallscopeError, UsageError
from stallscope.collectors import cputimes, ownthreads, syncprobe
from stallscope.collectors.sql import commitclients
from stallscope.collectors.sql.commitclients import PauseCost, PauseMeter
from stallscope.commands import storage_sync
from stallscope.main import main
from stallscope.model.storage import FileSums
from stallscope.reporters import storagesync
from tests.support.servers.waiting import wait_until

pytestmark = pytest.mark.large

MS = 1e6


def sums_of(pairs: list[tuple[float, float]]) -> SyncSums:
    """Return the sums of (N in bytes, t in ns)."""
    return SyncSums(
        len(pairs),
        sum(t for _, t in pairs),
        sum(n for n, _ in pairs),
        sum(n * n for n, _ in pairs),
        sum(n * t for n, t in pairs),
        sum(t * t for _, t in pairs),
    )


def syncs(count: int, ms: float) -> SyncSums:
    """Return the sums of syncs of 4 KiB that took as long each."""
    return sums_of([(4096.0, ms * MS)] * count)


def measured(**changes: object) -> Measured:
    """Return a MariaDB with one client, whose syncs take 5 ms."""
    values: dict[str, object] = {
        "seconds": 10.0,
        "family": "mariadb",
        "version": "10.11.6-MariaDB",
        "binlog": True,
        "flush": 1,
        "sync_binlog": 1,
        "commits": 970.0,
        "rows": 970.0,
        "clients": 1,
        "running": 1.0,
        "cpu_user": 0.1,
        "cpu_system": 0.05,
        "cpus": 2,
        "classes": {"redo": ClassUse(syncs(970, 5.0)), "binlog": ClassUse(syncs(970, 5.0))},
    }
    return Measured(**{**values, **changes})  # type: ignore[arg-type]


def rate(found: Durability, flush: int, sync_binlog: int) -> float:
    (one,) = [one for one in found.predictions if one.setting == Setting(flush, sync_binlog)]
    assert one.low <= one.commits_per_s <= one.high
    return one.commits_per_s


@settings(deadline=None)
@given(
    k_ms=st.floats(0.02, 50),
    r_mb_s=st.floats(1, 3000),
    sizes=st.lists(st.integers(512, 4 << 20), min_size=20, max_size=200),
)
def test_the_fit_finds_k_and_r(k_ms: float, r_mb_s: float, sizes: list[int]) -> None:
    found = syncfit.cost(sums_of([(n, k_ms * MS + n / r_mb_s * 1e3) for n in sizes]))
    spread = math.sqrt(sum((n - sum(sizes) / len(sizes)) ** 2 for n in sizes) / len(sizes))
    part = spread / r_mb_s * 1e3
    if part < 0.01 * k_ms * MS or spread < 0.1 * sum(sizes) / len(sizes):
        return  # the bytes make no difference that doubles would show
    assert found.determined, found.why_not
    assert found.k_ms == pytest.approx(k_ms, rel=0.01, abs=1e-3)
    assert found.r_mb_s == pytest.approx(r_mb_s, rel=0.01)
    assert found.r2 == pytest.approx(1, abs=1e-6)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 1e9), st.floats(0, 1e12)),
        max_size=50,
    )
)
def test_any_sums_give_a_price_or_a_reason(pairs: list[tuple[float, float]]) -> None:
    found = syncfit.cost(sums_of(pairs))
    assert found.determined == (found.why_not is None)
    assert found.r2 is None or 0 <= found.r2 <= 1
    assert (found.k_ms is None) == (not pairs)
    assert found.determined or found.r_mb_s is None


def test_bytes_that_do_not_explain_the_time_are_said_so() -> None:
    made = random.Random(7)
    pairs = [(made.uniform(1e3, 1e6), made.uniform(1, 9) * MS) for _ in range(500)]
    found = syncfit.cost(sums_of(pairs))
    assert not found.determined
    assert found.r2 is not None
    assert found.r2 < syncfit.LEAST_R2
    assert found.k_ms == pytest.approx(5, rel=0.1)
    assert "explain" in str(found.why_not)
    same = syncfit.cost(syncs(100, 5.0))
    assert not same.determined
    assert same.r2 is None
    assert "as many bytes" in str(same.why_not)


@pytest.mark.parametrize("path", [(0.005,), (0.005, 0.003), ()])
def test_one_client_goes_through_all_one_after_the_other(path: tuple[float, ...]) -> None:
    stations = tuple(Station(str(number), seconds) for number, seconds in enumerate(path))
    found = commitmodel.run(Load(1, 0.001, 2, 0.002, stations))
    assert found.commits == pytest.approx(1 / (0.003 + sum(path)), rel=0.05)
    assert set(found.syncs.values()) <= {1.0}


@settings(max_examples=20, deadline=None)
@given(
    clients=st.integers(1, 60),
    cpu=st.floats(1e-5, 1e-3),
    cpus=st.integers(1, 64),
    delay=st.floats(0, 0.01),
    times=st.lists(st.floats(1e-4, 0.02), max_size=2),
    group=st.booleans(),
    together=st.booleans(),
)
def test_no_more_than_queues_allow(
    clients: int,
    cpu: float,
    cpus: int,
    delay: float,
    times: list[float],
    group: bool,
    together: bool,
) -> None:
    path = tuple(Station(str(number), seconds, 0.0, group) for number, seconds in enumerate(times))
    found = commitmodel.run(Load(clients, cpu, cpus, delay, path, together=together))
    assert 0 < found.commits <= 1.1 * clients / (cpu + delay + sum(times))
    assert found.commits <= 1.1 * cpus / cpu
    if not group:
        assert found.commits <= 1.01 / max(times, default=1e-9)
        assert all(each == pytest.approx(1, rel=0.05) for each in found.syncs.values())
    assert all(each <= 1.05 for each in found.syncs.values())


def test_clients_that_wait_share_a_sync() -> None:
    """Two groups take turns: while one is synced, the other waits."""
    found = commitmodel.run(Load(32, 1e-5, 2, 0.0, (Station("redo", 0.005),)))
    assert found.syncs["redo"] == pytest.approx(1 / 16, rel=0.2)
    assert found.commits == pytest.approx(16 / 0.005, rel=0.2)


def test_a_file_system_that_holds_writers_makes_three_groups() -> None:
    path = (Station("redo", 0.0, held_by="binlog"), Station("binlog", 0.005))
    found = commitmodel.run(Load(30, 1e-5, 2, 0.0002, path))
    assert found.syncs["binlog"] == pytest.approx(1 / 10, rel=0.1)


def test_the_measured_rate_comes_back() -> None:
    load = Load(8, 1e-4, 2, 0.0, (Station("redo", 0.005),))
    before = commitmodel.run(load).commits
    delay = commitmodel.delay_of(load, before / 2)
    assert 0.004 < delay < 0.02
    scale = commitmodel.scale_of(load, before / 2)
    assert scale == pytest.approx(2, rel=0.1)


def test_a_looser_setting_is_predicted_from_the_safest() -> None:
    found = durability.analyze(measured())
    assert found.why_not is None
    assert rate(found, 1, 1) == 97
    assert rate(found, 1, 0) == pytest.approx(188, rel=0.05)
    assert rate(found, 2, 1) == rate(found, 0, 1) == pytest.approx(188, rel=0.05)
    assert rate(found, 0, 0) > 1000
    assert found.syncs_per_commit["redo"] == 1
    assert found.commits_per_sync == {"redo": 1, "binlog": 1}
    rows = {one.rows_per_commit: one.rows_per_s for one in found.rows}
    assert rows[1] == pytest.approx(97, rel=0.05)
    assert rows[1] < rows[10] < rows[1000]


def test_the_safest_setting_is_predicted_from_the_loosest() -> None:
    """The redo log is synced in the background once a second; the price is taken from there."""
    loose = measured(
        flush=0,
        sync_binlog=0,
        commits=50_000.0,
        rows=50_000.0,
        cpu_user=5.0,
        cpu_system=2.0,
        classes={"redo": ClassUse(syncs(10, 5.0))},
    )
    found = durability.analyze(loose)
    assert rate(found, 1, 1) == pytest.approx(98, rel=0.1)
    # Time of the clients is not charged to syncs, which they do not wait for here.
    written = {name: ClassUse(syncs(10, 5.0), 50_000, 50_000_000) for name in ("redo", "binlog")}
    slow = durability.analyze(msgspec.structs.replace(loose, clients=8, classes=written))
    assert rate(slow, 1, 1) > 300
    assert any("binlog" in note for note in found.notes)
    assert found.commits_per_sync == {}


def test_a_server_without_group_commit() -> None:
    """MySQL 5.5 has one binlog sync a commit, however many clients."""
    use = {"redo": ClassUse(syncs(2000, 5.0)), "binlog": ClassUse(syncs(1990, 5.0))}
    old = measured(
        family="mysql", version="5.5.9-log", clients=8, running=8.0, commits=1990.0, classes=use
    )
    found = durability.analyze(old)
    assert rate(found, 2, 1) == pytest.approx(199, rel=0.05)
    assert rate(found, 1, 0) == pytest.approx(400, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"commits": 0.0}, "no commits in 10 s: nothing to predict from"),
        ({"commits": 3.0}, "too few"),
        ({"commits": None}, "without SQL"),
        ({"family": "postgres"}, "PostgreSQL"),
        ({"flush": None}, "settings are unknown"),
        ({"cpu_user": None}, "CPU time is unknown"),
        ({"classes": {}}, "--probe-dir"),
    ],
)
def test_what_is_unknown_is_not_predicted(changes: dict[str, object], why: str) -> None:
    found = durability.analyze(measured(**changes))
    assert found.predictions == ()
    assert why in str(found.why_not)


def test_without_a_binlog_there_are_three_settings() -> None:
    found = durability.analyze(measured(binlog=False, classes={"redo": ClassUse(syncs(970, 9.0))}))
    assert [one.setting for one in found.predictions] == [
        Setting(1, 0),
        Setting(2, 0),
        Setting(0, 0),
    ]
    assert any("off" in note for note in found.notes)


def test_with_o_dsync_2_costs_as_much_as_1() -> None:
    use = {"redo": ClassUse(syncs(970, 5.0), dsync=True), "binlog": ClassUse(syncs(970, 5.0))}
    found = durability.analyze(measured(classes=use))
    assert rate(found, 2, 0) == pytest.approx(188, rel=0.05)
    assert rate(found, 0, 0) > 1000


def test_memory_is_said_to_keep_nothing() -> None:
    use = {"redo": ClassUse(syncs(970, 0.001), file_system="tmpfs")}
    assert any("tmpfs" in note for note in durability.analyze(measured(classes=use)).notes)
    use = {"redo": ClassUse(syncs(970, 5.0)), "temporary": ClassUse(file_system="tmpfs")}
    assert not any("tmpfs" in note for note in durability.analyze(measured(classes=use)).notes)


@settings(max_examples=10, deadline=None)
@given(
    commits=st.floats(0, 1e6),
    clients=st.integers(0, 5000),
    running=st.none() | st.floats(0, 5000),
    flush=st.integers(-1, 9),
    sync_binlog=st.integers(0, 1 << 32),
    cpu=st.floats(0, 1e4),
    factor=st.none() | st.floats(0, 1e6),
    count=st.integers(0, 10_000),
    ms=st.floats(0, 1e5),
)
@example(20.0, 0, None, 0, 1, 0.0, None, 1, 1.0)  # no CPU time: a rate without limit
def test_no_measurement_breaks_the_model(
    commits: float,
    clients: int,
    running: float | None,
    flush: int,
    sync_binlog: int,
    cpu: float,
    factor: float | None,
    count: int,
    ms: float,
) -> None:
    use = {
        "redo": ClassUse(syncs(min(count, 50), ms)),
        "binlog": ClassUse(syncs(min(count, 9), ms)),
    }
    found = durability.analyze(
        measured(
            commits=commits,
            clients=clients,
            running=running,
            flush=flush,
            sync_binlog=sync_binlog,
            cpu_user=cpu,
            cpu_system=cpu,
            pause_factor=factor,
            classes=use,
        )
    )
    for one in found.predictions:
        assert 0 < one.low <= one.commits_per_s <= one.high
    whole = storagesync.Whole(storagesync.Report(found, "mariadbd", 1))
    json.loads(storagesync.dumps(whole), parse_constant=pytest.fail)
    storagesync.render(whole, 80)


def test_the_text_fits_a_terminal() -> None:
    whole = storagesync.Whole(storagesync.Report(durability.analyze(measured()), "mariadbd", 123))
    text = [line.text for line in storagesync.render(whole, 80)]
    assert max(map(len, text)) <= 80
    assert "97 commits/s of 1 client" in text[0]
    assert any("now" in line for line in text)


def test_json_has_the_fields_of_the_contract() -> None:
    report = storagesync.Report(durability.analyze(measured()), "mariadbd", 123)
    found = json.loads(storagesync.dumps(storagesync.Whole(report)))
    assert found["schema"] == "stallscope.storage-sync/1"
    redo = next(one for one in found["classes"] if one["class"] == "redo")
    assert redo["syncs"] == 970
    assert redo["k_ms"] == pytest.approx(5)
    assert redo["k_is"] == "mean"
    assert redo["r_mb_s"] is None
    assert redo["r2"] is None
    assert redo["determined"] is False
    assert len(found["predictions"]) == 6
    assert {"flush_log_at_trx_commit", "sync_binlog", "commits_per_s", "low", "high"} <= set(
        found["predictions"][0]
    )


def test_pauses_make_nothing_faster() -> None:
    assert PauseCost(5.0, 10.0, of_server=True).factor == 1
    assert PauseCost(50.0, 10.0, of_server=True).factor == 5
    assert PauseCost(50.0, 0.0, of_server=True).factor == 1
    assert PauseCost(50.0, 10.0, of_server=True, share=0.25).factor == 2


class Clock:
    """In place of the module ``time``: only pauses and statements take any."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_meter_sees_what_a_pause_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statement takes ten times as long 4 ms or more after the one before."""
    clock = Clock()
    monkeypatch.setattr(commitclients, "time", clock)

    class Session:
        ended = 0.0

        def several(self, _: str, count: int) -> None:
            for _number in range(count):
                clock.sleep(0.002 if clock.now - self.ended > 0.004 else 0.0002)
                self.ended = clock.now

    meter = PauseMeter(os.getpid(), None)
    assert meter.cost() is None
    session = Session()
    for _ in range(5):
        meter.sample(session, 0.005)  # type: ignore[arg-type]
    cost = meter.cost()
    assert cost is not None
    assert not cost.of_server
    assert cost.after_pause_us == pytest.approx(2000)
    assert cost.at_once_us == pytest.approx(200)
    assert cost.share == pytest.approx(1)


def test_a_server_at_full_speed_does_nothing_cold() -> None:
    found = durability.analyze(measured(pause_factor=8.0))
    cpu = (0.1 + 0.1 / 3) / 970
    assert rate(found, 0, 0) == pytest.approx(8 / cpu, rel=0.15)
    assert rate(found, 1, 0) == pytest.approx(188, rel=0.05)


def test_cpu_time_of_others_is_not_that_of_a_commit() -> None:
    """A thread that rarely gets a CPU works for nobody who commits; nor does the one that serves
    the measurement."""
    threads = (
        ThreadUse(0.08, 3000),
        ThreadUse(0.03, 200),
        ThreadUse(0.02, 1000, own=True),
    )
    found = durability.analyze(measured(threads=threads)).model
    assert found is not None
    assert found.cpu_us == pytest.approx((0.1 + 0.1 / 3) * (0.1 / 0.15) / 970 * 1e6)
    # Of more clients each one's thread gets a CPU less often.
    found = durability.analyze(measured(threads=threads, clients=8)).model
    assert found is not None
    assert found.cpu_us == pytest.approx((0.1 + 0.1 / 3) * (0.13 / 0.15) / 970 * 1e6)


def test_clients_that_think_are_not_an_unlucky_sample() -> None:
    found = durability.analyze(measured(running=0.96, running_error=0.04)).model
    assert found is not None
    assert found.delay_us == 0
    found = durability.analyze(measured(running=0.5, running_error=0.1)).model
    assert found is not None
    packets = (0.1 / 3) / 970  # the system time of statements
    assert found.delay_us == pytest.approx((0.5 / 97 - packets) * 1e6)


def test_the_time_of_threads_is_read() -> None:
    def mine() -> cputimes.ThreadTime:
        return cputimes.thread_times([os.getpid()])[threading.get_native_id()]

    before = mine()
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        pass
    assert mine().seconds - before.seconds >= 0.02
    assert cputimes.thread_times([2**22 + 1]) == {}


def test_the_thread_that_reads_a_socket_is_found() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = threading.Thread(target=theirs.recv, args=(1,))
        reader.start()
        inode = os.fstat(theirs.fileno()).st_ino
        read = partial(ownthreads.reading_thread, os.getpid(), inode)
        assert wait_until(read, "it reads") == reader.native_id
        ours.send(b"x")
        reader.join()
        assert read() is None


def a_file(**changes: object) -> FileSums:
    values: dict[str, object] = {
        "path": "/d/ib_logfile0",
        "file_class": "redo",
        "dev": "8:1",
        "ino": 1,
        "requests": 10,
        "requested_bytes": 40_960,
        "write_ns": 1000,
        "charged_bytes": None,
        "syncs": 10,
        "sync_ns": 50_000_000,
        "sum_n": 40_960.0,
        "sum_nn": 167_772_160.0,
        "sum_nt": 2.0e11,
        "sum_tt": 2.5e14,
    }
    return FileSums(**{**values, **changes})  # type: ignore[arg-type]


def test_files_are_added_up_by_class() -> None:
    files = (
        a_file(direct_bytes=40_960),
        a_file(ino=2, direct_bytes=40_960),
        a_file(file_class="binlog", dsync_writes=10, fdatasyncs=0),
    )
    uses = storage_sync.class_uses(os.getpid(), files)
    assert uses["redo"].sums.syncs == 20
    assert uses["redo"].direct
    assert not uses["redo"].dsync
    assert uses["binlog"].dsync
    assert syncfit.cost(uses["redo"].sums).mean_ms == 5


def test_a_folder_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    found = syncprobe.measure(tmp_path, seconds=0.2)
    assert [one.call for one in found] == ["fsync", "fdatasync"]
    assert all(one.syncs > 0 and one.sum_t > 0 for one in found)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_nameless_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.open

    def refusing(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return really(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refusing)
    assert sum(one.syncs for one in syncprobe.measure(tmp_path, seconds=0.1))
    assert list(tmp_path.iterdir()) == []


def test_an_end_is_heeded(tmp_path: Path) -> None:
    asked = iter([False, False, True])
    assert sum(one.syncs for one in syncprobe.measure(tmp_path, ended=lambda: next(asked))) == 2


def test_a_process_measures_until_its_time_is_up(tmp_path: Path) -> None:
    found = syncprobe.measure_apart(tmp_path, seconds=0.2)
    assert [one.call for one in found] == ["fsync", "fdatasync"]
    assert all(one.syncs > 0 and one.sum_t > 0 for one in found)
    assert list(tmp_path.iterdir()) == []


def test_a_process_measures_until_the_end(tmp_path: Path) -> None:
    found = syncprobe.measure_apart(tmp_path, ended=lambda: True, seconds=3600)
    assert sum(one.syncs for one in found) < syncprobe.MAX_SYNCS


def test_a_process_says_why_it_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        syncprobe.measure_apart(tmp_path / "none")
    monkeypatch.setattr(syncprobe, "LATE_SECONDS", -3600.0)
    with pytest.raises(StallscopeError, match="its disk has not answered"):
        syncprobe.measure_apart(tmp_path)


def test_too_little_space_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.statvfs_result((4096, 4096, 1000, 10, 10, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(StallscopeError, match="64 MiB"):
        syncprobe.measure(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--probe-dir", "/tmp"], "--allow-write"),
        (["--allow-write"], "--probe-dir"),
        (["--probe-dir", "/nonexistent", "--allow-write"], "no such directory"),
    ],
)
def test_wrong_usage(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["storage", "sync", *arguments]) == 2
    assert why in capsys.readouterr().err


def test_a_folder_alone_needs_no_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncprobe, "MAX_SYNCS", 24)
    monkeypatch.setattr(syncprobe, "measure_apart", syncprobe.measure)
    assert main(["storage", "sync", "--probe-dir", str(tmp_path), "--allow-write", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["classes"] == []
    assert [one["call"] for one in found["probe_dir"]["calls"]] == ["fsync", "fdatasync"]
    assert sum(one["syncs"] for one in found["probe_dir"]["calls"]) == 24
