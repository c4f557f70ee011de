# SPDX-License-Identifier: Apache-2.0
"""Heap dumps of jemalloc and heaptrack: real ones, damaged ones, and random bytes.

The one of heaptrack has each allocation of a loop less often than the loop ran.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import struct
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.analyzers.importers import heaptrack, jemalloc
from stallscope.base.errors import Exit, StallscopeError
from stallscope.collectors import heapsymbols
from stallscope.main import main

__all__: list[str] = []

DATA = Path(__file__).resolve().parents[1] / "data" / "heapdumps"
JEMALLOC = (DATA / "jemalloc.heap").read_bytes()
HEAPTRACK = (DATA / "heaptrack.txt").read_bytes()
SEEDS = range(20)


def test_jemalloc_is_scaled_up() -> None:
    """The program took 100 pieces of 100,000 bytes and 2,000 of 1,000; one in 4,096 bytes was
    seen."""
    dump = jemalloc.parse(JEMALLOC, "x")
    assert dump.period == 4096
    large, small = dump.stacks[:2]
    assert large.objects == 100
    assert large.bytes == 100 * 114688  # as jemalloc rounds it up
    assert small.objects == pytest.approx(2000, rel=0.15)
    assert small.bytes == pytest.approx(2000 * 1024, rel=0.15)
    assert not dump.bad_lines
    assert any(mapping.path.endswith("libc.so.6") for mapping in dump.mappings)


def test_jemalloc_finds_mappings() -> None:
    mappings = jemalloc.parse(JEMALLOC, "x").mappings
    for mapping in mappings:
        assert jemalloc.find(mappings, mapping.start) is mapping
        assert jemalloc.find(mappings, mapping.end - 1) is mapping
        assert jemalloc.find(mappings, mapping.end) is not mapping
    assert jemalloc.find(mappings, 0) is None
    assert jemalloc.find((), 5) is None


def test_heaptrack_counts_what_is_not_released() -> None:
    heap = heaptrack.parse([HEAPTRACK], "x")
    large, small = heap.stacks[:2]
    assert large[:2] == (1_000_000, 10)
    assert large[2][:2] == ("grow_large", "main")
    assert small[:2] == (20_000, 20)
    assert small[2][0] == "grow_small"
    assert heap.command == "./alloc"
    assert heap.peak_bytes >= 1_020_000
    assert not heap.bad_lines


def test_heaptrack_in_any_pieces() -> None:
    whole = heaptrack.parse([HEAPTRACK], "x")
    for size in (1, 7, 1000):
        pieces = [HEAPTRACK[i : i + size] for i in range(0, len(HEAPTRACK), size)]
        assert heaptrack.parse(pieces, "x") == whole


@pytest.mark.parametrize("name", ["jemalloc.heap", "heaptrack.txt"])
def test_analyze_reads_them(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"{name}.gz"
    path.write_bytes(gzip.compress((DATA / name).read_bytes()))
    assert main(["analyze", "--json", str(path), "--sysroot", str(tmp_path)]) == Exit.DONE
    value = json.loads(capsys.readouterr().out)
    assert value["source"] == name.split(".")[0]
    assert value["growth_bytes"] == sum(stack["bytes"] for stack in value["stacks"])
    assert main(["analyze", str(path), "--sysroot", str(tmp_path)]) == Exit.DONE
    out = capsys.readouterr().out
    assert "are allocated" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_without_the_files_there_are_offsets(tmp_path: Path) -> None:
    dump = jemalloc.parse(JEMALLOC, "x")
    named = heapsymbols.name(dump, sysroot=tmp_path)
    assert any(name.startswith("target+0x") for name in named.stacks[0])
    assert any("no such file" in problem for problem in named.problems)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("heap_v2/", "not a heap dump"),
        ("heap_v2/x\n", "not a heap dump"),
        ("heap_v2/524288", "is cut"),
        ("v 10400 4\n", "is not known"),
        ("v 10400 0\n", "before 1.0"),
        ("v 10400 3\nm 1 2 3\n", "raw file"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    assert main(["analyze", str(path)]) == Exit.FAILED
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_stacks_that_name_themselves_end() -> None:
    text = (
        "v 10400 3\ns 1 f\ni 1 0 1 0 0\nt 1 2\nt 1 1\nt 1 9\na 10 2\n+ 0\na 20 3\n+ 1\n- 7\n+ -1\n"
    )
    heap = heaptrack.parse([text.encode()], "x")
    assert [stack[2] for stack in heap.stacks] == [("f",), ("f", "f")]
    assert heap.bad_lines == 4


def test_numbers_without_limit_are_harmless() -> None:
    dump = jemalloc.parse(
        b"heap_v2/1\n@ 0xffffffffffffffff\n  t*: 9999999999999999999: 9999999999999999999 [0: 0]\n",
        "x",
    )
    assert dump.stacks[0].bytes <= 1 << 62
    heap = heaptrack.parse([b"v 10400 3\na ffffffffffffffff ffffffffffffffff\n+ 0\n"], "x")
    assert heap.stacks[0][0] == 1 << 47


def _damaged(data: bytes, seed: int) -> bytes:
    chance = random.Random(seed)
    damaged = bytearray(data)
    for _ in range(chance.randint(1, 20)):
        at = chance.randrange(20, len(damaged))
        how = chance.randrange(3)
        if how == 0:
            damaged[at] = chance.randrange(256)
        elif how == 1:
            del damaged[at : at + chance.randrange(1, 50)]
        else:
            damaged[at:at] = damaged[at - 20 : at + chance.randrange(100)]
    return bytes(damaged)


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_dumps_raise_nothing_else(seed: int) -> None:
    for parse in (
        lambda data: jemalloc.parse(data, "x"),
        lambda data: heaptrack.parse([data], "x"),
    ):
        for data in (JEMALLOC, HEAPTRACK):
            with suppress(StallscopeError):
                parse(_damaged(data, seed))


@given(st.binary(max_size=400), st.sampled_from([b"heap_v2/1\n", b"v 10400 3\n", b""]))
def test_random_bytes_raise_nothing_else(data: bytes, head: bytes) -> None:
    for parse in (
        lambda text: jemalloc.parse(text, "x"),
        lambda text: heaptrack.parse([text], "x"),
    ):
        with suppress(StallscopeError):
            parse(head + data)


@given(st.binary(max_size=300))
def test_headers_of_elf_files_are_not_trusted(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "elf"
    for head in (b"\x7fELF\x02\x01\x01", b""):
        path.write_bytes(head + data)
        heapsymbols.elf_of(path)


def test_a_program_of_this_machine_is_read() -> None:
    elf = heapsymbols.elf_of(Path("/bin/sh"))
    assert elf is not None
    assert elf.build_id
    offset, size, address = elf.segments[0]
    assert elf.address(offset) == address
    assert elf.address(offset + size) is None
    assert struct.calcsize("<IIQQQQ") == 40


def test_a_pipe_is_not_read_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As of ``analyze <(gdb …)``: its beginning would be lost."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    text = "Thread 1 (LWP 7):\n#0  0x00007f0000001000 in poll () from /lib/libc.so.6\n"
    text += "#1  0x00007f0000002000 in main ()\n"
    writer = threading.Thread(target=path.write_text, args=(text,))
    writer.start()
    assert main(["analyze", str(path), "--json"]) == Exit.DONE
    writer.join()
    assert json.loads(capsys.readouterr().out)["threads"]["total"] == 1
