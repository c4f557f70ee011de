# SPDX-License-Identifier: Apache-2.0
"""Keys of servers, and the folder of what belongs to one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stallscope.base import host
from stallscope.base.errors import StallscopeError
from stallscope.collectors.processes import ProcessInfo, Server
from stallscope.collectors.serverkey import server_key
from stallscope.store import layout
from stallscope.store.serverstate import AGENT_LOCK, CRON_LOCK, ServerBusy, ServerState

ROOT = "21 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n"


def server(
    pid: int = 100,
    *,
    datadir: str | None = "/var/lib/mysql",
    sockets: tuple[str, ...] = (),
    ports: tuple[int, ...] = (),
    argv: tuple[str, ...] = ("mariadbd",),
) -> Server:
    main = ProcessInfo(pid, 1, "mariadbd", "S", pid * 10, False, None, None, argv)
    return Server(main, (pid,), sockets=sockets, ports=ports, datadir=datadir)


def proc_of(tmp_path: Path, mounts: dict[str, str]) -> Path:
    for pid, text in mounts.items():
        (tmp_path / pid).mkdir(exist_ok=True)
        (tmp_path / pid / "mountinfo").write_text(text)
    return tmp_path


def test_a_restarted_server_has_the_same_key(tmp_path: Path) -> None:
    proc = proc_of(tmp_path, {"self": ROOT, "100": ROOT, "200": ROOT})
    first = server_key(server(100), proc=proc, host_id="h")
    # Before it listens its ports are not known, and the pid is another.
    again = server_key(
        server(200, ports=(3306,), sockets=("/run/my.sock",)), proc=proc, host_id="h"
    )
    assert first == again
    assert first.startswith("var_lib_mysql-")
    assert layout.is_server_key(first)


def test_servers_and_hosts_have_different_keys(tmp_path: Path) -> None:
    proc = proc_of(tmp_path, {"self": ROOT, "100": ROOT})
    keys = [
        server_key(server(), proc=proc, host_id="h"),
        server_key(server(), proc=proc, host_id="other"),
        server_key(server(datadir="/srv/b"), proc=proc, host_id="h"),
        server_key(server(datadir=None, sockets=("/var/lib/mysql",)), proc=proc, host_id="h"),
        server_key(server(datadir=None), proc=proc, host_id="h"),
        server_key(server(datadir=None, ports=(3307,)), proc=proc, host_id="h"),
        server_key(server(datadir="/"), proc=proc, host_id="other"),
    ]
    assert len(set(keys)) == len(keys)
    assert all(map(layout.is_server_key, keys))


def test_one_path_in_two_containers_is_two_servers(tmp_path: Path) -> None:
    def volume(name: str) -> str:
        return (
            "90 1 0:50 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/o/x/diff,workdir=/w\n"
            f"91 90 254:1 /volumes/{name} /var/lib/mysql rw - ext4 /dev/vda1 rw\n"
        )

    def layer(name: str) -> str:
        return f"90 1 0:50 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/o/{name}/diff\n"

    mounts = {"self": ROOT, "1": ROOT, "2": volume("a"), "3": volume("b"), "4": layer("a")}
    proc = proc_of(tmp_path, {**mounts, "5": layer("b"), "6": volume("a")})
    keys = {pid: server_key(server(pid), proc=proc, host_id="h") for pid in range(1, 7)}
    assert len(set(keys.values())) == 5
    assert keys[6] == keys[2], "the container was made again, the volume is the same"


def test_the_hardening_of_a_service_changes_nothing(tmp_path: Path) -> None:
    bound = ROOT + "50 21 254:1 /var/lib/mysql /var/lib/mysql rw - ext4 /dev/vda1 rw\n"
    proc = proc_of(tmp_path, {"self": ROOT, "1": ROOT, "2": bound})
    assert server_key(server(1), proc=proc, host_id="h") == server_key(
        server(2), proc=proc, host_id="h"
    )


def test_where_little_can_be_read_the_unit_and_options_count(tmp_path: Path) -> None:
    for pid, unit in (("1", "mariadb@a.service"), ("2", "mariadb@b.service")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cgroup").write_text(f"0::/system.slice/{unit}\n")
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "cgroup").write_text("0::/user.slice/user-0.slice/session-7.scope\n")
    (tmp_path / "4").mkdir()
    (tmp_path / "4" / "cgroup").write_text("0::/user.slice/user-0.slice/session-8.scope\n")
    keys = [server_key(server(n, datadir=None), proc=tmp_path, host_id="h") for n in (1, 2, 3, 4)]
    assert keys[0].startswith("mariadb_a-")
    assert len({*keys[:3]}) == 3
    assert keys[2] == keys[3]
    wsrep = ("mariadbd", "--defaults-group-suffix=.a", "--wsrep_start_position=1")
    later = ("mariadbd", "--defaults-group-suffix=.a", "--wsrep_start_position=2")
    found = [server(3, datadir=None, argv=argv) for argv in (wsrep, later)]
    one, two = (server_key(each, proc=tmp_path, host_id="h") for each in found)
    assert one == two != keys[2]


def test_hosts_of_one_image_differ_by_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("0123456789abcdef\n")
    (tmp_path / "b").write_text("1123456789abcdef\n")
    assert host.host_id(tmp_path / "a") != host.host_id(tmp_path / "b")
    assert host.host_id(tmp_path / "none") == host.host_id(tmp_path / "none")


HOLD = """
import sys
from pathlib import Path
from stallscope.store.serverstate import ServerState
held = ServerState.open(Path(sys.argv[1]), sys.argv[2]).lock(sys.argv[3])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    key = "var_lib_mysql-01234567"
    state = ServerState.open(tmp_path, key)
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path), key, AGENT_LOCK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(ServerBusy) as busy:
            state.lock(AGENT_LOCK)
        assert busy.value.holder is not None
        assert busy.value.holder.pid == child.pid
        assert busy.value.holder.host == os.uname().nodename
        state.lock(CRON_LOCK).release()  # another lock is another file
        child.kill()
        child.wait()
        state.lock(AGENT_LOCK).release()


@pytest.mark.parametrize("key", ["..", "a/b-01234567", "", "server", "x-0123456", ".a-01234567"])
def test_a_key_is_no_path(tmp_path: Path, key: str) -> None:
    with pytest.raises(StallscopeError, match="not the key"):
        ServerState.open(tmp_path, key)


@pytest.mark.parametrize("text", [b"", b"\xff", b'{"pid":-1,"host":"x"}', b"{" * 4000])
def test_a_holder_that_cannot_be_read_is_another_process(tmp_path: Path, text: bytes) -> None:
    state = ServerState.open(tmp_path, "a-01234567")
    held = state.lock(AGENT_LOCK)
    (state.path / AGENT_LOCK).write_bytes(text)
    with pytest.raises(ServerBusy, match=AGENT_LOCK) as busy:
        state.lock(AGENT_LOCK)
    assert busy.value.holder is None
    held.release()
