# SPDX-License-Identifier: Apache-2.0
"""Files that steer: owners, modes, links, folders that are swapped meanwhile.

tests/c/test_trust.c has the same for the probe.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from stallscope.base import package, trust
from stallscope.base.errors import UsageError
from stallscope.base.tomlfile import Reader
from stallscope.collectors import packs, preload
from stallscope.collectors.sql import optionfiles
from stallscope.store import layout

EVE, US = 54321, 54322
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to others")


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "_warned", set())


@pytest.fixture
def privileged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "has_privileges", lambda: True)


def made(path: Path, mode: int = 0o644) -> Path:
    path.write_text("x")
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("folder", "file", "why"),
    [
        (0o755, 0o644, None),
        (0o700, 0o600, None),
        (0o755, 0o646, "/f can be written to by others (mode 0646): chmod go-w"),
        (0o755, 0o666, "/f can be written to by others (mode 0666): chmod go-w"),
        (0o757, 0o644, "/d can be written to by others (mode 0757): chmod go-w"),
        (0o777, 0o644, "/d can be written to by others (mode 0777): chmod go-w"),
        (0o1777, 0o644, None),
        (0o1777, 0o666, "/f can be written to by others (mode 0666): chmod go-w"),
    ],
)
def test_modes(tmp_path: Path, folder: int, file: int, why: str | None) -> None:
    (tmp_path / "d").mkdir()
    path = made(tmp_path / "d/f", file)
    (tmp_path / "d").chmod(folder)
    found = trust.reason(path)
    assert (found is None) == (why is None)
    if why is not None and found is not None:
        assert found.startswith(f"{path} is not used: {tmp_path}")
        assert found.endswith(why)
        with pytest.raises(trust.DistrustError):
            trust.open_file(path)
    else:
        os.close(trust.open_file(path))


@root_only
def test_owners(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    path = made(tmp_path / "d/f")
    os.chown(path, EVE, EVE)
    assert f"{path} belongs to user {EVE}, who could change it: chown it to root" in str(
        trust.reason(path)
    )
    os.close(trust.open_file(path, owners=[EVE]))
    os.chown(tmp_path / "d", US, US)
    with pytest.raises(trust.DistrustError, match=f"/d belongs to user {US}"):
        trust.open_file(path, owners=[EVE])
    os.close(trust.open_file(path, owners=[EVE, US]))
    # In a sticky folder anybody has files: an owner decides, and the folder's is one of those.
    (tmp_path / "d").chmod(0o1777)
    os.chown(path, 0, 0)
    assert f"/d belongs to user {US}" in str(trust.reason(path))
    os.chown(tmp_path / "d", 0, 0)
    assert trust.reason(path) is None
    os.chown(path, EVE, EVE)
    assert "/f belongs to" in str(trust.reason(path))


@root_only
def test_groups(tmp_path: Path) -> None:
    path = made(tmp_path / "f", 0o664)
    assert trust.reason(path) is None
    os.chown(path, 0, EVE)
    assert str(trust.reason(path)).endswith(f"by group {EVE} (mode 0664): chmod g-w")


def test_group_of_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As useradd gives each user one, and umask 002 lets it write."""
    path = made(tmp_path / "f", 0o664)
    status = os.stat_result((0o100664, 0, 0, 1, EVE, EVE, 1, 0, 0, 0))
    for name in ("getuid", "geteuid", "getgid", "getegid"):
        monkeypatch.setattr(os, name, lambda: EVE)
    members: list[str] = []

    class Group:
        gr_name = "eve"
        gr_mem = members

    monkeypatch.setattr("grp.getgrgid", lambda gid: Group)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        assert trust._fault(status, frozenset({EVE}), "f", descriptor) is None
        members.append("eve")
        assert trust._fault(status, frozenset({EVE}), "f", descriptor) is None
        members.append("bob")
        assert trust._fault(status, frozenset({EVE}), "f", descriptor)
        members.clear()
        monkeypatch.setattr(trust, "has_privileges", lambda: True)
        assert trust._fault(status, frozenset({EVE}), "f", descriptor)
    finally:
        os.close(descriptor)


