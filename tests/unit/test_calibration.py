# SPDX-License-Identifier: Apache-2.0
"""Calibrations that are kept, builds of programs, and the memory of a process, which may be
anything."""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.base.errors import StallscopeError
from stallscope.collectors import probe, snapshot
from stallscope.collectors.calibration import build, calibrating, layouts, memory, reading, stored
from stallscope.collectors.calibration.memory import Piece
from stallscope.collectors.calibration.stored import Calibration
from stallscope.collectors.sql.staged import Known
from stallscope.model import capturefile
from stallscope.model.sessions import Session
from tests.unit.captures import convoy

__all__: list[str] = []

BUILD = "0123abcd" * 5
KEPT = Calibration(
    build=BUILD,
    program="mysqld",
    version="5.5.9",
    time_ns=1,
    layout={"thd.tls": -472, "thd.self": 16, "thd.id": 24, "thd.user#length": 40},
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the own folder of calibrations; there is no system's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(stored, "SYSTEM", tmp_path / "system")
    return tmp_path / "state" / "stallscope" / "calibrations"


def test_what_is_kept_is_found_again(state: Path) -> None:
    assert stored.load(BUILD) is None
    path = stored.save(KEPT)
    assert path == state / f"{BUILD}.json"
    assert stored.load(BUILD) == KEPT
    again = msgspec.structs.replace(KEPT, version="5.5.10")
    stored.save(again)
    assert stored.load(BUILD) == again
    assert path.read_bytes().endswith(b"}\n")
    assert "secret" not in path.read_text()


def test_a_service_keeps_them_for_all(tmp_path: Path, state: Path) -> None:
    stored.save(KEPT)
    (tmp_path / "system").mkdir()
    system = msgspec.structs.replace(KEPT, version="of the service")
    assert stored.save(system) == tmp_path / "system" / "calibrations" / f"{BUILD}.json"
    assert stored.load(BUILD) == system


def test_a_folder_that_cannot_be_made_is_one_line(state: Path) -> None:
    state.parent.parent.write_text("a file")
    with pytest.raises(StallscopeError, match=r"cannot make .*calibrations: "):
        stored.save(KEPT)


def file(**changes: Any) -> bytes:
    value = msgspec.to_builtins(KEPT)
    value.update(changes)
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe\x00",
        file()[:-20],
        b"[" * 200_000,
        b'{"more":' + b"[" * 200_000,
        file(more=" " * (300 << 10)),
        file(build="f" * 40),
        file(schema="stallscope.calibration/2"),
        file(layout=[]),
        file(layout={"thd.tls": 1 << 41}),
        file(layout={"thd.tls": "8"}),
        file(layout={"thd.tls": 1.5}),
        file(time_ns=10**400),
        file().replace(b"-472", b"-1e999"),
        file(layout={"thd tls": 8}),
        file(layout={"thd=tls": 8}),
        file(layout={"thd.tls\n": 8}),
        file(layout={"": 8}),
        file(layout={"-thd": 8}),
        file(layout={"k" * 96: 8}),
        file(layout={"thd.é": 8}),
        file(layout={f"k{i}": i for i in range(513)}),
    ],
)
def test_files_that_are_no_calibrations_are_none(state: Path, data: bytes) -> None:
    path = stored.save(KEPT)
    path.write_bytes(data)
    assert stored.load(BUILD) is None


def test_what_is_no_file_keeps_nobody_waiting(state: Path, tmp_path: Path) -> None:
    path = stored.save(KEPT)
    path.unlink()
    os.mkfifo(path)
    assert stored.load(BUILD) is None
    path.unlink()
    path.mkdir()
    assert stored.load(BUILD) is None


@pytest.mark.parametrize("name", ["", "..", "../../x", "a/b", "ABCDEF0123", "a" * 141, "x\0y" * 9])
def test_a_build_is_no_path(name: str) -> None:
    assert stored.load(name) is None


