# SPDX-License-Identifier: Apache-2.0
"""What `stallscope-probe cache` says of files whose pages are known, and what it drops."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from stallscope.collectors import probe
from stallscope.model.storagecache import CachedFile, CacheLine, loads
from tests.root.support import ONE_LINE
from tests.support.cachefolders import (
    MIB,
    ask,
    by_name,
    filled,
    mounted,
    part_cached,
    process_with,
    wait_until_as_fincore,
)
from tests.support.servers import PATIENCE

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "probe")

PAGE = os.sysconf("SC_PAGESIZE")
OLD_KERNEL = (sys.executable, "-m", "tests.support.nocachestat")
DISKS = ("ext4", "xfs", "btrfs")


def has_cachestat() -> bool:
    with process_with(Path("/"), "r:/etc/passwd") as process:
        return ask(process.pid).method == "cachestat"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data directory with three binary logs, of which the last one is the current one."""
    return make_data(tmp_path / "data")


def make_data(folder: Path) -> Path:
    folder.mkdir()
    for number in (1, 2, 3):
        filled(folder / f"binlog.{number:06}", 3 * MIB + 100)
    filled(folder / "ibdata1", 2 * MIB)
    return folder


def reasons(files: dict[str, CachedFile]) -> dict[str, str]:
    return {name: one.uncache.reason for name, one in files.items() if one.uncache is not None}


def of_files(line: CacheLine) -> dict[str, int | None]:
    """Return the cached bytes of the files that are not empty."""
    return {one.path: one.cached_bytes for one in line.files if one.size}


@pytest.mark.parametrize("kernel", [(), OLD_KERNEL], ids=["cachestat", "mincore"])
def test_as_fincore_to_the_page(data: Path, kernel: tuple[str, ...]) -> None:
    part_cached(data / "binlog.000001")
    part_cached(data / "binlog.000002", (0, 1), (MIB, 2 * MIB), (3 * MIB + 99, 3 * MIB + 100))
    (data / "db").mkdir()
    for size in (0, 1, PAGE - 1, PAGE, PAGE + 1, 700_000):
        filled(data / "db" / f"t{size}.ibd", size)
    with process_with(data, "w:binlog.000003", "w:ibdata1") as process:
        line = ask(process.pid, prefix=kernel)
        files = by_name(line)
        wait_until_as_fincore(lambda: of_files(ask(process.pid, prefix=kernel)))
    assert line.method == ("mincore" if kernel else line.method)
    assert len(files) == 10
    assert files["binlog.000001"].cached_bytes == 0
    assert 0 < (files["binlog.000002"].cached_bytes or 0) < 3 * MIB
    assert files["binlog.000003"].cached_bytes == 769 * PAGE
    assert files["t0.ibd"].cached_bytes == 0
    known = None if line.method == "mincore" else 0
    assert files["ibdata1"].dirty_bytes == known
    assert files["ibdata1"].evicted_bytes is None or line.method == "cachestat"


@pytest.mark.parametrize("kind", [*DISKS, "tmpfs", "overlay", "fuse"])
def test_on_each_file_system(tmp_path: Path, kind: str) -> None:
    if kind in DISKS and shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"no mkfs.{kind} here")
    with mounted(kind, tmp_path) as where:
        folder = make_data(where / "data")
        part_cached(folder / "binlog.000002", (0, PAGE))
        with process_with(folder, "w:binlog.000003", "w:ibdata1") as process:
            line = ask(process.pid, "--uncache", "binlog", "--yes")
            files = by_name(line)
            assert {one.filesystem for one in line.files} == {kind}
            if kind != "fuse":  # mincore(2) leaves out the last page of a file there
                wait_until_as_fincore(lambda: of_files(ask(process.pid)))
            said = reasons(files)
            assert said["binlog.000003"] == "open"
            if kind == "tmpfs":
                assert said["binlog.000001"] == "memory"
                assert all(one.memory for one in line.files)
            elif kind == "overlay":
                assert said["binlog.000001"] == "dirty-unknown"
                assert files["binlog.000001"].dirty_bytes is None
                assert files["binlog.000001"].method == "mincore"
            elif line.method == "cachestat":
                first = files["binlog.000001"]
                assert first.uncache is not None
                # The kernel may have taken some of them itself.
                assert 700 * PAGE < first.uncache.clean_bytes <= 769 * PAGE
                assert first.uncache.freed_bytes == first.uncache.clean_bytes
                assert first.cached_bytes == files["binlog.000002"].cached_bytes == 0
                kept = files["binlog.000003"].cached_bytes
                assert kept is not None
                assert 700 * PAGE < kept <= 769 * PAGE


