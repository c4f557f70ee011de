# SPDX-License-Identifier: Apache-2.0
"""Allow-lists of pokes: the package's own, and hostile ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallscope.collectors.poke import allowlist
from stallscope.collectors.poke.allowlist import AllowListError

__all__: list[str] = []

GOOD = """\
[[poke]]
name = "a-word"
server = "a server"
program = "mysqld"
sha256 = "{digest}"
symbol = "word"
address = 0x1008
size = 8
old = {{ least = 0, most = 0 }}
new = {{ least = 1, most = 2 }}
read_by = "one"
does = "this"
undo = "that"
risks = "few"
""".format(digest="0" * 64)


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "list.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(0o600)
    return path


def test_the_packages_own() -> None:
    found = allowlist.load()
    (poke,) = found.poke
    assert (poke.name, poke.symbol, poke.address, poke.size) == (
        "linear-read-ahead",
        "srv_startup_is_before_trx_rollback_phase",
        0xF6E2C8,
        8,
    )
    assert 0 in poke.old
    assert 1 in poke.new
    assert [one.file_class for one in found.direct_io] == ["redo"]


def test_a_list_of_the_user(tmp_path: Path) -> None:
    (poke,) = allowlist.load(written(tmp_path, GOOD)).poke
    assert str(poke.new) == "1 to 2"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("0x1008", "0x1004", "is not aligned to 8 bytes"),
        ("size = 8", "size = 3", "size"),
        ("size = 8", "size = 16", "size"),
        ("least = 1, most = 2", "least = 3, most = 2", "least is larger than most"),
        ("size = 8", "size = 1", "has more than 1 bytes|is not aligned"),
        ("least = 0, most = 0", "least = -1, most = 0", "least"),
        ("0x1008", "0x7fffffffffffffff8", "address"),
        ("0x1008", str(1 << 60), "address"),
        ("symbol", "symbols", "unknown field|missing required"),
        ("sha256", "build_id", ""),
        ('sha256 = "', 'build_id = "00aa00aa"\nsha256 = "', "one of them"),
        (f'sha256 = "{"0" * 64}"', "", "one of them"),
        ('"a-word"', '"../a"', "name"),
        ('"a-word"', '"A\\u001b[2J"', "name"),
        ("[[poke]]", "[[poke", "not valid TOML"),
        ("[[poke]]", "[[pokes]]", "unknown field"),
    ],
)
def test_mistakes(tmp_path: Path, old: str, new: str, why: str) -> None:
    text = GOOD.replace(old, new, 1)
    if not why:
        allowlist.load(written(tmp_path, text))
        return
    if new == "size = 1":
        text = text.replace("most = 2", "most = 300")
    with pytest.raises(AllowListError, match=why) as caught:
        allowlist.load(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_twice_the_same(tmp_path: Path) -> None:
    with pytest.raises(AllowListError, match="twice for the same build"):
        allowlist.load(written(tmp_path, GOOD + GOOD))


def test_too_many(tmp_path: Path) -> None:
    text = "".join(GOOD.replace("a-word", f"word-{number}") for number in range(65))
    with pytest.raises(AllowListError, match="poke"):
        allowlist.load(written(tmp_path, text))


def test_too_large(tmp_path: Path) -> None:
    with pytest.raises(AllowListError, match="larger than"):
        allowlist.load(written(tmp_path, b"#" * ((4 << 20) + 1)))


@pytest.mark.parametrize("mode", [0o602, 0o666])
def test_others_can_write_to_it(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path, GOOD)
    path.chmod(mode)
    with pytest.raises(AllowListError, match="can be written to by"):
        allowlist.load(path)


def test_others_can_replace_it(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    tmp_path.chmod(0o777)
    with pytest.raises(AllowListError, match="can be written to by others"):
        allowlist.load(path)
    tmp_path.chmod(0o700)


def test_no_file(tmp_path: Path) -> None:
    written(tmp_path, GOOD)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (pipe, tmp_path, tmp_path / "none"):
        with pytest.raises(AllowListError):
            allowlist.load(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_of_somebody_else(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    os.chown(path, 65534, 65534)
    with pytest.raises(AllowListError, match="belongs to user 65534"):
        allowlist.load(path)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage(tmp_path: Path, data: st.DataObject) -> None:
    text = bytearray(GOOD.encode())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text) - 1))
        piece = data.draw(st.binary(max_size=6))
        text[at : at + data.draw(st.integers(0, 8))] = piece
    try:
        found = allowlist.load(written(tmp_path, bytes(text)))
    except AllowListError:
        return
    for poke in found.poke:
        assert poke.address % poke.size == 0
        assert poke.new.most < 1 << 8 * poke.size