def test_access_list(tmp_path: Path) -> None:
    """One more user may write, which the group's bits show."""
    entries = ((1, 6, -1), (2, 6, EVE), (4, 4, -1), (16, 6, -1), (32, 4, -1))
    packed = [tag.to_bytes(2, "little") + bits.to_bytes(2, "little") for tag, bits, _ in entries]
    ids = [(number & 0xFFFFFFFF).to_bytes(4, "little") for _, _, number in entries]
    data = b"\2\0\0\0" + b"".join(a + b for a, b in zip(packed, ids, strict=True))
    path = made(tmp_path / "f")
    try:
        os.setxattr(path, "system.posix_acl_access", data)
    except OSError as error:
        pytest.skip(f"no access lists here: {error}")
    assert "can be written to by group" in str(trust.reason(path))


def test_links(tmp_path: Path) -> None:
    for name, mode in (("good", 0o755), ("bad", 0o777)):
        (tmp_path / name).mkdir()
        made(tmp_path / name / "f")
        (tmp_path / name).chmod(mode)
    for name, target in {
        "to-good": "good/f",
        "to-bad": "bad/f",
        "to-folder": str(tmp_path / "bad"),
        "bad/to-good": "../good/f",
        "to-link": "to-good",
        "round": "round",
        "to-missing": "missing",
    }.items():
        (tmp_path / name).symlink_to(target)
    good = ("to-good", "to-link", "good/./..//good/f", "good/", "good/..")
    bad = ("to-bad", "to-folder/f", "bad/to-good", "good/../bad/f", "bad/../good/f", "bad/")
    for name in good:
        os.close(trust.open_file(f"{tmp_path}/{name}"))
    for name in bad:
        with pytest.raises(trust.DistrustError, match="bad can be written to by others"):
            trust.open_file(f"{tmp_path}/{name}")
    for name in ("round", "to-missing", "missing", "good/f/more"):
        with pytest.raises(OSError):
            trust.open_file(f"{tmp_path}/{name}")
        assert trust.reason(f"{tmp_path}/{name}") is None
    # Nothing is said of what is not there.
    assert trust.reason(f"{tmp_path}/bad/missing") is None
    os.close(trust.open_file("/dev/null"))
    os.close(trust.open_file("/"))
    with open(tmp_path / "good/f") as file:
        os.close(trust.open_file(f"/proc/self/fd/{file.fileno()}"))


def test_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "f")
    monkeypatch.chdir(tmp_path)
    os.close(trust.open_file("f"))
    tmp_path.chmod(0o777)
    with pytest.raises(trust.DistrustError):
        trust.open_file("f")
    tmp_path.chmod(0o700)