def test_hugetlb_files_are_named(tmp_path: Path) -> None:
    with mounted("hugetlbfs", tmp_path) as where:
        (where / "pool").touch()
        with process_with(where, "w:pool") as process:
            pool = by_name(ask(process.pid))["pool"]
    assert (pool.filesystem, pool.memory, pool.cached_bytes) == ("hugetlbfs", True, None)


def test_nothing_is_dropped_without_yes(data: Path) -> None:
    with process_with(data, "w:binlog.000003") as process:
        before = by_name(ask(process.pid))
        line = ask(process.pid, "--uncache", "binlog")
        after = by_name(ask(process.pid))
    assert not line.dropped
    assert {n: f.cached_bytes for n, f in before.items()} == {
        n: f.cached_bytes for n, f in after.items()
    }
    if line.method == "cachestat":
        one = by_name(line)["binlog.000001"].uncache
        assert one is not None
        assert (one.clean_bytes, one.freed_bytes) == (769 * PAGE, None)


@pytest.mark.skipif(os.geteuid() != 0 or not has_cachestat(), reason="no cachestat(2) here")
class TestDropping:
    def test_what_a_reader_has_before_it_stays(self, data: Path) -> None:
        filled(data / "binlog.000004", MIB)
        with process_with(data, "w:binlog.000004", "r:binlog.000002") as process:
            files = by_name(ask(process.pid, "--uncache", "binlog", "--yes"))
            said = reasons(files)
        assert said == {
            "binlog.000001": "may-go",
            "binlog.000002": "open",
            "binlog.000003": "newer-than-open",
            "binlog.000004": "open",
        }
        assert files["binlog.000001"].cached_bytes == 0
        assert files["binlog.000003"].cached_bytes == 769 * PAGE

    def test_dump_threads_that_have_no_descriptor(self, data: Path) -> None:
        with process_with(data, "w:binlog.000003", "r:binlog.000003") as process:
            two = by_name(ask(process.pid, "--uncache", "binlog", "--yes", "--dump-threads", "2"))
            one = by_name(ask(process.pid, "--uncache", "binlog", "--dump-threads", "1"))
        assert reasons(two)["binlog.000001"] == "unknown-readers"
        assert two["binlog.000001"].cached_bytes == 769 * PAGE
        assert reasons(one)["binlog.000001"] == "may-go"

    def test_a_log_that_is_not_in_use(self, data: Path) -> None:
        with process_with(data, "w:ibdata1") as process:
            said = reasons(by_name(ask(process.pid, "--uncache", "binlog", "--yes")))
        assert set(said.values()) == {"no-current"}

    def test_relay_logs_from_the_one_that_is_applied(self, tmp_path: Path) -> None:
        for number in (1, 2, 3):
            filled(tmp_path / f"host-relay-bin.{number:06}", MIB)
        filled(tmp_path / "host-relay-bin.index", 60)
        with process_with(
            tmp_path, "w:host-relay-bin.000003", "r:host-relay-bin.000002"
        ) as process:
            said = reasons(by_name(ask(process.pid, "--uncache", "relay")))
        assert said == {
            "host-relay-bin.000001": "may-go",
            "host-relay-bin.000002": "open",
            "host-relay-bin.000003": "open",
            "host-relay-bin.index": "no-log",
        }

    def test_pages_that_are_dirty_stay(self, data: Path) -> None:
        size = 8 * MIB
        path = filled(data / "binlog.000000", size)
        with process_with(data, "w:binlog.000003") as process, path.open("r+b") as file:
            # The kernel may write it back at once, on a machine that is short of memory.
            file.seek(4 * MIB + 5)
            file.write(b"dirty")
            file.flush()
            one = by_name(ask(process.pid, "--uncache", "binlog", "--yes"))["binlog.000000"]
        assert one.uncache is not None
        assert one.uncache.clean_bytes + one.uncache.unclean_bytes == size
        # A large folio is dirty as a whole.
        assert one.uncache.unclean_bytes <= 2 * MIB
        if one.uncache.unclean_bytes:
            assert one.dirty_bytes
            assert one.cached_bytes is not None
            assert one.dirty_bytes <= one.cached_bytes <= 2 * MIB

    def test_keep(self, data: Path) -> None:
        with process_with(data, "w:binlog.000003") as process:

            def free(*options: str) -> list[int | None]:
                files = by_name(ask(process.pid, "--uncache", "binlog", *options))
                found = [files[f"binlog.{n:06}"].uncache for n in (1, 2, 3)]
                return [
                    None if one is None or one.reason != "may-go" else one.clean_bytes // PAGE
                    for one in found
                ]

            assert free() == [769, 769, None]
            assert free("--keep-files", "1") == [769, 769, None]
            assert free("--keep-files", "2") == [769, None, None]
            assert free("--keep-files", "3") == [None, None, None]
            assert free("--keep-bytes", "1") == [769, 769, None]
            # The current one counts; of the one before, its end.
            assert free("--keep-bytes", str(4 * MIB)) == [769, 512, None]
            assert free("--keep-bytes", str(100 * MIB)) == [None, None, None]
            assert free("--keep-seconds", "3600") == [None, None, None]
            hour = time.time() - 7200
            os.utime(data / "binlog.000001", (hour, hour))
            assert free("--keep-seconds", "3600") == [769, None, None]

    def test_redo_logs(self, data: Path) -> None:
        past = time.time() - 600
        for name in ("ib_logfile0", "ib_logfile1"):
            filled(data / name, MIB)
        os.utime(data / "ib_logfile0", (past, past))
        folder = data / "#innodb_redo"
        folder.mkdir()
        for number in (7, 8, 9):
            filled(folder / f"#ib_redo{number}", MIB)
            os.utime(folder / f"#ib_redo{number}", (past + number * 30, past + number * 30))
        filled(data / "aria_log.00000001", MIB)
        opened = ("w:ib_logfile0", "w:ib_logfile1", "w:#innodb_redo/#ib_redo9")
        with process_with(data, *opened) as process:
            refused = reasons(by_name(ask(process.pid, "--uncache", "redo", "--yes")))
            allowed = by_name(ask(process.pid, "--uncache", "redo", "--allow-redo", "--yes"))
        assert set(refused.values()) == {"needs-allow-redo", "not-innodb"}
        assert reasons(allowed) == {
            "ib_logfile0": "may-go",
            "ib_logfile1": "current-redo",
            "#ib_redo7": "may-go",
            "#ib_redo8": "current-redo",
            "#ib_redo9": "current-redo",
            "aria_log.00000001": "not-innodb",
        }
        assert allowed["ib_logfile0"].cached_bytes == 0
        assert allowed["ib_logfile1"].cached_bytes == MIB

    def test_what_is_read_again_is_said(self, data: Path) -> None:
        argv = [str(probe.find()), "cache", "-p"]
        with process_with(data, "w:binlog.000003") as process:
            argv += [str(process.pid), "--uncache", "binlog", "--yes", "--after", "0.2"]
            line = ask(process.pid, *argv[4:])
        assert line.reads is not None
        assert line.reads.before_bytes == line.reads.after_bytes == 0
        one = by_name(line)["binlog.000001"].uncache
        assert one is not None
        assert one.returned_bytes == 0

    def test_an_old_kernel_drops_nothing(self, data: Path) -> None:
        with process_with(data, "w:binlog.000003") as process:
            files = by_name(ask(process.pid, "--uncache", "binlog", "--yes", prefix=OLD_KERNEL))
        assert reasons(files)["binlog.000001"] == "dirty-unknown"
        assert files["binlog.000001"].cached_bytes == 769 * PAGE


