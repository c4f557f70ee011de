# SPDX-License-Identifier: Apache-2.0
"""``.mylogin.cnf``: made by its documented format, by MySQL's editor, and by hostile people."""

from __future__ import annotations

import base64
import struct
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from stallscope.base.errors import UsageError
from stallscope.collectors.sql import mylogin
from stallscope.collectors.sql.optionfiles import Sources, read
from tests.support.chance import SEED

pytestmark = pytest.mark.usefixtures("private_umask")


TEXT = b'[client]\nuser = "monitor"\npassword = "p#w\\"d"\n[remote]\nhost = db1\nport = 3307\n'


def encrypt(text: bytes, key: bytes) -> bytes:
    """Make a login file as its documentation says, without the code under test."""
    real = bytes(key[i] ^ (key[16 + i] if i < 4 else 0) for i in range(16))
    out = bytes(4) + key
    for line in text.splitlines(keepends=True):
        pad = 16 - len(line) % 16
        encryptor = Cipher(algorithms.AES(real), modes.ECB()).encryptor()
        data = encryptor.update(line + bytes([pad]) * pad) + encryptor.finalize()
        out += struct.pack("<i", len(data)) + data
    return out


KEY = bytes(range(1, 21))


def write(folder: Path, data: bytes, mode: int = 0o600) -> dict[str, str]:
    path = folder / ".mylogin.cnf"
    path.write_bytes(data)
    path.chmod(mode)
    return {"HOME": str(folder), "MYSQL_TEST_LOGIN_FILE": str(path)}


def test_decrypt() -> None:
    assert mylogin.decrypt(encrypt(TEXT, KEY)) == TEXT
    assert mylogin.decrypt(bytes(24)) == b""


def test_login_path_comes_last(tmp_path: Path) -> None:
    environment = write(tmp_path, encrypt(TEXT, KEY))
    (tmp_path / ".my.cnf").write_text("[client]\nuser=other\nsocket=/s\n[remote]\nhost=db2\n")
    found = read(Sources(), environment=environment, folders=())
    said = [(s.name, s.value) for s in found.settings]
    assert said == [("user", "other"), ("socket", "/s"), ("user", "monitor"), ("password", 'p#w"d')]
    found = read(Sources(login_path="remote"), environment=environment, folders=())
    assert [(s.name, s.value) for s in found.settings][4:] == [("host", "db1"), ("port", "3307")]
    found = read(Sources(no_defaults=True), environment=environment, folders=())
    assert [s.value for s in found.settings] == ["monitor", 'p#w"d']


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o700])
def test_a_file_that_others_see_is_ignored(tmp_path: Path, mode: int) -> None:
    found = read(Sources(), environment=write(tmp_path, encrypt(TEXT, KEY), mode), folders=())
    assert found.settings == ()
    assert "chmod 600" in found.notes[0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x" * 23,
        encrypt(TEXT, KEY)[:-1],
        encrypt(TEXT, KEY)[:27],
        encrypt(TEXT, KEY) + b"\x01",
        bytes(24) + struct.pack("<i", -16) + bytes(16),
        bytes(24) + struct.pack("<i", 0),
        bytes(24) + struct.pack("<i", 15) + bytes(15),
        bytes(24) + struct.pack("<i", 1 << 30) + bytes(64),
        encrypt(TEXT, KEY)[:4] + KEY[::-1] + encrypt(TEXT, KEY)[24:],
    ],
)
def test_torn_files_are_refused(tmp_path: Path, data: bytes) -> None:
    environment = write(tmp_path, data)
    with pytest.raises(UsageError, match=r"mylogin\.cnf: "):
        read(Sources(), environment=environment, folders=())


@seed(SEED)
@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_any_bytes_are_decrypted_or_refused(data: bytes) -> None:
    try:
        text = mylogin.decrypt(data)
    except UsageError:
        return
    assert len(text) < len(data)


@seed(SEED)
@settings(max_examples=100)
@given(st.binary(min_size=20, max_size=20), st.binary(max_size=200), st.integers(0, 1 << 16))
def test_one_flipped_bit(key: bytes, text: bytes, at: int) -> None:
    whole = encrypt(text, key)
    assert mylogin.decrypt(whole) == text
    torn = bytearray(whole)
    torn[at % len(torn)] ^= 1 << at % 8
    try:
        mylogin.decrypt(bytes(torn))
    except UsageError:
        return


BY_EDITOR = base64.b64decode(
    "AAAAAAsPBB4TCQYDHgQPBB8OBB8ABwYWEAAAAIBCa7OsdY0UvVvnzKzNX8IgAAAAmOJlwh9Zi4ouIS76FKwzrCoZXrVz"
    "7vT7FWYj3tae9v8gAAAApsEVzN8sJZSYml5Qq8Nn+NXwA6EVhTtaVAJV7LZMehMQAAAAgwNyGj+SlZ41FyJuD9aPZBAA"
    "AAB75sO2VDUmLpekvBVgyJX2IAAAAIh3qY8+vizK3aRdPQYv6yJZxLP36OLJanEVFXjCW5EoEAAAAEjP7rIcFHp4kL5M"
    "CyTDPB0QAAAAr3fW3FSyHnfDBh2FZdukWg=="
)
"""Written by mysql_config_editor of MySQL 9.7.4: two ``set --password`` with made-up accounts."""


def test_a_file_of_the_editor(tmp_path: Path) -> None:
    environment = write(tmp_path, BY_EDITOR)
    found = read(Sources(login_path="remote"), environment=environment, folders=())
    assert [(s.group, s.name, s.value) for s in found.settings] == [
        ("client", "user", "monitor"),
        ("client", "password", 'p#w"d\\x y'),
        ("remote", "user", "other"),
        ("remote", "password", "it's # secret"),
        ("remote", "host", "db1"),
        ("remote", "port", "3307"),
    ]