def test_a_layout_is_words_for_the_probe() -> None:
    assert stored.text(KEPT.layout) == "thd.id=24 thd.self=16 thd.tls=-472 thd.user#length=40"


class Process:
    """The beginning of a program in memory."""

    exe_start = 0x555555554000

    def __init__(self, image: bytes) -> None:
        self.image = image

    def read(self, pieces: Sequence[Piece]) -> list[bytes]:
        found = []
        for address, size in pieces:
            at = address - self.exe_start
            found.append(self.image[at : at + size] if 0 <= at < len(self.image) else b"")
        return found


NOTE = struct.pack("<III", 4, 20, 3) + b"GNU\0" + bytes(range(20))
OTHER = struct.pack("<III", 4, 16, 1) + b"GNU\0" + bytes(16)


def elf(notes: bytes = OTHER + NOTE, base: int = 0, **changes: int) -> bytes:
    """Return a program of a page, with a segment that is loaded and one of notes."""
    facts = {"offset": 64, "size": 56, "count": 2, "at": 512, "length": len(notes), **changes}
    head = b"\x7fELF\x02\x01\x01".ljust(32, b"\0") + struct.pack("<Q", facts["offset"])
    head = head.ljust(54, b"\0") + struct.pack("<HH", facts["size"], facts["count"])
    loaded = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, 4096, 4096, 4096)
    noted = struct.pack(
        *("<IIQQQQQQ", 4, 4, 512, (base + facts["at"]) % (1 << 64), 0),
        *(facts["length"], facts["length"], 4),
    )
    return (head.ljust(64, b"\0") + loaded + noted).ljust(512, b"\0") + notes.ljust(3584, b"\0")


@pytest.mark.parametrize("base", [0, 0x400000])
def test_a_build_id_is_read_where_the_program_is(base: int) -> None:
    assert build.build_of(Process(elf(base=base))) == bytes(range(20)).hex()  # type: ignore[arg-type]


def test_a_program_without_one_is_known_by_its_beginning() -> None:
    first, second = (build.build_of(Process(elf(OTHER, base=base))) for base in (0, 4096))  # type: ignore[arg-type]
    assert first is not None
    assert first.startswith("sha256-")
    assert first != second
    assert stored.load(first) is None  # but a name that files can have
    stored.save(msgspec.structs.replace(KEPT, build=first))
    assert stored.load(first) is not None


@pytest.mark.parametrize(
    "image",
    [b"", b"\x7fELF\x02", b"\x7fELF\x01".ljust(4096, b"\0"), b"#!/bin/sh\n".ljust(4096)],
)
def test_what_is_no_program_has_no_build(image: bytes) -> None:
    assert build.build_of(Process(image)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "image",
    [
        elf(offset=1 << 63),
        elf(offset=65500),
        elf(size=32),
        elf(count=65535),
        elf(count=1),
        elf(at=1 << 63),
        elf(length=(1 << 64) - 1),
        elf(notes=struct.pack("<III", 4, 2**32 - 1, 3) + b"GNU\0"),
        elf(notes=struct.pack("<III", 2**32 - 1, 20, 1) + b"GNU\0"),
        elf(notes=struct.pack("<III", 4, 65, 3) + b"GNU\0" + bytes(80)),
        elf(base=1 << 63),
    ],
)
def test_programs_that_are_damaged_have_some_build(image: bytes) -> None:
    found = build.build_of(Process(image))  # type: ignore[arg-type]
    assert found is not None
    assert stored._BUILD.fullmatch(found)


@given(st.binary(max_size=600), st.integers(0, 1100))
def test_whatever_a_program_begins_with(damage: bytes, at: int) -> None:
    image = elf()
    found = build.build_of(Process(image[:at] + damage + image[at + len(damage) :]))  # type: ignore[arg-type]
    assert found is None or stored._BUILD.fullmatch(found)


