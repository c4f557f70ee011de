# SPDX-License-Identifier: Apache-2.0
"""A disk that never answers keeps no command of Python, and each says what is missing.

The target looks like a server: its name, its working directory, its files, its socket and what it
prints errors to are on such a disk (test_dead_disks.py has the probe's own commands).
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import struct
import subprocess
import sys
import termios
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallscope.collectors.paths import asking
from tests.support.slowsyncs import dead_disk

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "probe", "bpf")

PATIENCE = 240.0
"""Seconds for a command that ends after some."""
MYSQL = ("mysqld", "mysql.sock")
POSTGRES = ("postgres", ".s.PGSQL.5432")
SERVER = textwrap.dedent("""
    import os, socket, sys
    folder = sys.argv[1].removeprefix("--datadir=")
    os.chdir(folder)
    files = [open("ibdata1", "wb"), open("error.log", "wb")]
    os.dup2(files[1].fileno(), 2)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[2].removeprefix("--socket="))
    listener.listen()
    print("ready", flush=True)
    sys.stdin.read()
""")


class Disk:
    """A disk, the server on it, and what keeps it from answering."""

    def __init__(self, folder: Path, pid: int, end: Callable[[], None]) -> None:
        self.folder = folder
        self.pid = str(pid)
        self.end = end

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command of stallscope to its end. Fails where it does not come."""
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "stallscope", *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                self.end()
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def said(done: subprocess.CompletedProcess[str]) -> str:
    """Return what it wrote, in one line."""
    return " ".join(f"{done.stdout} {done.stderr}".split())


@pytest.fixture
def disk(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Disk]:
    """Start a server that has all on its disk, and keep the disk from answering."""
    monkeypatch.setenv("HOME", str(tmp_path))
    name, socket = getattr(request, "param", MYSQL)
    with dead_disk() as (folder, stop, end):
        program = shutil.copy(os.path.realpath(sys.executable), folder / name)
        options = (f"--datadir={folder}", f"--socket={socket}", f"--defaults-file={folder}/my.cnf")
        with subprocess.Popen(
            [program, "-c", SERVER, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as server:
            try:
                assert server.stdout is not None
                assert server.stdout.readline() == b"ready\n"
                stop()
                yield Disk(folder, server.pid, end)
                assert server.poll() is None
            finally:
                end()
                server.kill()


@pytest.mark.parametrize(
    "words",
    [
        ("snap",),
        ("snap", "--backend", "gdb", "--allow-stop", "--deadline", "1"),
        ("doctor",),
        ("doctor", "--storage"),
        ("storage", "sync", "--seconds", "1"),
        ("storage", "writes", "--seconds", "1"),
        ("storage", "cache"),
        ("memory", "--seconds", "1"),
        ("calibrate",),
        ("watch", "--duration", "3", "--no-probe"),
        ("watch", "--duration", "3"),
    ],
    ids=" ".join,
)
def test_a_server_on_it(disk: Disk, tmp_path: Path, words: tuple[str, ...]) -> None:
    dest = ("--dest", tmp_path / "store") if words[0] in ("doctor", "watch") else ()
    done = disk.run(*words, "-p", disk.pid, *dest)
    assert done.returncode >= 0
    assert "does not answer" in said(done)


def test_its_waits(disk: Disk) -> None:
    done = disk.run("waits", "--duration", "1", "-p", disk.pid)
    assert done.returncode == 0
    assert "Not watched" in done.stdout


@pytest.mark.parametrize("disk", [POSTGRES], indirect=True, ids=["postgres"])
@pytest.mark.parametrize("words", [("snap", "--full"), ("doctor",)], ids=" ".join)
def test_a_postgres_on_it(disk: Disk, words: tuple[str, ...]) -> None:
    pytest.importorskip("psycopg")
    done = disk.run(*words, "-p", disk.pid)
    assert done.returncode >= 0
    assert f".s.PGSQL.5432: {asking.SILENT}" in said(done)


def test_a_screen(disk: Disk, tmp_path: Path) -> None:
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "stallscope", "top", "-p", disk.pid, "--dest", tmp_path],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
    ) as process:
        os.close(slave)
        try:
            seen = b""
            while b"Who waits on what" not in seen:
                assert select.select([master], [], [], PATIENCE)[0], seen
                seen += os.read(master, 1 << 16)
            os.write(master, b"q")
            while process.poll() is None:
                assert select.select([master], [], [], PATIENCE)[0], seen
                try:
                    seen += os.read(master, 1 << 16)
                except OSError:  # nobody has the terminal open any more
                    break
            process.wait(PATIENCE)
        except BaseException:
            disk.end()
            process.kill()
            raise
        finally:
            os.close(master)


@pytest.mark.parametrize("option", ["--socket", "--datadir"])
def test_which_server_is_meant(disk: Disk, tmp_path: Path, option: str) -> None:
    """It is not known whether it is the one."""
    path = tmp_path / "elsewhere"
    path.symlink_to(disk.folder / ("mysql.sock" if option == "--socket" else ""))
    for name in ((), ("-p", disk.pid)):
        done = disk.run("snap", option, path, *name)
        assert done.returncode == 1
        assert asking.SILENT in said(done)


def test_the_store(disk: Disk) -> None:
    done = disk.run("doctor", "--dest", disk.folder / "store")
    assert done.returncode >= 0
    assert asking.SILENT in said(done)


def test_syncs_of_its_folder(disk: Disk) -> None:
    done = disk.run("storage", "sync", "--probe-dir", disk.folder, "--allow-write")
    assert done.returncode == 1
    assert "its disk has not answered" in said(done)


def test_option_files(disk: Disk) -> None:
    done = disk.run("doctor", "-p", disk.pid, "--defaults-file", disk.folder / "my.cnf")
    assert done.returncode >= 0
    assert f"my.cnf: {asking.SILENT}" in said(done)