def test_swapped(tmp_path: Path) -> None:
    """What is opened is what was checked, whatever the name meanwhile leads to."""
    for name, mode in (("one", 0o755), ("two", 0o777)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
        (tmp_path / name).chmod(mode)
    over = threading.Event()

    def swap() -> None:
        at = tmp_path / "at"
        targets = ["one", "two"]
        while not over.is_set():
            targets.reverse()
            (tmp_path / "next").symlink_to(targets[0])
            os.rename(tmp_path / "next", at)

    (tmp_path / "at").symlink_to("one")
    thread = threading.Thread(target=swap)
    thread.start()
    opened = refused = 0
    try:
        while opened < 200 or refused < 200:
            try:
                descriptor = trust.open_file(tmp_path / "at/f")
            except trust.DistrustError:
                refused += 1
                continue
            opened += 1
            with open(descriptor) as file:
                assert file.read() == "one"
    finally:
        over.set()
        thread.join()


def test_disk_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FUSE server reports the owners that it likes; names that the user chose prove nothing."""
    device = os.makedev(0, 999)
    line = "36 35 0:999 / {0} rw - fuse.user_id=0 user_id=0 rw,user_id={1},group_id=0,allow_other\n"
    monkeypatch.setattr(trust, "_MOUNTINFO", tmp_path / "mountinfo")
    status = os.stat_result((0o100644, 0, device, 1, 0, 0, 1, 0, 0, 0))
    for user, found in (
        (EVE, f"f is on a FUSE file system of user {EVE}: copy it to a disk"),
        (0, None),
    ):
        text = "1 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + line.format("/tmp/user_id=0", user)
        (tmp_path / "mountinfo").write_text(text)
        assert trust._fault(status, frozenset({0}), "f", None) == found
    (tmp_path / "mountinfo").write_text("36 35 0:999 / / rw - fuse virtiofs rw\n")
    assert trust._fault(status, frozenset({0}), "f", None) is None


def test_named_without_privileges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path / "f", 0o666)
    for may, trusted in ((True, False), (False, True)):
        monkeypatch.setattr(trust, "has_privileges", lambda may=may: may)
        assert (trust.reason(path, named=True) is None) == trusted
        assert trust.reason(path) is not None


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home of somebody else, as root has it with ``sudo -E``."""
    folder = tmp_path / "eve"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, EVE, EVE)
    else:
        folder.chmod(0o777)
    monkeypatch.setenv("HOME", str(folder))
    for name in ("XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    yield folder
    folder.chmod(0o700)


def test_home_of_another_user(
    home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwd.getpwuid", lambda uid: SimpleNamespace(pw_dir="/home/us"))
    assert packs.own_directory() is None
    assert layout._own_dest() == Path("/home/us/.local/state/stallscope")
    assert not caplog.messages  # nothing is there that would be left out
    own = home / ".local/share/stallscope/packs"
    own.mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        assert packs.directories() == [packs.SYSTEM]
        assert packs.probe_options() == []
    (said,) = caplog.messages
    assert said.startswith(f"{own} is not used: {home} ")
    made(home / ".my.cnf").write_text("[client]\nsocket=/tmp/eve\n")
    found = optionfiles.read(optionfiles.Sources(), folders=[])
    assert not found.settings
    (note,) = found.notes
    assert note.startswith(f"{home}/.my.cnf is not used: {home} ")


def test_pack_of_another_user(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, privileged: None
) -> None:
    pack = made(tmp_path / "0011aabb.pack")
    assert packs.find("0011aabb", [tmp_path]) == pack
    pack.chmod(0o646)
    assert packs.find("0011aabb", [tmp_path]) is None
    assert packs.find("0011aabb", [tmp_path]) is None
    (said,) = caplog.messages
    assert said.startswith(f"{pack} is not used: ")


def test_library_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, privileged: None
) -> None:
    library = made(tmp_path / preload.LIBRARY)
    monkeypatch.setenv("STALLSCOPE_LIBRARY", str(library))
    assert preload.find() == library
    library.chmod(0o666)
    with pytest.raises(Exception, match=r"STALLSCOPE_LIBRARY: .* is not used: "):
        preload.find()


def test_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path / "f")
    path.write_text("a = 1\n")
    reader = Reader("file", UsageError)
    harmless = Reader("file", UsageError, harmless=True)
    assert reader.load(path) == {"a": 1}
    path.chmod(0o666)
    for may in (True, False):
        monkeypatch.setattr(trust, "has_privileges", lambda may=may: may)
        with pytest.raises(UsageError, match=r"is not used: .* can be written to by others"):
            reader.load(path)
    assert harmless.load(path) == {"a": 1}
    # Who can write to the package can change the program.
    monkeypatch.setattr(package, "owns", lambda path: True)
    assert reader.load(path) == {"a": 1}
    with pytest.raises(UsageError, match=r"not a regular file|Is a directory"):
        reader.load(tmp_path)
