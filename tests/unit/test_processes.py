# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stallscope.base.errors import StallscopeError, UsageError
from stallscope.base.text import one_line
from stallscope.collectors import processes
from stallscope.collectors.processes import Selector, resolve
from stallscope.server.families import family

NOBODY = Selector()


class FakeProc:
    """A /proc made of files; programs are files beside it, so that inodes differ as they do."""

    def __init__(self, root: Path) -> None:
        self.root = root / "proc"
        self.root.mkdir()
        self.programs = root / "programs"

    def add(
        self,
        pid: int,
        exe: str | None,
        *,
        ppid: int = 1,
        comm: str | None = None,
        argv: tuple[str, ...] = (),
        state: str = "S",
        flags: int = 0x400000,
        cwd: str = "/",
        listening: tuple[str, ...] = (),
        ports: tuple[int, ...] = (),
        tgid: int | None = None,
        deleted: bool = False,
    ) -> None:
        base = self.root / str(pid)
        base.mkdir()
        comm = comm if comm is not None else os.path.basename(exe or "?")[:15]
        fields = [state, str(ppid), "1", "1", "0", "-1", str(flags), *["0"] * 12, str(1000 + pid)]
        (base / "stat").write_text(f"{pid} ({comm}) {' '.join(fields)} 0 0\n")
        (base / "status").write_text(f"Name:\t{comm}\nTgid:\t{tgid or pid}\n")
        (base / "cmdline").write_text("".join(f"{arg}\0" for arg in argv))
        if exe is not None:
            program = self.programs / exe.lstrip("/")
            program.parent.mkdir(parents=True, exist_ok=True)
            program.touch()
            (base / "exe").symlink_to(str(program) + (" (deleted)" if deleted else ""))
        (base / "cwd").symlink_to(cwd)
        (base / "root").symlink_to("/")
        (base / "fd").mkdir()
        (base / "net").mkdir()
        self._sockets(base, pid, listening, ports)

    @staticmethod
    def _sockets(base: Path, pid: int, listening: tuple[str, ...], ports: tuple[int, ...]) -> None:
        inode = pid * 100
        unix = ["Num RefCount Protocol Flags Type St Inode Path"]
        # One that is connected, not listening, and one of a stranger.
        unix.append(f"0: 00000003 00000000 00000000 0001 03 {inode} /client.sock")
        unix.append("0: 00000002 00000000 00010000 0001 01 77777 /stranger.sock")
        for i, path in enumerate(listening):
            (base / "fd" / str(i)).symlink_to(f"socket:[{inode + i}]")
            unix.append(f"0: 00000002 00000000 00010000 0001 01 {inode + i} {path}")
        (base / "net" / "unix").write_text("\n".join(unix) + "\n")
        tcp = ["  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid"]
        tcp.append("   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:0 0 0 0 77778 1")
        for i, port in enumerate(ports):
            (base / "fd" / f"9{i}").symlink_to(f"socket:[{inode + 50 + i}]")
            tcp.append(
                f"   1: 0100007F:{port:04X} 00000000:0000 0A 00000000:00000000 00:0 0 0 0"
                f" {inode + 50 + i} 1"
            )
        (base / "net" / "tcp").write_text("\n".join(tcp) + "\n")
        (base / "net" / "tcp6").write_text("header\n")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def pids(proc: FakeProc, *names: str, selector: Selector = NOBODY) -> tuple[int, ...]:
    return resolve(names, selector, proc=proc.root)[0]


def refusal(proc: FakeProc, *names: str, selector: Selector = NOBODY) -> str:
    with pytest.raises(StallscopeError) as error:
        resolve(names, selector, proc=proc.root)
    text = str(error.value)
    assert "\n" not in text
    return text


def two_mysqlds(proc: FakeProc) -> None:
    proc.add(
        10,
        "/usr/sbin/mysqld",
        listening=("/run/a.sock",),
        ports=(3306,),
        cwd="/data/a",
    )
    proc.add(
        20,
        "/usr/sbin/mysqld",
        listening=("/run/b.sock",),
        ports=(3307,),
        cwd="/elsewhere",
        argv=("mysqld", "--datadir=/data/b/", "--port=9"),
    )


def test_by_number_and_by_name(proc: FakeProc) -> None:
    proc.add(10, "/usr/sbin/mariadbd", comm="mysqld")
    proc.add(11, "/bin/cat")
    assert pids(proc, "10") == pids(proc, "mariadbd") == pids(proc, "mysqld") == (10,)
    assert pids(proc, "11", "10", "11") == (11, 10), "several are one capture"
    proc.add(12, "/usr/bin/postgres", deleted=True)
    assert pids(proc, "postgres") == (12,)
    proc.add(13, None, comm="mongod", argv=("/usr/bin/mongod",))
    assert pids(proc, "mongod") == (13,), "its link cannot be read"


