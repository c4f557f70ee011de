# SPDX-License-Identifier: Apache-2.0
"""Asking disks through a process that is left behind where it gets no answer."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.collectors.paths import asking
from stallscope.collectors.paths.asking import FollowedFile, SilentDiskError

__all__: list[str] = []


def kept() -> int:
    """Return the process that answers the next question."""
    asking.exists("/")
    (one,) = asking._processes._idle
    return one.process.pid


@contextlib.contextmanager
def silent(pid: int) -> Iterator[None]:
    """Have this process answer nothing; what asks it fails. Afterwards it has ended."""
    os.kill(pid, signal.SIGSTOP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking, "PATIENCE_SECONDS", 0.1)
        with pytest.raises(SilentDiskError, match=asking.SILENT):
            yield
    # It has been killed.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_answers_are_those_of_the_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a\udcff"
    file.write_bytes(b"0123456789")
    link = tmp_path / "link"
    link.symlink_to(file)
    assert asking.status(link) == os.stat(file)
    assert asking.status(link).st_mtime_ns == file.stat().st_mtime_ns
    assert asking.status(link, follow=False) == os.lstat(link)
    assert asking.read(link, 4, offset=3) == (b"3456", file.stat().st_mode)
    assert asking.real(link) == str(file)
    assert asking.is_same(link, file)
    assert asking.is_folder(tmp_path)
    assert sorted(asking.names(tmp_path, 9)) == sorted(["link", "a\udcff"])
    assert len(asking.names(tmp_path, 1)) == 1
    assert asking.may(file, os.R_OK)
    assert asking.space("/").f_frsize == os.statvfs("/").f_frsize
    monkeypatch.chdir(tmp_path)
    assert asking.exists("link")
    asking.unlink("link")
    assert not asking.exists("link")


@pytest.mark.parametrize(
    ("path", "number"),
    [("none", errno.ENOENT), ("file/x", errno.ENOTDIR), ("a\0b", errno.EINVAL)],
)
def test_errors_are_those_of_the_calls(tmp_path: Path, path: str, number: int) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"\w") as raised:
        asking.status(f"{tmp_path}/{path}")
    assert raised.value.errno == number
    assert raised.value.filename == f"{tmp_path}/{path}"
    assert not asking.exists(f"{tmp_path}/{path}")


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="no regular file"):
            asking.read(path, 1)


@pytest.mark.parametrize("name", ["short", "long" * 30])
def test_descriptors_come_from_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "socket"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        folder = asking.folder(path.parent)
        listener.bind(f"/proc/self/fd/{folder}/socket")
        os.close(folder)
        listener.listen()
        with asking.connected(path) as end, listener.accept()[0] as other:
            assert not os.get_inheritable(end.fileno())
            end.sendall(b"x")
            assert other.recv(1) == b"x"
    with pytest.raises(ConnectionRefusedError):
        asking.connected(path)


def test_one_that_is_late_is_left_behind(tmp_path: Path) -> None:
    late = kept()
    with silent(late):
        asking.status(tmp_path)
    assert asking.status(tmp_path) == tmp_path.stat()
    assert kept() != late


def test_no_more_than_so_many_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MAX_LEFT", 0)
    with pytest.raises(SilentDiskError, match="0 disks do not answer"):
        asking.status(tmp_path)


def test_one_that_has_ended_is_replaced(tmp_path: Path) -> None:
    ended = kept()
    os.kill(ended, signal.SIGKILL)
    os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
    assert asking.exists(tmp_path)
    assert kept() != ended


def test_a_followed_file_is_closed_by_a_silent_disk(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    file = FollowedFile(str(path))
    assert not file.is_open
    assert file.open().st_size == 4
    assert file.more(0, 99, 99) == (0, b"one\n")
    assert file._child is not None
    with silent(file._child.process.pid):
        file.more(4, 99, 99)
    assert not file.is_open
    assert file.open().st_size == 4
    file.close()