def test_symbolic_links_stay_in_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "data").mkdir(parents=True)
    (root / "logs").mkdir()
    # What the same links lead to from outside of it.
    filled(root / "logs" / "binlog.000001", MIB)
    filled(root / "logs" / "binlog.000002", MIB)
    (root / "data" / "binlog.000001").symlink_to("/logs/binlog.000001")
    (root / "data" / "binlog.000002").symlink_to("/logs/binlog.000002")
    (root / "data" / "passwd").symlink_to("../../../../etc/passwd")
    (root / "data" / "circle").symlink_to("circle")
    (root / "data" / "again").symlink_to("/data")
    filled(root / "data" / "ibdata1", MIB)
    code = (
        f"import os,sys\nos.chroot({str(root)!r})\nos.chdir('/data')\n"
        "kept=[os.open(n,os.O_RDWR) for n in ('/data/binlog.000002','ibdata1')]\n"
        "print('ready',flush=True)\nsys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        line = ask(process.pid, "--uncache", "binlog", "--yes")
        process.stdin.close()
    assert sorted(one.path for one in line.files) == [
        "/data/ibdata1",
        "/logs/binlog.000001",
        "/logs/binlog.000002",
    ]
    files = by_name(line)
    assert files["binlog.000002"].cached_bytes == MIB
    if line.method == "cachestat":
        assert files["binlog.000001"].cached_bytes == 0


def test_hostile_entries_of_a_data_directory(data: Path) -> None:
    os.mkfifo(data / "binlog.000009")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(data / "s.sock"))
    os.mknod(data / "disk.ibd", 0o600 | 0o020000, os.makedev(1, 7))  # a device that is full
    names = (b"tab\tnew\nline\x1b[31m.ibd", b"\xff\xfe not utf-8.ibd", "naïve.ibd".encode())
    for name in names:
        Path(os.fsdecode(bytes(data) + b"/" + name)).write_bytes(b"x" * 100)
    with (data / "sparse.ibd").open("wb") as file:
        file.truncate(4 << 40)
        file.seek(3 << 40)
        file.write(b"x")
    begun = time.monotonic()
    with process_with(data, "w:binlog.000003") as process:
        line = ask(process.pid)
    assert time.monotonic() - begun < PATIENCE / 2
    files = by_name(line)
    assert line.special_files == 3
    assert files["sparse.ibd"].size == 4 << 40
    assert files["sparse.ibd"].allocated_bytes < MIB
    assert (files["sparse.ibd"].cached_bytes or 0) < MIB
    assert {"tab\tnew\nline\x1b[31m.ibd", "naïve.ibd", "\ufffd\ufffd not utf-8.ibd"} <= set(files)