def test_what_is_read_of_a_process(proc: FakeProc) -> None:
    proc.add(10, "/bin/odd", comm="a) S 7 (b", deleted=True)
    info = processes.read(10, proc.root)
    assert info is not None
    assert (info.comm, info.ppid, info.state) == ("a) S 7 (b", 1, "S")
    assert info.exe_deleted


def test_safe_script_is_not_the_server(proc: FakeProc) -> None:
    proc.add(9, "/bin/dash", comm="mysqld_safe", argv=("/bin/sh", "/usr/bin/mysqld_safe"))
    proc.add(10, "/usr/sbin/mysqld", ppid=9)
    assert pids(proc, "mysqld") == (10,)
    assert pids(proc, "mysqld_safe") == (9,)
    proc.add(19, "/bin/dash", comm="mariadbd-safe")
    proc.add(20, "/usr/sbin/mariadbd", ppid=19)
    assert pids(proc, "mariadbd") == (20,)


def test_two_servers_are_named_never_guessed(proc: FakeProc) -> None:
    two_mysqlds(proc)
    text = refusal(proc, "mysqld")
    assert "pid 10 socket /run/a.sock port 3306 datadir /data/a" in text
    assert "pid 20 socket /run/b.sock port 3307 datadir /data/b" in text


@pytest.mark.parametrize(
    ("selector", "pid"),
    [
        (Selector(socket="/run/a.sock"), 10),
        (Selector(socket="/run//b.sock"), 20),
        (Selector(port=3307), 20),
        (Selector(datadir="/data/a/"), 10),
        (Selector(datadir="/data/b"), 20),
        (Selector(datadir="/data/b", port=3307), 20),
    ],
)
def test_selectors_distinguish_servers(proc: FakeProc, selector: Selector, pid: int) -> None:
    two_mysqlds(proc)
    assert pids(proc, "mysqld", selector=selector) == (pid,)
    assert pids(proc, selector=selector) == (pid,)
    assert pids(proc, str(pid), selector=selector) == (pid,)


def test_a_selector_that_fits_nothing_says_what_runs(proc: FakeProc) -> None:
    two_mysqlds(proc)
    for selector in (Selector(port=22), Selector(socket="/client.sock"), Selector(port=9)):
        text = refusal(proc, "mysqld", selector=selector)
        assert "pid 10" in text
        assert "pid 20" in text
    assert "has no port 3307" in refusal(proc, "10", selector=Selector(port=3307))


def test_data_directory_through_another_name(proc: FakeProc, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "link").symlink_to(data)
    proc.add(10, "/usr/sbin/mysqld", cwd=str(data))
    assert pids(proc, "mysqld", selector=Selector(datadir=str(tmp_path / "link"))) == (10,)


def test_options_stand_in_where_descriptors_cannot_be_read(proc: FakeProc) -> None:
    argv = ("mysqld", "--socket", "s.sock", "--port=33", "-h", "/d")
    proc.add(10, "/usr/sbin/mysqld", cwd="/work", argv=argv)
    _, (server,) = resolve(["mysqld"], NOBODY, proc=proc.root)
    assert (server.sockets, server.ports, server.datadir) == (("/work/s.sock",), (33,), "/d")


def test_postgres_is_one_server_of_many_processes(proc: FakeProc) -> None:
    exe = "/usr/lib/postgresql/15/bin/postgres"
    proc.add(10, exe, cwd="/pg/main", argv=(exe, "-D", "/pg/main"))
    proc.add(12, exe, ppid=10, argv=("postgres: checkpointer",))
    proc.add(11, exe, ppid=10, argv=("postgres: writer",))
    proc.add(13, "/bin/sh", ppid=10)
    assert pids(proc, "postgres") == (10, 11, 12)
    assert pids(proc, "10") == (10, 11, 12)
    assert pids(proc, "11") == (11,)
    proc.add(20, exe, argv=(exe, "-D/pg/other"))
    proc.add(21, exe, ppid=20)
    assert "pid 20 datadir /pg/other" in refusal(proc, "postgres")
    assert pids(proc, "postgres", selector=Selector(datadir="/pg/other")) == (20, 21)


