# SPDX-License-Identifier: Apache-2.0
"""The header of a ring, against the C header that says what it is, and against hostile files."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import waittables

from stallscope.model import ringfile
from stallscope.model.ringfile import RingError
from stallscope.model.waitkinds import SOURCE_LOST, THRESHOLDS
from tests.unit.rings import made

ROOT = Path(__file__).parent.parent.parent

_FIELDS = (
    "magic", "version", "header_size", "file_size", "slots_offset", "stacks_offset",
    "stats_offset", "names_offset", "records_offset", "maps_offset", "slot_count", "stack_stride",
    "stat_count", "cell_count", "cell_stride", "maps_stride", "pid", "uid", "start_time",
    "pid_namespace", "created_ns", "created_wall_ns", "boot_id", "comm", "exe", "library",
    "start_stack",
)  # fmt: skip


@pytest.fixture(scope="module")
def layout(
    tmp_path_factory: pytest.TempPathFactory, require: Callable[..., None]
) -> dict[str, int]:
    """Return offsets and numbers as the C compiler has them."""
    require("cc")
    names = {f"offsetof(struct stall_ring_header, {name})" for name in _FIELDS}
    names |= {
        f"offsetof(struct stall_ring_header, {name})"
        for name in ("enabled", "threshold_ns", "state", "slots_used", "waits", "lost", "head")
    }
    names |= {
        "sizeof(struct stall_ring_header)",
        "sizeof(struct stall_wait_slot)",
        "offsetof(struct stall_wait_slot, seq)",
        "offsetof(struct stall_wait_slot, tid)",
        "STALL_RING_VERSION",
        "STALL_RING_ENDED",
        "STALL_RING_MAX_SLOTS",
        "STALL_RING_MAX_FILE",
        "STALL_WAIT_KINDS",
        "STALL_LOST_CAUSES",
        *(f"STALL_WAIT_{kind.upper()}" for kind in THRESHOLDS[1:]),
        *(f"STALL_LOST_{cause.name.upper().replace('-', '_')}" for cause in SOURCE_LOST),
    }
    rows = "".join(
        f'printf("%s\\"%s\\": %llu", "{"" if i == 0 else ","}", "{name}",'
        f" (unsigned long long)({name}));\n"
        for i, name in enumerate(sorted(names))
    )
    folder = tmp_path_factory.mktemp("layout")
    for library in ("ebpf", "inproc"):
        (folder / library).symlink_to(ROOT / library)
    waittables.main(
        ROOT / "stallscope" / "model" / "waitkinds.py", folder / "generated" / "wait_tables.h"
    )
    source = folder / "layout.c"
    source.write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "inproc/ring.h"\n'
        f'int main(void) {{ puts("{{"); {rows} puts("}}"); return 0; }}\n'
    )
    program = source.with_suffix("")
    subprocess.run(["cc", f"-I{folder}", "-o", program, source], check=True)
    found: dict[str, int] = json.loads(subprocess.check_output([program]))
    return found


def test_the_layout_is_that_of_the_c_header(layout: dict[str, int]) -> None:
    def at(name: str) -> int:
        return layout[f"offsetof(struct stall_ring_header, {name})"]

    # Each field by a value that stands at its place alone.
    for index, name in enumerate(_FIELDS):
        text = isinstance(ringfile.CONSTANT.unpack(bytes(ringfile.CONSTANT.size))[index], bytes)
        data = bytearray(ringfile.CONSTANT.size)
        data[at(name)] = 1
        fields = ringfile.CONSTANT.unpack(data)
        assert [
            i for i, value in enumerate(fields) if value not in (0, b"") and any_set(value)
        ] == [index], name
        assert text == (name in {"magic", "boot_id", "comm", "exe", "library"})
    assert at("enabled") == ringfile.COMMANDS_AT
    assert at("threshold_ns") == ringfile.THRESHOLDS_AT
    assert at("state") == ringfile.LIVE_AT
    assert at("slots_used") == ringfile.LIVE_AT + 4
    assert at("waits") == ringfile.LIVE_AT + 16
    assert at("lost") == ringfile.LIVE_AT + 24
    assert at("head") == ringfile.HEAD_AT
    assert layout["sizeof(struct stall_ring_header)"] == ringfile.SIZE
    assert layout["sizeof(struct stall_wait_slot)"] == ringfile.SLOT_SIZE
    assert layout["offsetof(struct stall_wait_slot, seq)"] == 0
    assert layout["offsetof(struct stall_wait_slot, tid)"] == ringfile.SLOT_TID_AT


def any_set(value: int | bytes) -> bool:
    return any(value) if isinstance(value, bytes) else value != 0


def test_kinds_and_causes_are_those_of_the_c_header(layout: dict[str, int]) -> None:
    assert layout["STALL_RING_VERSION"] == ringfile.VERSION
    assert layout["STALL_RING_ENDED"] == 2
    assert layout["STALL_WAIT_KINDS"] == len(THRESHOLDS)
    assert [layout[f"STALL_WAIT_{kind.upper()}"] for kind in THRESHOLDS[1:]] == [
        *range(1, len(THRESHOLDS))
    ]
    assert layout["STALL_LOST_CAUSES"] == len(SOURCE_LOST)
    causes = [layout[f"STALL_LOST_{cause.name.upper().replace('-', '_')}"] for cause in SOURCE_LOST]
    assert causes == [*range(len(SOURCE_LOST))]


def test_what_a_header_says(tmp_path: Path) -> None:
    ring = ringfile.read(made(tmp_path / "r.ring", lost=(0, 3), threads=[(1, 1), (0, 5), (2, 4)]))
    assert (ring.pid, ring.comm, ring.exe, ring.library) == (
        4711, "mysqld", "/usr/sbin/mysqld", "0.1.0",
    )  # fmt: skip
    assert (ring.threads, ring.waiting, ring.waits, ring.records) == (2, 1, 987, 17)
    assert ring.lost == {"slots-full": 3}
    assert ring.enabled
    assert not ring.ended
    assert ring.thresholds_ms == dict.fromkeys(THRESHOLDS, 100.0)
    assert ring.owner == os.getuid()


def test_the_switch_and_the_thresholds_change_nothing_else(tmp_path: Path) -> None:
    path = made(tmp_path / "r.ring")
    before = path.read_bytes()
    ringfile.switch(path, on=False)
    ringfile.set_thresholds(path, {"lock": 50_000_000, "write": 1})
    ring = ringfile.read(path)
    assert not ring.enabled
    assert ring.thresholds_ms["lock"] == 50
    assert ring.thresholds_ms["write"] == 1e-6
    assert ring.thresholds_ms["fsync"] == 100
    after = path.read_bytes()
    ends = (ringfile.COMMANDS_AT, ringfile.COMMANDS_AT + ringfile.COMMANDS.size)
    assert before[: ends[0]] == after[: ends[0]]
    assert before[ends[1] :] == after[ends[1] :]
    ringfile.switch(path, on=True)
    ringfile.set_thresholds(path, dict.fromkeys(THRESHOLDS, 100_000_000))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: b"", "too short"),
        (lambda data: data[:600], "does not fit|too short"),
        (lambda data: b"\x7fELF" + data[4:], "no ring"),
        (lambda data: data[:8] + b"\x09" + data[9:], "version 9"),
        (lambda data: data + b"x", "damaged"),
        (lambda data: data[:-1], "damaged"),
    ],
)
def test_what_is_no_ring_is_said(
    tmp_path: Path, damage: Callable[[bytes], bytes], said: str
) -> None:
    path = made(tmp_path / "r.ring")
    path.write_bytes(damage(path.read_bytes()))
    for act in (ringfile.read, lambda path: ringfile.switch(path, on=False)):
        before = path.read_bytes()
        with pytest.raises(RingError, match=said):
            act(path)
        assert path.read_bytes() == before


def test_more_slots_than_the_file_holds(tmp_path: Path) -> None:
    with pytest.raises(RingError, match="damaged"):
        ringfile.read(made(tmp_path / "r.ring", slots=16384))


def test_links_and_pipes_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "link.ring").symlink_to(made(tmp_path / "r.ring"))
    with pytest.raises(RingError, match="symbolic link"):
        ringfile.switch(tmp_path / "link.ring", on=False)
    os.mkfifo(tmp_path / "pipe.ring")
    with pytest.raises(RingError, match="no file"):
        ringfile.read(tmp_path / "pipe.ring")
    with pytest.raises(RingError, match="No such file"):
        ringfile.read(tmp_path / "nothing.ring")


def test_any_bytes_are_a_ring_or_an_error(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    path = made(tmp_path / "r.ring")
    good = path.read_bytes()
    read = 0
    for _ in range(300):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(8, ringfile.SIZE)] = chance.randrange(256)
        path.write_bytes(data)
        with suppress(RingError):
            ring = ringfile.read(path)
            read += 1
            assert ring.threads <= ring.slots
    assert read, "some damage is harmless"