PROBE = """\
#!{python}
import os, struct, sys, time
def head(text='{{"exe":"/usr/sbin/mysqld","exe_start":4096,"threads":[]}}'):
    os.write(1, text.encode() + b"\\n")
def take(size):
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data
def pieces():
    count, = struct.unpack("<Q", take(8))
    return list(struct.iter_unpack("<QQ", take(16 * count)))
{behaviour}
"""
ANSWER = """\
head()
while True:
    asked = pieces()
    print(len(asked), *(hex(a) for a, _ in asked[:3]), file=sys.stderr, flush=True)
    out = b"".join(struct.pack("<Q", s // 2) for _, s in asked)
    out += b"".join(b"x" * s for _, s in asked)
    while out:
        out = out[os.write(1, out):]
"""
SESSIONS = """\
head()
word, size = struct.unpack("<QQ", take(16))
print(hex(word), take(size), file=sys.stderr, flush=True)
line = {line!r}
os.write(1, struct.pack("<Q", len(line)) + line)
sys.stdin.read()
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what puts a program in the probe's place."""

    def make(behaviour: str) -> None:
        program = tmp_path / "probe"
        program.write_text(PROBE.format(python=sys.executable, behaviour=behaviour))
        program.chmod(0o755)
        monkeypatch.setenv("STALLSCOPE_PROBE", str(program))

    return make


def test_pieces_come_in_their_order_and_as_far_as_they_are_readable(
    fake: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MAX_PIECES", 3)
    fake(ANSWER)
    with memory.open_memory(1, 60.0) as opened:
        assert (opened.exe, opened.exe_start, opened.threads) == ("/usr/sbin/mysqld", 4096, ())
        found = opened.read([(4096, size) for size in (8, 2, 300_000, 0, 1, 16, 4)])
        assert list(map(len, found)) == [4, 1, 150_000, 0, 0, 8, 2]
        assert opened.read([]) == []


def test_addresses_that_no_process_has_are_asked_for_all_the_same(
    fake: Callable[[str], None],
) -> None:
    fake(ANSWER)
    with memory.open_memory(1, 60.0) as opened:
        assert opened.read([(-8, 4), (1 << 64, 4), ((1 << 65) + 5, 4)]) == [b"xx"] * 3


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("print('stallscope-probe: no such process', file=sys.stderr)\nsys.exit(1)", "no such"),
        ("head('no JSON')", "cannot be read"),
        ("head('{}')", "cannot be read"),
        ('head(\'{"exe":1,"exe_start":-1,"threads":[]}\')', "cannot be read"),
        ("os.write(1, b'{')\nos.close(1)\ntime.sleep(0.1)\nsys.exit(1)", "stallscope-probe"),
        ("head()\nsys.exit(1)", "stallscope-probe"),
        ("head()\nos.close(0)\ntime.sleep(0.3)\nsys.exit(1)", "stallscope-probe"),
        ("head()\ntake(8)\nos.write(1, b'12345')\nsys.exit(1)", "stallscope-probe"),
    ],
)
def test_a_probe_that_ends_is_an_error_of_one_line(
    fake: Callable[[str], None], behaviour: str, said: str
) -> None:
    fake(behaviour)

    def read() -> None:
        with memory.open_memory(1, 60.0) as opened:
            opened.read([(4096, 64)] * 200_000)

    with pytest.raises(StallscopeError) as caught:
        read()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("behaviour", ["time.sleep(600)", "head()\ntime.sleep(600)"])
def test_a_probe_that_is_silent_is_waited_for_no_longer(
    fake: Callable[[str], None], behaviour: str
) -> None:
    fake(behaviour)
    with (
        pytest.raises(probe.ProbeError, match="did not answer in time"),
        memory.open_memory(1, 0.5) as opened,
    ):
        opened.read([(4096, 8)] * 100_000)


def moment(*connections: int, rejected: int = 0) -> str:
    sessions = [{"connection": number, "tid": 10 + i} for i, number in enumerate(connections)]
    line = {"type": "sessions", "moment": 0, "time_ns": 1, "sessions": sessions}
    return json.dumps({**line, "rejected": rejected}, separators=(",", ":"))


