# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_nothing_is_left_where_the_writer_fails(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StallscopeError, match="No space left on device"):
        atomicfile.write(tmp_path / "a", chunks())
    assert names(tmp_path) == []


def test_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StallscopeError, match=r"cannot write .*No space left"):
        atomicfile.write(tmp_path / "a", [b"x"])
    assert names(tmp_path) == []


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def chunks() -> Iterator[bytes]:
        path.write_text("precious")
        yield b"x"

    with pytest.raises(StallscopeError, match="--force"):
        atomicfile.write(path, chunks())
    assert path.read_text() == "precious"
    assert names(tmp_path) == ["a"]


def test_without_hard_links_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    atomicfile.write(tmp_path / "a", [b"x"])
    assert (tmp_path / "a").read_bytes() == b"x"
    with pytest.raises(StallscopeError, match="--force"):
        atomicfile.write(tmp_path / "a", [b"y"])
    assert names(tmp_path) == ["a"]


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    link = tmp_path / "link"
    link.symlink_to(precious)
    with pytest.raises(StallscopeError, match="--force"):
        atomicfile.write(link, [b"x"])
    atomicfile.write(link, [b"x"], force=True)
    assert (precious.read_text(), link.read_bytes()) == ("kept", b"x")
    assert not link.is_symlink()


def test_a_dangling_link_is_not_overwritten(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "absent")
    with pytest.raises(StallscopeError, match="--force"):
        atomicfile.check_can_create(link, force=False)


@pytest.mark.parametrize("force", [False, True])
def test_devices_and_directories_are_never_replaced(tmp_path: Path, force: bool) -> None:
    with pytest.raises(StallscopeError, match="not a regular file"):
        atomicfile.write(Path("/dev/null"), [b"x"], force=force)
    with pytest.raises(StallscopeError, match="is a directory"):
        atomicfile.write(tmp_path, [b"x"], force=force)
    with pytest.raises(StallscopeError, match="there is no directory"):
        atomicfile.write(tmp_path / "absent" / "a", [b"x"], force=force)
    assert Path("/dev/null").is_char_device()
