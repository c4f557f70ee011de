# SPDX-License-Identifier: Apache-2.0
"""Files as they come: compressed, torn, huge, binary, of no known format; folders of all that."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallscope.analyzers import importers
from stallscope.analyzers.importers import dump
from stallscope.base import inputfile, parallel
from stallscope.base.errors import Exit, StallscopeError
from stallscope.main import main
from stallscope.model.capture import Capture
from tests.unit import gdb_dumps

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

DUMP = b"Thread 2 (LWP 12):\n#0  0x01 in a ()\nThread 1 (LWP 11):\n#0  0x02 in b ()\n"
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstd.compress,
}


def read(path: Path) -> list[Capture]:
    return list(importers.read(inputfile.chunks(path), str(path)))


@pytest.mark.parametrize("kind", PACKERS)
def test_compressed_whatever_the_name_says(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "dump.txt"
    path.write_bytes(PACKERS[kind](DUMP))
    (capture,) = read(path)
    assert [thread.tid for thread in capture.threads] == [12, 11]


@pytest.mark.parametrize("kind", PACKERS)
def test_streams_one_after_the_other(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_bytes(PACKERS[kind](DUMP) + PACKERS[kind](DUMP) + b"\n")
    assert len(read(path)) == 2


@pytest.mark.parametrize("kind", PACKERS)
def test_torn_compressed_data(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_bytes(PACKERS[kind](DUMP)[:-9])
    with pytest.raises(StallscopeError, match=r"torn|damaged") as caught:
        read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", PACKERS)
def test_a_bomb(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputfile, "_RATIO_FROM", 1 << 19)
    path = tmp_path / "dump"
    path.write_bytes(PACKERS[kind](DUMP + b"\n" * (8 << 20)))
    limit = 100 if kind == "gzip" else inputfile.MAX_RATIO  # gzip cannot do a thousand
    monkeypatch.setattr(inputfile, "MAX_RATIO", limit)
    with pytest.raises(StallscopeError, match="times its size"):
        read(path)


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputfile, "MAX_BYTES", 10)
    path = tmp_path / "dump"
    path.write_bytes(DUMP)
    with pytest.raises(StallscopeError, match="split it"):
        read(path)


def test_unknown_text_says_what_was_tried_and_shows_a_line() -> None:
    with pytest.raises(importers.UnknownFormat) as caught:
        importers.load(b"\n  What is \x07this?\nmore\n", "letter.txt")
    message = str(caught.value)
    assert "What is \\x07this?" in message
    assert "gdb" in message
    assert all(known.name in message for known in importers.FORMATS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" \n\n",
        b"\0" * 100,
        b"\x7fELF" + bytes(60),
        bytes(range(256)) * 50,
        b"nothing here\n#1 of the list\n",
        b"#0 0x00007f57 pread64\n#1 0x0000 foo\n",
    ],
)
def test_what_is_no_dump(data: bytes) -> None:
    with pytest.raises(importers.UnknownFormat, match=r"\Ax: [^\n]+\Z"):
        importers.load(data, "x")


def test_nul_bytes_in_a_torn_file() -> None:
    data = DUMP * 5 + b"\0\0\0\n" + DUMP.replace(b"0x02", b"0x03")
    assert len(importers.load(data, "x")) == 6


def test_deep_stacks_over_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recursion without end: the frames up to the limit stay, nothing else is kept."""
    monkeypatch.setattr(importers, "PIECE", 1 << 14)
    count = 50_000
    frames = b"".join(b"#%d  0x01 in recurse ()\n" % n for n in range(count))
    text = b"Thread 3 (LWP 7):\n" + frames + DUMP
    first, *others = importers.load(text, "x")
    thread = first.threads[0]
    assert (thread.tid, len(thread.frames), thread.unwind) == (7, dump.MAX_FRAMES, "limit")
    assert [thread.tid for thread in first.threads] == [7, 12, 11]
    assert others == []
    assert [note.message for note in first.notes] == ["stacks cut at 1000 frames: 1"]


def test_a_line_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importers, "PIECE", 1 << 20)
    line = b"#0  0x01 in a (x=" + b"1" * (8 << 20) + b") at a.c:1\n"
    captures = importers.load(DUMP + line + DUMP, "x")
    assert sum(len(capture.threads) for capture in captures) >= 4


