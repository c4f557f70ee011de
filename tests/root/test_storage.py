# SPDX-License-Identifier: Apache-2.0
"""What ``stallscope-probe storage`` counts is what a program has written and synced."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.model.storage import FileSums, StorageLine
from tests.root.support import ONE_LINE, assert_unharmed, run_probe
from tests.support.counting import Counting, file_of
from tests.support.filesystems import FILE_SYSTEMS, mounted, why_not
from tests.support.targets import Script, Target

pytestmark = pytest.mark.needs("root", "waits")

BUFFERED = {
    "write": (7, 1000),
    "pwrite": (5, 4096),
    "writev": (3, 777),
    "pwritev": (4, 5000),
    "pwritev2": (2, 123),
    "aio": (6, 4096),
    "aiov": (2, 999),
    "uring": (8, 513),
    "uringv": (3, 600),
    "uringfixed": (4, 700),
}
DIRECT = {"direct": (5, 8192), "aiodirect": (3, 4096), "uringdirect": (4, 16384)}
SAFE = {"dsync": (3, 300), "osync": (2, 5000), "rwf": (4, 70)}
SYNCS = ("fsync", "fdatasync", "aiofsync", "aiofdatasync", "uringfsync", "uringfdatasync")


@pytest.fixture(scope="module", params=FILE_SYSTEMS)
def folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    if (reason := why_not(request.param)) is not None:
        pytest.skip(reason)
    with mounted(request.param, tmp_path_factory.mktemp("filesystem")) as found:
        yield found


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with Target("writes", str(tmp_path)) as target:
        yield target
        assert target.running()
        assert_unharmed(target.pid)


def do(target: Target, way: str, name: str, count: int, size: int = 0) -> int:
    """Return how many requests were made; 0: this kernel or file system cannot."""
    done = target.ask(f"{way} {name} {count} {size}")["done"]
    assert done in (0, count)
    return int(done)


def assert_nothing_lost(line: StorageLine) -> None:
    assert not {cause: count for cause, count in line.lost.items() if count}


def charged(line: StorageLine) -> int:
    assert line.charged_why_not is None
    return sum(one.charged_bytes or 0 for one in line.files)


def assert_all_charged(line: StorageLine) -> None:
    """Assert that the files are charged with what the kernel charges to the process."""
    assert line.io is not None
    assert charged(line) == line.io.write_bytes


def assert_syncs(found: FileSums, *sizes: int) -> None:
    """Assert that it was synced with so many bytes each."""
    assert found.syncs == len(sizes)
    assert found.sum_n == sum(sizes)
    assert found.sum_nn == sum(size * size for size in sizes)
    assert found.sync_max_ns <= found.sync_ns
    assert found.sum_tt <= found.sync_ns**2
    assert found.sum_nt <= found.sync_ns * max(sizes, default=0)
    assert (found.sum_tt > 0) == bool(sizes)


def sees_ring(line: StorageLine) -> bool:
    """Return whether requests of io_uring are seen on this kernel."""
    return any(program.ok for program in line.programs if program.name == "io_uring")


def is_charged(folder: Path) -> bool:
    return folder.name != "tmpfs"


def test_writes_are_exact(folder: Path) -> None:
    with Target("writes", str(folder)) as target, Counting(target.pid) as counting:
        made = {
            way: (do(target, way, f"{way}.ibd", count, size), size)
            for way, (count, size) in BUFFERED.items()
        }
        final = counting.finish()
    for way, (count, size) in made.items():
        if not count:
            continue
        found = file_of(final, f"{way}.ibd")
        assert found.path == str(folder / f"{way}.ibd")
        assert found.file_class == "data"
        assert (found.requests, found.requested_bytes) == (count, count * size), way
        assert found.write_ns > 0
        pages = -(-count * size // 4096) * 4096
        assert found.charged_bytes is not None
        assert found.charged_bytes >= pages if is_charged(folder) else found.charged_bytes == 0
        assert not found.syncs
        assert (found.direct, found.dsync, found.deleted) == (False, False, False)
    assert_all_charged(final)
    assert_nothing_lost(final)


def test_direct_writes_are_charged_once(folder: Path) -> None:
    with Target("writes", str(folder)) as target, Counting(target.pid) as counting:
        made = {
            way: (do(target, way, way, count, size), size) for way, (count, size) in DIRECT.items()
        }
        for way in made:
            do(target, "fsync", way, 1)
        final = counting.finish()
    for way, (count, size) in made.items():
        if not count:
            continue
        found = file_of(final, way)
        assert found.direct
        assert (found.requests, found.requested_bytes) == (count, count * size), way
        assert found.direct_bytes == count * size
        assert found.charged_bytes == (count * size if is_charged(folder) else 0), way
        # What is on the disk already needs no sync.
        assert_syncs(found, 0)
    assert_all_charged(final)
    assert_nothing_lost(final)


def test_syncs_are_exact(folder: Path) -> None:
    with Target("writes", str(folder)) as target, Counting(target.pid) as counting:
        made = {}
        for way in SYNCS:
            do(target, "pwrite", way, 3, 1000)
            made[way] = do(target, way, way, 2)
            do(target, "pwrite", way, 1, 70_000)
            do(target, way, way, 1)
        final = counting.finish()
    for way, count in made.items():
        if count:
            found = file_of(final, way)
            assert_syncs(found, 3000, 0, 70_000)
            assert found.fsyncs == (0 if "data" in way else 3)
            assert found.fdatasyncs == (3 if "data" in way else 0)
            assert found.dsync_writes == 0
    assert_all_charged(final)
    assert_nothing_lost(final)


def test_writes_that_are_syncs(folder: Path) -> None:
    with Target("writes", str(folder)) as target, Counting(target.pid) as counting:
        for way, (count, size) in SAFE.items():
            assert do(target, way, way, count, size)
            assert do(target, "pwrite", way, 1, 40)
            assert do(target, "fsync", way, 1)
        final = counting.finish()
    for way, (count, size) in SAFE.items():
        found = file_of(final, way)
        assert found.dsync
        assert found.dsync_writes == count
        assert found.fsyncs == 1
        assert_syncs(found, *[size] * count, 40)
        assert (found.requests, found.requested_bytes) == (count + 1, count * size + 40)
    assert_all_charged(final)
    assert_nothing_lost(final)


def test_mapped_pages(folder: Path) -> None:
    with Target("writes", str(folder)) as target, Counting(target.pid) as counting:
        assert do(target, "mapped", "tc.log", 24)
        assert do(target, "fsync", "tc.log", 1)
        final = counting.finish()
    if not is_charged(folder):
        assert charged(final) == 0
        return
    found = file_of(final, "tc.log")
    assert found.path == str(folder / "tc.log")
    assert found.requests == 0
    assert found.mapped_bytes == found.charged_bytes
    assert found.mapped_bytes is not None
    assert found.mapped_bytes >= 24 * 4096
    assert_syncs(found, found.mapped_bytes)
    assert_all_charged(final)


@pytest.mark.small
@pytest.mark.kernels("waits")
def test_all_ways_to_write(target: Target) -> None:
    with Counting(target.pid) as counting:
        made = {
            way: (do(target, way, way, count, size), size)
            for way, (count, size) in {**BUFFERED, **DIRECT, **SAFE}.items()
        }
        do(target, "mapped", "tc.log", 24)
        for name in ("pwrite", "tc.log"):
            do(target, "fsync", name, 1)
        final = counting.finish()
    for way, (count, size) in made.items():
        if count and ("uring" not in way or sees_ring(final)):
            found = file_of(final, way)
            assert (found.requests, found.requested_bytes) == (count, count * size), way
            if way in SAFE:
                assert_syncs(found, *[size] * count)
    assert_syncs(file_of(final, "pwrite"), 5 * 4096)
    assert_all_charged(final)
    assert_nothing_lost(final)


@pytest.mark.kernels("waits")
def test_a_write_and_the_sync_that_is_linked_to_it(target: Target) -> None:
    with Counting(target.pid) as counting:
        count = do(target, "linked", "linked", 3, 600)
        final = counting.finish()
    if not count or not sees_ring(final):
        pytest.skip("no io_uring here")
    found = file_of(final, "linked")
    assert found.requests == 3
    assert_syncs(found, 600, 600, 600)


def test_a_sync_of_a_file_that_is_registered_with_the_ring(target: Target) -> None:
    with Counting(target.pid) as counting:
        count = do(target, "uringfixed", "fixed", 2, 600)
        do(target, "fixedfsync", "fixed", 2)
        final = counting.finish()
    if not count:
        pytest.skip("no io_uring here")
    assert_syncs(file_of(final, "fixed"), 1200, 0)


@pytest.mark.small
def test_other_syncs_are_no_syncs_of_a_file(target: Target) -> None:
    with Counting(target.pid) as counting:
        do(target, "pwrite", "some", 1, 500)
        do(target, "range", "some", 4)
        do(target, "msync", "some", 3)
        do(target, "syncfs", "some", 1)
        final = counting.finish()
    found = file_of(final, "some")
    assert found.syncs == 0
    assert found.range_syncs == 4
    assert found.range_sync_ns > 0
    assert final.other_syncs.msyncs == 3
    assert final.other_syncs.syncfs == 1
    assert final.other_syncs.syncfs_ns > 0


@pytest.mark.small
def test_what_fails_is_not_counted(target: Target) -> None:
    with Counting(target.pid) as counting:
        do(target, "refused", "some", 3, 500)
        do(target, "failed", "some", 2)
        do(target, "pwrite", "some", 1, 500)
        final = counting.finish()
    found = file_of(final, "some")
    assert (found.requests, found.requested_bytes) == (1, 500)
    assert found.syncs == 0
    assert sum(one.sync_errors for one in final.files) == 2


def test_names_are_those_of_now(target: Target, tmp_path: Path) -> None:
    with Counting(target.pid) as counting:
        for name in ("#sql-ib7.ibd", "binlog.000007", "ML123", "closed.ibd"):
            do(target, "pwrite", name, 1, 500)
        target.ask("rename #sql-ib7.ibd t.ibd")
        target.ask("unlink ML123")
        target.ask("close closed.ibd")
        target.ask("unlink closed.ibd")
        final = counting.finish()
    assert file_of(final, "t.ibd").file_class == "data"
    assert not file_of(final, "t.ibd").deleted
    assert file_of(final, "binlog.000007").file_class == "binlog"
    assert file_of(final, "ML123").deleted
    assert file_of(final, "ML123").file_class == "temporary"
    assert file_of(final, "closed.ibd").deleted
    paths = [one.path for one in final.files if not one.metadata]
    assert {Path(path or "").parent for path in paths} == {tmp_path}


def test_files_that_were_closed_before_the_probe_looked(target: Target, tmp_path: Path) -> None:
    with Counting(target.pid) as counting:
        with counting.stopped():
            for name in ("kept.ibd", "dropped.ibd"):
                do(target, "pwrite", name, 1, 500)
                target.ask(f"close {name}")
            target.ask("unlink dropped.ibd")
        final = counting.finish()
    for name, deleted in (("kept.ibd", False), ("dropped.ibd", True)):
        found = file_of(final, name)
        assert (found.path, found.deleted) == (str(tmp_path / name), deleted)


def test_a_symbolic_link_is_followed(target: Target, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "binlog.000001").symlink_to(tmp_path / "logs" / "binlog.000001")
    with Counting(target.pid) as counting:
        do(target, "pwrite", "binlog.000001", 1, 500)
        final = counting.finish()
    assert file_of(final, "binlog.000001").path == str(tmp_path / "logs" / "binlog.000001")


def test_a_process_with_a_root_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    code = "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); f = os.open('/data/t.ibd', 66);"
    code += " print('ready', flush=True); sys.stdin.readline(); os.write(f, b'1234567');"
    code += " print('done', flush=True); sys.stdin.readline()"
    with Script(code, str(tmp_path)) as process:
        with Counting(process.pid) as counting:
            process.go_on()
            assert process.line() == "done"
            final = counting.finish()
        process.go_on()
    assert [(one.path, one.requested_bytes) for one in final.files] == [("/data/t.ibd", 7)]


def test_an_idle_process(target: Target) -> None:
    with Counting(target.pid, interval=0.05) as counting:
        for _ in range(3):
            assert not counting.line().files
        final = counting.finish()
    assert final.files == ()
    assert final.io is not None
    assert final.io.write_bytes == 0
    assert final.seconds > 0.1


def test_totals_grow_from_line_to_line(target: Target) -> None:
    with Counting(target.pid, interval=0.05) as counting:
        do(target, "pwrite", "some", 2, 500)
        # On a busy machine the file system's own structures may be in a line before it.
        while not (found := [one for one in counting.line().files if not one.metadata]):
            pass
        do(target, "pwrite", "some", 1, 500)
        final = counting.finish()
    assert found[0].requests in (1, 2)
    assert file_of(final, "some").requests == 3


def test_two_processes(tmp_path: Path) -> None:
    with (
        Target("writes", str(tmp_path)) as one,
        Target("writes", str(tmp_path)) as two,
        Counting(one.pid, two.pid) as counting,
    ):
        do(one, "pwrite", "some", 2, 500)
        do(two, "pwrite", "some", 5, 100)
        two.close()
        ended = counting.line()
        final = counting.finish()
    assert (ended.pid, ended.final, ended.ended) == (two.pid, True, True)
    assert file_of(ended, "some").requests == 5
    assert (final.pid, final.final, final.ended) == (one.pid, True, False)
    assert file_of(final, "some").requests == 2


def test_a_process_that_ends_in_the_middle(tmp_path: Path) -> None:
    with Target("writes", str(tmp_path)) as target, Counting(target.pid) as counting:
        do(target, "pwrite", "some", 2, 500)
        os.kill(target.pid, signal.SIGKILL)
        (final,) = counting.rest()
    assert final.final
    assert final.ended
    assert file_of(final, "some").requested_bytes == 1000
    assert_all_charged(final)


def test_a_process_that_is_none() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    result = run_probe("storage", "-p", str(process.pid), "--seconds", "1")
    assert result.code == 1
    assert ONE_LINE.fullmatch(result.stderr)