@pytest.mark.parametrize(
    ("line", "count", "said"),
    [
        (moment(1, 2, 3), 3, None),
        (moment(1, 2, 3, rejected=3), 3, None),
        (moment(), 0, None),
        (moment(1, rejected=2), 1, "2 of 3 threads have no connection"),
        (moment(rejected=1), 0, "1 of 1 threads"),
        (moment(1, 2, 1), 3, "the same connection"),
        ("", 0, None),
    ],
)
def test_a_kept_calibration_is_checked_without_sql(
    fake: Callable[[str], None], line: str, count: int, said: str | None
) -> None:
    fake(SESSIONS.format(line=line.encode()))
    with memory.open_memory(1, 60.0) as opened:
        found = reading.check(opened, KEPT)
    assert found.connections == count
    assert (found.misfit is None) == (said is None)
    assert (said or "") in (found.misfit or "")


def test_a_capture_is_not_given_connections_that_do_not_fit(fake: Callable[[str], None]) -> None:
    whole = capturefile.dumps(convoy())
    fake(f"os.write(1, {whole!r}); print({moment(1, 2)!r})")
    taken = snapshot.take((1,), (), snapshot.Options())
    assert [session.connection for session in taken.memory[0].sessions] == [1, 2]
    assert taken.capture.notes == convoy().notes
    fake(f"os.write(1, {whole!r}); print({moment(1, 1)!r})")
    taken = snapshot.take((1,), (), snapshot.Options())
    assert taken.memory == ()
    assert taken.capture.notes[-1].code == "sessions"
    assert "does not fit: several threads have the same" in taken.capture.notes[-1].message


def test_the_layout_of_a_process(
    fake: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(SESSIONS.format(line=moment(rejected=1).encode()))
    monkeypatch.setattr(layouts, "build_of", lambda memory: BUILD)
    known = layouts.of_process(1)
    assert (known.text, known.calibration, known.build) == ("", None, BUILD)
    assert "is not calibrated" in (known.reason or "")
    assert known.note is None
    stored.save(KEPT)
    known = layouts.of_process(1)
    assert (known.text, known.calibration, known.reason) == (stored.text(KEPT.layout), KEPT, None)
    # Not checked: a capture checks what it reads itself.
    known = layouts.of_process(1, checked=True)
    assert (known.layout, known.calibration) == ({}, None)
    assert known.reason == (
        "the calibration of this build does not fit: 1 of 1 threads have no connection where it"
        " says"
    )
    monkeypatch.setattr(layouts, "build_of", lambda memory: None)
    assert layouts.of_process(1).reason == "the program cannot be identified"
    fake("sys.exit(1)")
    assert "stallscope-probe" in (layouts.of_process(1).reason or "")
    assert (layouts.of_process(1).note or "").startswith("no connections from memory: ")


@pytest.mark.parametrize(
    ("said", "seen", "differs"),
    [
        ("SELECT 1", "SELECT 1", False),
        ("SELECT 1", "SELECT 2", True),
        ("SELECT 1", "SELECT 11", True),
        ("SELECT 1", None, False),
        (None, "SELECT 1", False),
        ("SELECT 'caf\u00e9'", "SELECT 'caf\ufffd'", False),  # latin1
        ("SELECT 'caf\u00e9'", "SELECT 'cof\ufffd'", True),
        ("SELECT '", "SELECT '\ufffd\ufffd'", False),  # binary: SQL shows no more
        ("SELECT '??'", "SELECT '\ufffd\ufffd'", False),
        ("\u00e9", "\ufffd", False),
    ],
)
def test_statements_in_other_character_sets_are_the_same(
    said: str | None, seen: str | None, differs: bool
) -> None:
    found = calibrating._differing(Known(1, statement=said), Session(1, statement=seen), None)
    assert found == (["query"] if differs else [])