def test_number_of_processes_is_limited(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_PROCESSES", 3)
    for pid in range(10, 16):
        proc.add(pid, "/pg/postgres", ppid=1 if pid == 10 else 10)
    found, (server,) = resolve(["postgres"], NOBODY, proc=proc.root)
    assert (found, server.left_out) == ((10, 11, 12), 3)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("99", "no process 99"),
        ("0", "no process 0"),
        ("99999999999999999999", "no process"),
        ("nosuch", "no process named nosuch; running: mysqld (pid 10)"),
        ("mysql", "no process named mysql"),
        ("mongod", "no process named mongod"),
        ("30", "zombie"),
        ("31", "kernel thread"),
        ("32", "thread of process 10: give -p 10"),
        ("", "takes a process id or"),
        ("/usr/sbin/mysqld", "takes a process id or"),
        ("-1", "takes a process id or"),
        ("²", "no process named"),
    ],
)
def test_refusals(proc: FakeProc, target: str, message: str) -> None:
    proc.add(10, "/usr/sbin/mysqld")
    proc.add(30, None, comm="mongod", state="Z")
    proc.add(31, None, comm="mongod", flags=0x200000)
    proc.add(32, "/usr/sbin/mysqld", tgid=10)
    assert message in refusal(proc, target)


def test_nothing_asked_for_is_wrong_usage(proc: FakeProc) -> None:
    with pytest.raises(UsageError):
        resolve([], NOBODY, proc=proc.root)


@pytest.mark.parametrize(
    ("count", "also"), [(3, "datadir /srv/0"), (20, "socket /run/a-"), (99, "")]
)
def test_each_of_many_servers_is_named_and_the_line_is_not_cut(
    proc: FakeProc, count: int, also: str
) -> None:
    for number in range(count):
        socket = f"/run/a-{'long-' * 4}name/{number}.sock"
        argv = ("mysqld", f"--datadir=/srv/{number}{'/deep' * 10}")
        proc.add(1000 + number, "/usr/sbin/mysqld", listening=(socket,), argv=argv)
    text = refusal(proc, "mysqld")
    assert f"{count} servers answer to mysqld" in text
    assert all(f"pid {1000 + number}" in text for number in range(count))
    assert also in text
    assert one_line(text, 2000) == text
    assert text.endswith("Give -p PID, or --socket, --port or --datadir")


def test_files_that_vanish_are_no_error(proc: FakeProc) -> None:
    proc.add(10, "/usr/sbin/mysqld")
    (proc.root / "11").mkdir()
    (proc.root / "12").mkdir()
    (proc.root / "12" / "stat").write_text("12 (x")
    assert pids(proc, "mysqld") == (10,)


def test_a_real_process_and_its_sockets(tmp_path: Path) -> None:
    code = (
        "import socket, sys\n"
        "u = socket.socket(socket.AF_UNIX); u.bind('here.sock'); u.listen()\n"
        "t = socket.create_server(('127.0.0.1', 0))\n"
        "print(t.getsockname()[1], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        found, (server,) = resolve([str(process.pid)], NOBODY)
        process.communicate("")
    assert found == (process.pid,)
    assert server.ports == (port,)
    assert server.sockets == (str(tmp_path / "here.sock"),)


@pytest.mark.parametrize(
    ("exe", "comm", "expected"),
    [
        ("/usr/sbin/mysqld", "x", "mysql"),
        ("/usr/sbin/mariadbd", "mysqld", "mariadb"),
        ("/usr/lib/postgresql/15/bin/postgres", None, "postgres"),
        ("/usr/bin/mongod", None, "mongodb"),
        (None, "mysqld", "mysql"),
        ("/usr/bin/python3", "mysqld", None),
        ("/bin/cat", None, None),
        (None, None, None),
    ],
)
def test_family(exe: str | None, comm: str | None, expected: str | None) -> None:
    assert family(exe, comm) == expected


def test_a_frozen_group_of_version_2(tmp_path: Path) -> None:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "7").mkdir(parents=True)
    (root / "db" / "main").mkdir(parents=True)
    (proc / "7" / "cgroup").write_text("4:freezer:/x\n0::/db/main\n")
    assert not processes.is_frozen(7, proc, [root])
    (root / "db" / "main" / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert not processes.is_frozen(7, proc, [root])
    (root / "db" / "main" / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert processes.is_frozen(7, proc, [tmp_path / "nothing", root])
    (proc / "7" / "cgroup").write_text("0::/../db/main\n")
    assert not processes.is_frozen(7, proc, [root])
    assert not processes.is_frozen(8, proc, [root])
