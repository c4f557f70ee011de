# SPDX-License-Identifier: Apache-2.0
"""``stallscope doctor --storage`` with a real MariaDB on real file systems, and its commands."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stallscope.base.errors import Exit
from stallscope.main import main
from tests.support import loopdisks
from tests.support.loopdisks import loop_disk, mounted
from tests.support.servers import MariaDB, MySQL97, Postgres, SqlServer

SMALL = ("--innodb-log-file-size=8M", "--innodb-buffer-pool-size=16M")
Checks = dict[str, list[dict[str, Any]]]


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose name leaves room for that of a socket, and that the server may enter."""
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def disk(
    short_path: Path, require: Callable[..., None]
) -> Iterator[Callable[..., tuple[Path, str]]]:
    require("root", "mariadb")
    with ExitStack() as stack:

        def made(*make: str, options: str = "", megabytes: int = 400) -> tuple[Path, str]:
            if why := loopdisks.missing(make[0]):
                pytest.skip(why)
            of = loop_disk(short_path / "disk", *make, options=options, megabytes=megabytes)
            return stack.enter_context(of)

        yield made


def advice(capsys: pytest.CaptureFixture[str], *words: str) -> Checks:
    """Return the checks of the command by name."""
    capsys.readouterr()
    code = main(["doctor", "--storage", *words, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "stallscope.doctor/1"
    checks: Checks = {}
    for check in document["checks"]:
        checks.setdefault(check["name"], []).append(check)
    statuses = {check["status"] for check in document["checks"]}
    assert code == (Exit.DONE if statuses == {"ok"} else Exit.PARTIAL)
    return checks


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[MariaDB]:
    """Run a server there that answers, and lost nothing, after the test."""
    with MariaDB(*SMALL, *options, parent=folder) as server:
        server.execute("CREATE DATABASE t", "CREATE TABLE t.t (a INT) ENGINE=InnoDB")
        before = server.status("Aborted_clients")
        yield server
        server.execute("INSERT INTO t.t VALUES (1)")
        assert server.status("Aborted_clients") == before


def wrong(checks: Checks, name: str, about: Path | str | None = None) -> dict[str, Any]:
    """Return what is degraded; only that about a mount or device."""
    found = [
        check
        for check in checks.get(name, ())
        if check["status"] == "degraded" and (about is None or str(about) in check["what"])
    ]
    assert found, f"{name}: {checks.get(name)}"
    return found[0]


def is_fine(checks: Checks, name: str, about: Path | str) -> None:
    found = [check for check in checks[name] if str(about) in check["what"]]
    assert [check["status"] for check in found] == ["ok"], found


def type_it(command: str) -> None:
    """Do what the advice says; there is no sudo for root here."""
    done = subprocess.run(
        ["bash", "-c", command.replace("sudo ", "")], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"


def test_ext4_without_barriers_with_small_blocks(
    disk: Callable[..., tuple[Path, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, name = disk(
        "mkfs.ext4", "-q", "-b", "1024", options="nobarrier,discard,strictatime,sync,stripe=7"
    )
    with serving(folder) as server:
        pid = str(server.pid)
        before = advice(capsys, "-p", pid)
        place = next(check for check in before["place"] if "data " in check["what"])
        assert f"ext4 at {folder} on {name} ({folder}.img)" in place["what"]
        assert "1 KiB" in wrong(before, "block-size", folder)["what"]
        for rule in ("barriers", "discard", "access-times", "synchronous"):
            check = wrong(before, rule, folder)
            assert check["sources"][0] == f"/proc/{pid}/mountinfo"
            type_it(check["fix"].partition(";")[0])
        after = advice(capsys, "-p", pid)
        for rule in ("barriers", "discard", "access-times", "synchronous"):
            is_fine(after, rule, folder)
        is_fine(after, "journal", folder)
        is_fine(after, "extents", folder)
        is_fine(after, "clusters", folder)


def test_ext4_with_data_in_the_journal(
    disk: Callable[..., tuple[Path, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = disk("mkfs.ext4", "-q", options="data=journal")
    with serving(folder) as server:
        check = wrong(advice(capsys, "-p", str(server.pid)), "journaled-data", folder)
        assert "innodb_doublewrite is on" in check["what"]
        assert "data=ordered" in check["fix"]


def test_ext4_without_journal_and_extents(
    disk: Callable[..., tuple[Path, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    bare, name = disk("mkfs.ext4", "-q", "-O", "^has_journal,^extents,^64bit,^metadata_csum")
    with serving(bare) as server:
        checks = advice(capsys, "-p", str(server.pid))
        check = wrong(checks, "journal", bare)
        assert f"tune2fs -O has_journal /dev/{name}" in check["fix"]
        assert check["risk"] == "loss"
        assert "ib" in wrong(checks, "extents", bare)["what"]
        # The default of mkfs is to continue.
        type_it(wrong(checks, "on-errors", bare)["fix"])
        is_fine(advice(capsys, "-p", str(server.pid)), "on-errors", bare)


def test_ext4_with_clusters(
    disk: Callable[..., tuple[Path, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = disk("mkfs.ext4", "-q", "-O", "bigalloc", "-C", "65536")
    with serving(folder) as server:
        checks = advice(capsys, "-p", str(server.pid))
        assert "64 KiB" in wrong(checks, "clusters", folder)["what"]


def test_loop_device(
    disk: Callable[..., tuple[Path, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, name = disk("mkfs.ext4", "-q")
    queue = Path(f"/sys/block/{name}/queue")
    before = {
        key: (queue / key).read_text()
        for key in ("read_ahead_kb", "nr_requests", "rotational", "iostats")
    }
    try:
        with serving(folder, "--innodb-flush-neighbors=1") as server:
            (queue / "scheduler").write_text("bfq")
            (queue / "rotational").write_text("0")
            (queue / "read_ahead_kb").write_text("4096")
            (queue / "nr_requests").write_text("8")
            (queue / "iostats").write_text("0")
            checks = advice(capsys, "-p", str(server.pid))
            for rule in ("scheduler", "read-ahead", "statistics", "loop"):
                check = wrong(checks, rule, name)
                type_it(check["fix"])
            after = advice(capsys, "-p", str(server.pid))
            for rule in ("scheduler", "read-ahead", "statistics", "loop"):
                is_fine(after, rule, f"{name}:")
            assert (queue / "scheduler").read_text().split()[0] == "[none]"
    finally:
        for key, value in before.items():
            (queue / key).write_text(value)


def test_xfs(disk: Callable[..., tuple[Path, str]], capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = disk(
        "mkfs.xfs", "-q", "--unsupported", "-l", "size=16m", options="allocsize=256m",
        megabytes=400,
    )  # fmt: skip
    with serving(folder) as server:
        checks = advice(capsys, "-p", str(server.pid))
        assert "16 MiB" in wrong(checks, "xfs-log", folder)["what"]
        assert "allocsize=262144k" in wrong(checks, "preallocation", folder)["what"]
        is_fine(checks, "barriers", folder)
        is_fine(checks, "flush-method", folder)


def test_btrfs(disk: Callable[..., tuple[Path, str]], capsys: pytest.CaptureFixture[str]) -> None:
    folder, name = disk("mkfs.btrfs", "-q")
    with serving(folder) as server:
        checks = advice(capsys, "-p", str(server.pid))
        assert f"btrfs at {folder} on {name}" in checks["place"][0]["what"]
        assert "chattr +C" in wrong(checks, "copy-on-write", folder)["fix"]
    subprocess.run(["chattr", "+C", str(folder)], check=True)
    with serving(folder) as server:
        is_fine(advice(capsys, "-p", str(server.pid)), "copy-on-write", folder)


def test_a_subvolume_of_btrfs(
    disk: Callable[..., tuple[Path, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """stat(2) shows a device number there that no mount has."""
    folder, name = disk("mkfs.btrfs", "-q")
    subprocess.run(["btrfs", "-q", "subvolume", "create", str(folder / "sub")], check=True)
    (folder / "sub").chmod(0o755)
    with serving(folder / "sub") as server:
        checks = advice(capsys, "-p", str(server.pid))
        assert f"btrfs at {folder} on {name}" in checks["place"][0]["what"]


def test_overlay_and_tmpfs(
    disk: Callable[..., tuple[Path, str]],
    short_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, name = disk("mkfs.ext4", "-q")
    for part in ("upper", "work", "lower"):
        (folder / part).mkdir()
    options = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
    with (
        mounted(short_path / "over", "-t", "overlay", "overlay", "-o", options) as over,
        mounted(short_path / "memory", "-t", "tmpfs", "none", "-o", "size=200m") as memory,
    ):
        memory.chmod(0o777)
        with serving(over, f"--log-bin={memory}/b-bin") as server:
            checks = advice(capsys, "-p", str(server.pid))
            assert f"overlay at {over} on {name}" in checks["place"][0]["what"]
            assert wrong(checks, "overlay", over)["risk"] == "loss"
            check = wrong(checks, "memory", memory)
            assert "binlog of the server: in memory" in check["what"]
            assert check["what"].startswith("can lose data: ")
            # The disk below the overlay was checked too.
            is_fine(checks, "journal", folder)


def test_hostile_names(
    disk: Callable[..., tuple[Path, str]], short_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = disk("mkfs.ext4", "-q")
    strange = short_path / "a b\x1b[31m'$(id)"
    with mounted(strange, "--bind", str(folder)), serving(strange) as server:
        subprocess.run(["mount", "-o", "remount,discard", str(folder)], check=True)
        checks = advice(capsys, "-p", str(server.pid))
        check = wrong(checks, "discard", "\\x1b[31m")
        type_it(check["fix"].partition("; sudo systemctl")[0])
        is_fine(advice(capsys, "-p", str(server.pid)), "discard", "\\x1b[31m")
        assert main(["doctor", "--storage", "-p", str(server.pid)]) == Exit.PARTIAL
        assert "\x1b[31m'" not in capsys.readouterr().out


def test_other_servers(
    require: Callable[..., None],
    mysql97: MySQL97,
    postgres: Postgres,
    capsys: pytest.CaptureFixture[str],
) -> None:
    require("root")
    for server in (mysql97, postgres):
        checks = advice(capsys, "-p", str(server.pid))
        assert [check["status"] for check in checks["place"]].count("ok") >= 2
        assert any("redo " in check["what"] for check in checks["place"])
    assert "doublewrite" not in checks


@pytest.mark.parametrize("sql", [True, False])
def test_without_sql_the_options_count(
    mariadb: SqlServer, capsys: pytest.CaptureFixture[str], *, sql: bool
) -> None:
    words = [] if sql else ["--no-sql"]
    checks = advice(capsys, "-p", str(mariadb.pid), *words)
    places = [check["what"] for check in checks["place"]]
    assert any(text.startswith(f"data {mariadb.data}") for text in places)
    assert any(text.startswith(f"temporary {mariadb.temporary}") for text in places)
    assert ("sql" in checks) == (not sql)
    assert shutil.disk_usage(mariadb.data).free > 0
