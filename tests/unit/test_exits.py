# SPDX-License-Identifier: Apache-2.0
"""How a process ended, for others than its parent."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from stallscope.collectors.host import exits
from tests.support.servers.waiting import wait_until


@contextmanager
def grandchild(code: str) -> Iterator[tuple[int, int, Callable[[], None]]]:
    """Yield a process whose parent is another one: its pidfd, its pid, and what ends its parent's
    neglect of it."""
    parent = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {code!r}], stdin=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.readline()\n"
        "child.wait()\n"
        "print('reaped', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", parent], stdin=pipe, stdout=pipe) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        pid = int(started.stdout.readline())
        descriptor = os.pidfd_open(pid)

        def reap() -> None:
            assert started.stdin is not None
            assert started.stdout is not None
            started.stdin.write(b"\n")
            started.stdin.flush()
            assert started.stdout.readline() == b"reaped\n"

        try:
            yield descriptor, pid, reap
        finally:
            os.close(descriptor)
            started.kill()


WAIT = "import time; time.sleep(1000)"


@pytest.mark.parametrize(
    ("code", "ending", "expected", "clean"),
    [
        (WAIT, signal.SIGKILL, "killed by SIGKILL: by somebody, ", False),
        (WAIT, signal.SIGSEGV, "killed by SIGSEGV", False),
        (WAIT, signal.SIGRTMIN + 3, f"killed by signal {signal.SIGRTMIN + 3}", False),
        ("raise SystemExit(0)", None, "it shut down, exit code 0", True),
        ("raise SystemExit(7)", None, "it failed, exit code 7", False),
    ],
)
def test_a_pidfd_says_how_its_process_ended(
    code: str, ending: int | None, expected: str, clean: bool, require: Callable[..., None]
) -> None:
    require("exit-status")
    with grandchild(code) as (descriptor, pid, reap), closing(exits.Life(pid, ())) as life:
        if ending is not None:
            assert exits.exit_status(descriptor, pid) is None, "it runs"
            os.kill(pid, ending)
        reap()
        found = life.ending(descriptor)
        assert found.words.startswith(expected)
        assert found.clean is clean


def test_of_a_zombie_proc_says_it() -> None:
    with grandchild(WAIT) as (descriptor, pid, reap):
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: exits.exit_status(descriptor, pid) is not None, "it is a zombie")
        assert exits.exit_status(descriptor, pid) == -signal.SIGKILL
        reap()


def test_without_an_exit_status_the_socket_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "ioctl", _refuse)
    path = tmp_path / "mysql.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        paths = [str(path), "\0abstract", str(tmp_path / "none")]
        assert list(exits.sockets_there(paths)) == [str(path)]
        life = exits.Life(os.getpid(), paths)
    left = f"it did not shut down in order, for its socket {path} is still there"
    with closing(life):
        assert life.ending(-1) == (left, False)
        path.unlink()
        removed = ("it removed its socket, as a shutdown does", True)
        assert life.ending(-1) == removed
        path.write_text("a file")
        assert life.ending(-1) == removed
        path.unlink()
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            os.utime(path, ns=(0, 0))
            assert life.ending(-1) == ("", None), "its next process has made another"
        life.listens(())
        assert life.ending(-1) == ("", None)


def _refuse(*_: object) -> bytes:
    raise OSError(25, "Inappropriate ioctl for device")
