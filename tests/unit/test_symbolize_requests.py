# SPDX-License-Identifier: Apache-2.0
"""The requests of ``stallscope-probe symbolize``, good and hostile, to the real probe."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stallscope.collectors import probe
from tests.support.chance import SEED

__all__: list[str] = []

pytestmark = pytest.mark.needs("probe", "cc")

SOURCE = """\
__attribute__((noinline)) int first(int a) { return a * 7 + 1; }
__attribute__((noinline)) int second(int a) { return a * 9 + 2; }
int main(int argc, char **argv) { return first(argc) + second(argc); }
"""
BUILD_ID = "abcdef0123456789"


def ask(text: bytes, *args: str | Path) -> subprocess.CompletedProcess[bytes]:
    argv = [probe.find(), "symbolize", *args]
    return subprocess.run(argv, input=text, capture_output=True, timeout=60, check=False)


def answers(text: str, *args: str | Path) -> list[dict[str, Any]]:
    done = ask(text.encode(), *args)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a program with symbols, in a folder whose name has a space."""
    folder = tmp_path_factory.mktemp("symbolize") / "a folder"
    folder.mkdir()
    (folder / "work.c").write_text(SOURCE)
    argv = ["cc", "-no-pie", f"-Wl,--build-id=0x{BUILD_ID}", "-o", "work", "work.c"]
    subprocess.run(argv, cwd=folder, check=True)
    return folder / "work"


@pytest.fixture(scope="module")
def first(program: Path) -> tuple[int, int]:
    """Return address and size of the function first()."""
    words = subprocess.check_output(["nm", "-S", program], text=True)
    found = re.search(r"^([0-9a-f]+) ([0-9a-f]+) T first$", words, re.MULTILINE)
    assert found is not None
    return int(found[1], 16), int(found[2], 16)


def test_addresses_are_named_by_build_id(program: Path, first: tuple[int, int]) -> None:
    begin, size = first
    at = f"{begin:#x},{begin + 1:#x},{begin + size:#x},{begin + size:#x}-1,0x1"
    answer, other = answers(
        f"7 {at} {BUILD_ID}\n18446744073709 0x10 00112233\n", "--debug-dir", program.parent
    )
    assert answer["id"] == 7
    assert answer["file"] == str(program)
    assert answer["error"] is None
    named = [s and (s["symbol"], s["symbol_offset"]) for s in answer["symbols"]]
    # Behind the last byte of it begins the next function, and a call to it may end it.
    assert named == [("first", 0), ("first", 1), ("second", 0), ("first", size), None]
    assert other["id"] == 18446744073709
    assert other["error"] is not None
    assert other["symbols"] == [None]


def test_a_path_is_used_where_the_build_id_is_not_known(
    program: Path, first: tuple[int, int]
) -> None:
    copy = program.with_name("copy of work")
    shutil.copy(program, copy)
    (answer,) = answers(f"0 {first[0]:#x} - {copy}\n")
    assert answer["file"] == str(copy)
    assert answer["symbols"][0]["symbol"] == "first"
    # The last line need not end.
    (answer,) = answers(f"0 {first[0]:#x} - {copy}")
    assert answer["symbols"][0]["symbol"] == "first"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"\n", "not a number"),
        (b"x 0x1 aa11\n", "not a number"),
        (b"-1 0x1 aa11\n", "not a number"),
        (b" 1 0x1 aa11\n", "not a number"),
        (b"99999999999999999999 0x1 aa11\n", "not a number"),
        (b"1\n", "not ID ADDRESS"),
        (b"1 0x1\n", "not ID ADDRESS"),
        (b"1 0x1 \n", "not ID ADDRESS"),
        (b"1  aa11\n", "an address"),
        (b"1 1 aa11\n", "an address"),
        (b"1 0x aa11\n", "an address"),
        (b"1 0x-1 aa11\n", "an address"),
        (b"1 0x0x1 aa11\n", "an address"),
        (b"1 0x1-2 aa11\n", "an address"),
        (b"1 0x1-1-1 aa11\n", "an address"),
        (b"1 0x1, aa11\n", "an address"),
        (b"1 0x10000000000000000 aa11\n", "an address"),
        (b"1 0x1\0 aa11\n", "zero byte"),
        (b'{"id": 1, "build_id": "aa11", "offsets": ["0x1"]}\n', "not a number"),
    ],
)
def test_what_is_no_request_is_said(line: bytes, said: str) -> None:
    done = ask(line)
    assert (done.returncode, done.stdout) == (1, b"")
    message = done.stderr.decode()
    assert message.startswith("stallscope-probe: request: ")
    assert said in message
    assert message.count("\n") == 1


def test_hostile_words_name_nothing() -> None:
    long = "f" * 100_000
    hostile = ["../../../etc/passwd", "%s%n", long, "é\x7f", "-", "- /proc/self/mem", "- /dev/zero"]
    text = "".join(f"{i} 0x1,0xffffffffffffffff-1 {word}\n" for i, word in enumerate(hostile))
    for i, answer in enumerate(answers(text)):
        assert answer["id"] == i
        assert answer["error"] is not None
        assert answer["symbols"] == [None, None]


def test_any_bytes_are_answered_or_refused(program: Path, first: tuple[int, int]) -> None:
    chance = random.Random(SEED)
    good = f"7 {first[0]:#x},{first[0] + 1:#x}-1 {BUILD_ID} {program}\n".encode()
    for _ in range(40):
        data = bytearray(good * 3)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.choice(b" \n\0,-x0fF\xff" + good)
        done = ask(bytes(data))
        assert done.returncode in (0, 1), (bytes(data), done.stderr)
        for line in done.stdout.splitlines():
            assert set(json.loads(line)) == {"id", "file", "is_pack", "error", "symbols"}