def test_deleted_files_that_are_open(data: Path) -> None:
    with process_with(data, "w:ibdata1", "w:binlog.000003", "r:binlog.000001") as process:
        (data / "binlog.000001").unlink()
        line = ask(process.pid, "--uncache", "binlog", "--yes")
    files = by_name(line)
    assert files["binlog.000001"].deleted
    assert files["binlog.000001"].cached_bytes == 769 * PAGE
    assert reasons(files)["binlog.000001"] == "open"


def test_ten_thousand_tables(tmp_path: Path) -> None:
    for schema in range(10):
        folder = tmp_path / f"s{schema}"
        folder.mkdir()
        for table in range(1000):
            (folder / f"t{table}.ibd").write_bytes(b"x")
    with process_with(tmp_path, "w:s0/t0.ibd") as process:
        line = ask(process.pid)
        few = ask(process.pid, "--max-files", "100", code=3)
    assert len(line.files) == 10_000
    assert line.elapsed_ms < 5000
    assert few.limit_reached
    assert len(few.files) == 100


def run(*options: str, prefix: tuple[str, ...] = ()) -> tuple[int, str]:
    argv = [*prefix, str(probe.find()), "cache", *options]
    done = subprocess.run(argv, capture_output=True, timeout=PATIENCE, check=False, text=True)
    assert ONE_LINE.match(done.stderr), done.stderr
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_a_process_that_ends(data: Path) -> None:
    with process_with(data, "w:ibdata1") as process:
        pid = process.pid
    code, said = run("-p", str(pid))
    assert code == 1
    assert str(pid) in said


def test_without_rights(data: Path) -> None:
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    with process_with(data, "w:ibdata1") as process:
        code, said = run("-p", str(process.pid), prefix=nobody)
    assert code == 1
    assert "cap_sys_ptrace,cap_dac_read_search,cap_fowner" in said


def test_as_the_owner_without_any_right() -> None:
    """The server's own user needs no capability."""
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    # pytest's own folders are closed to other users.
    with tempfile.TemporaryDirectory(prefix="stallscope-test-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        folder = make_data(Path(name) / "data")
        for path in (folder, *folder.iterdir()):
            os.chown(path, 65534, 65534)
        probe_copy = shutil.copy(probe.find(), Path(name) / "stallscope-probe")
        with process_with(folder, "w:ibdata1", "w:binlog.000003", prefix=nobody) as process:
            argv = [*nobody, probe_copy, "cache", "-p", str(process.pid)]

            def asked() -> dict[str, int | None]:
                done = subprocess.run(argv, capture_output=True, timeout=PATIENCE, check=False)
                assert done.returncode == 0, done.stderr
                return of_files(loads(done.stdout))

            assert len(asked()) == 4
            wait_until_as_fincore(asked)
