# SPDX-License-Identifier: Apache-2.0
"""The drop-in of the in-process library, its folder, and what puts them in place."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.servers import PATIENCE, program

__all__: list[str] = []

pytestmark = pytest.mark.needs("root")

CHECKOUT = Path(__file__).resolve().parents[2]
UNITS = CHECKOUT / "scripts/systemd"
INSTALL = CHECKOUT / "scripts/install-inproc"
UNIT = "[Unit]\nDescription=a server\n[Service]\nExecStart=/bin/true\n"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)


def needs(name: str) -> str:
    found = program(name)
    if found is None:
        pytest.skip(f"no {name} here: it comes with systemd")
    return found


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libstallscope.so"
    path.write_bytes(b"\x7fELF of a build")
    return path


def installed(root: Path, library: Path, *more: str) -> subprocess.CompletedProcess[str]:
    done = run(INSTALL, "--root", root, "--library", library, *more)
    assert done.returncode == 0, done.stderr
    return done


def test_the_drop_in_is_what_systemd_takes(tmp_path: Path, library: Path) -> None:
    analyze = needs("systemd-analyze")
    root = tmp_path / "root"
    installed(root, library, "server")
    units = root / "etc/systemd/system"
    (units / "server.service").write_text(UNIT)
    done = run(analyze, "verify", units / "server.service")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    # It was read: what systemd does not take is said.
    drop_in = units / "server.service.d/stallscope.conf"
    drop_in.write_text(drop_in.read_text().replace("ReadWritePaths=-", "ReadWritePath=-"))
    assert "ReadWritePath" in run(analyze, "verify", units / "server.service").stderr


def test_the_drop_in_names_what_is_installed(tmp_path: Path, library: Path) -> None:
    installed(tmp_path, library, "mariadb.service", "mysql")
    copy = tmp_path / "usr/lib/stallscope/libstallscope.so"
    assert copy.read_bytes() == library.read_bytes()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o644
    for name in ("mariadb", "mysql"):
        text = (tmp_path / f"etc/systemd/system/{name}.service.d/stallscope.conf").read_text()
        assert "Environment=LD_PRELOAD=/usr/lib/stallscope/libstallscope.so\n" in text
        assert "Environment=STALLSCOPE_RUNTIME_DIR=/run/stallscope\n" in text


def test_a_library_that_is_mapped_is_replaced_and_not_written(
    tmp_path: Path, library: Path
) -> None:
    installed(tmp_path, library, "mariadb")
    copy = tmp_path / "usr/lib/stallscope/libstallscope.so"
    with copy.open("rb") as mapped:
        before = mapped.read()
        library.write_bytes(b"\x7fELF of the next build")
        installed(tmp_path, library, "mariadb")
        mapped.seek(0)
        assert mapped.read() == before
    assert copy.read_bytes() == library.read_bytes()


def test_it_is_taken_away_again(tmp_path: Path, library: Path) -> None:
    installed(tmp_path, library, "mariadb", "mysql")
    other = tmp_path / "etc/systemd/system/mysql.service.d/other.conf"
    other.write_text("[Service]\n")
    installed(tmp_path, library, "--remove", "mariadb", "mysql")
    assert not (tmp_path / "etc/systemd/system/mariadb.service.d").exists()
    assert [path.name for path in other.parent.iterdir()] == ["other.conf"]
    assert (tmp_path / "usr/lib/stallscope/libstallscope.so").exists()


def test_the_folder_is_made_for_servers_of_all_users(tmp_path: Path) -> None:
    tmpfiles = needs("systemd-tmpfiles")
    done = run(tmpfiles, "--create", f"--root={tmp_path}", UNITS / "stallscope-inproc.tmpfiles")
    assert (done.returncode, done.stderr) == (0, "")
    assert stat.S_IMODE((tmp_path / "run/stallscope").stat().st_mode) == 0o1777


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        ([], 2, "usage"),
        (["--no-such-option", "x"], 2, "usage"),
        (["--library", "/nowhere/x.so", "mariadb"], 1, "no library /nowhere/x.so"),
        (["../../etc"], 1, "no name of a unit"),
    ],
)
def test_the_installer_refuses(tmp_path: Path, args: list[str], code: int, said: str) -> None:
    done = run(INSTALL, "--root", tmp_path, *args)
    assert done.returncode == code
    assert said in done.stderr
    assert not list(tmp_path.iterdir())