@pytest.mark.parametrize("piece", [333, 1000, 5000, 1 << 20])
def test_pieces_make_no_difference(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a file is cut into pieces, what is read of it is the same."""
    data = gdb_dumps.dump(gdb_dumps.IDLE)
    (whole,) = importers.load(data, "x")
    monkeypatch.setattr(importers, "PIECE", piece)
    monkeypatch.setattr(importers, "_PROBE", 10)
    pieces = list(importers.read((data[i : i + 50] for i in range(0, len(data), 50)), "x"))
    assert [capture.threads for capture in pieces] == [whole.threads]
    assert [capture.locks for capture in pieces] == [whole.locks]


def test_several_processes_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importers, "PIECE", 4096)
    names = gdb_dumps.NAMES[2:6]
    data = b"".join(map(gdb_dumps.dump, names))
    alone = list(importers.read([data], "x"))
    with parallel.mapper(2, importers.PIECE) as pieces:
        together = list(importers.read([data], "x", pieces=pieces))
    assert together == alone
    assert len(alone) == len(names)


def test_a_reader_that_stops_early_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importers, "PIECE", 256)

    def endless() -> Iterator[bytes]:
        while True:
            yield DUMP * 10

    with parallel.mapper(2, importers.PIECE) as pieces:
        assert next(importers.read(endless(), "x", pieces=pieces)).threads


def test_a_folder_with_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_bytes(DUMP)
    (tmp_path / "b.gz").write_bytes(gzip.compress(DUMP))
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "notes.md").write_text("nothing of that kind\n")
    (tmp_path / "torn.gz").write_bytes(gzip.compress(DUMP)[:-9])
    os.mkfifo(tmp_path / "pipe")
    secret = tmp_path / "secret"
    secret.write_bytes(DUMP)
    secret.chmod(0)
    code = main(["analyze", "--json", str(tmp_path)])
    out, err = capsys.readouterr()
    read_anyway = os.access(secret, os.R_OK)  # root reads all
    assert len(out.splitlines()) == (3 if read_anyway else 2)
    assert code is Exit.PARTIAL
    assert "torn.gz" in err
    assert "2 files without stacks" in err
    assert read_anyway or "secret" in err


def test_a_folder_of_pt_stalk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What says who waits is read, by the collector's name; -vmstat and similar ones are not."""
    data = Path(__file__).parent.parent / "data" / "importers"
    stamp = "2026_11_21_12_00_00"
    for collector, example in {
        "stacktrace": "gdb-wrapped",
        "innodbstatus1": "innodb-semaphores",
        "processlist": "processlist-mariadb-pl-g",
        "mysqladmin": "pt-pmp",
    }.items():
        (tmp_path / f"{stamp}-{collector}").write_bytes((data / f"{example}.in").read_bytes())
    (tmp_path / f"{stamp}-vmstat").write_text("procs -----------memory----------\n")
    assert main(["analyze", "--json", str(tmp_path)]) in (Exit.DONE, Exit.PARTIAL)
    formats = [
        json.loads(line)["inputs"][0]["format"] for line in capsys.readouterr().out.splitlines()
    ]
    assert formats == ["innodb-status", "innodb-status", "processlist", "gdb"]


def test_the_groupings_of_pt_pmp(capsys: pytest.CaptureFixture[str]) -> None:
    path = gdb_dumps.path_of(gdb_dumps.TABLE_OPEN)

    def groups(*options: str) -> list[dict[str, object]]:
        main(["analyze", "--json", str(path), *options])
        found = json.loads(capsys.readouterr().out)["groups"]
        assert isinstance(found, list)
        return found

    assert all(len(group["frames"]) == 1 for group in groups("--by", "leaf"))  # type: ignore[arg-type]
    roots = {group["frames"][0] for group in groups("--by", "root")}  # type: ignore[index]
    assert "handle_one_connection" in roots
    assert "start_thread" not in roots
    assert len(groups("--lines", "1")) < len(groups())
    assert groups("--threads", "no-such-name") == []
    assert main(["analyze", str(path), "--inverted"]) is Exit.DONE
    text = capsys.readouterr().out
    assert "Stacks from the innermost frame" in text
    assert main(["analyze", str(path), "--tree"]) is Exit.DONE
    assert "Stacks from the outermost frame" in capsys.readouterr().out


def test_what_a_processlist_says_of_its_threads(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parent.parent / "data" / "importers" / "processlist-mariadb-pl-table.in"
    main(["analyze", "--json", str(path)])
    analysis = json.loads(capsys.readouterr().out)
    assert analysis["findings"] == []
    assert analysis["threads"]["idle"] == 2
    assert ["[Updating]"] in [group["frames"] for group in analysis["groups"]]


def test_pieces_go_through_memory_of_their_size() -> None:
    with parallel.mapper(2, 8) as pieces:
        assert list(pieces(len, [b"x" * n for n in range(9)] * 9)) == list(range(9)) * 9
    with parallel.mapper(2, 8) as pieces, pytest.raises(ValueError, match="9 bytes"):
        list(pieces(len, [b"x" * 9]))
