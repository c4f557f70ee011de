# SPDX-License-Identifier: Apache-2.0
"""What ``stallscope-probe rings`` says of rings and writes to them; hostile files."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from stallscope.collectors import probe, rings
from stallscope.model.rings import Found, Ring, RingError, loads
from stallscope.model.waitkinds import SOURCE_LOST, THRESHOLDS
from tests.support.ringimages import COMMANDS_AT, THRESHOLDS_AT, WORDS, made

pytestmark = pytest.mark.needs("probe")


def test_what_a_header_says(tmp_path: Path) -> None:
    ring = rings.read(made(tmp_path / "r.ring", lost=(0, 3), threads=[(1, 1), (0, 5), (2, 4)]))
    assert (ring.pid, ring.comm, ring.exe, ring.library) == (
        4711, "mysqld", "/usr/sbin/mysqld", "0.1.0",
    )  # fmt: skip
    assert (ring.threads, ring.waiting, ring.waits, ring.records) == (2, 1, 987, 17)
    assert (ring.created_ns, ring.created_wall_ns) == (5_000_000_000, 1_795_000_000_000_000_000)
    assert ring.lost == {"slots-full": 3}
    assert ring.enabled
    assert ring.slots == 8
    assert ring.thresholds_ms == dict.fromkeys(THRESHOLDS, 100.0)
    assert ring.owner == os.getuid()
    assert ring.size == (tmp_path / "r.ring").stat().st_size


def test_the_fields_are_those_of_the_probe(tmp_path: Path) -> None:
    words = [str(probe.find()), "rings", "--ring", str(made(tmp_path / "r.ring"))]
    answer = json.loads(subprocess.check_output(words))
    assert set(answer) | {"process", "error"} == set(Found.__struct_fields__)
    assert set(answer["ring"]) == set(Ring.__struct_fields__)


def test_each_cause_of_loss_has_its_place(tmp_path: Path) -> None:
    counts = [*range(1, len(SOURCE_LOST) + 1)]
    ring = rings.read(made(tmp_path / "r.ring", lost=counts))
    assert ring.lost == dict(zip((cause.name for cause in SOURCE_LOST), counts, strict=True))


@pytest.mark.parametrize("version", [1, 2])
def test_the_switch_and_the_thresholds_change_nothing_else(tmp_path: Path, version: int) -> None:
    """Of a server, too, that was started with an older library."""
    path = made(tmp_path / "r.ring", version=version)
    before = path.read_bytes()
    rings.switch(path, on=False)
    rings.set_thresholds(path, ["lock=50", "write=0.000001"])
    ring = rings.read(path)
    assert not ring.enabled
    assert ring.thresholds_ms["lock"] == 50
    assert ring.thresholds_ms["write"] == 1e-6
    assert ring.thresholds_ms["fsync"] == 100
    after = path.read_bytes()
    thresholds_at, size = (COMMANDS_AT + 8, 13 * 8) if version == 1 else (THRESHOLDS_AT, WORDS.size)
    changed = {at for at, pair in enumerate(zip(before, after, strict=True)) if len({*pair}) > 1}
    assert changed <= {COMMANDS_AT, *range(thresholds_at, thresholds_at + size)}
    rings.switch(path, on=True)
    rings.set_thresholds(path, ["100"])
    assert path.read_bytes() == before


def test_each_threshold_has_its_place(tmp_path: Path) -> None:
    path = made(tmp_path / "r.ring")
    wanted = {kind: float(number) for number, kind in enumerate(THRESHOLDS, 1)}
    rings.set_thresholds(path, [f"{kind}={value:g}" for kind, value in wanted.items()])
    assert rings.read(path).thresholds_ms == wanted


@pytest.mark.needs("root")
@pytest.mark.parametrize("kind", [fcntl.F_RDLCK, fcntl.F_WRLCK])
def test_a_lease_of_its_owner_keeps_nobody_waiting(tmp_path: Path, kind: int) -> None:
    """An open that waits until the kernel breaks the lease would find the file free in the end."""
    path = made(tmp_path / "r.ring")
    os.chown(path, 54321, 54321)
    before = path.read_bytes()
    was = signal.signal(signal.SIGIO, signal.SIG_IGN)
    with path.open("rb" if kind == fcntl.F_RDLCK else "r+b") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, kind)
        with pytest.raises(RingError):
            rings.switch(path, on=False)
    signal.signal(signal.SIGIO, was)
    assert path.read_bytes() == before
    rings.switch(path, on=False)


def test_a_file_that_is_no_ring_is_reported(tmp_path: Path) -> None:
    path = made(tmp_path / "r.ring")
    path.write_bytes(path.read_bytes()[:-1])
    before = path.read_bytes()
    for act in (
        rings.read,
        lambda path: rings.switch(path, on=False),
        lambda path: rings.set_thresholds(path, ["5"]),
    ):
        with pytest.raises(RingError, match="it was cut") as error:
            act(path)
        assert str(path) in str(error.value)
        assert path.read_bytes() == before


DEEP = b'{"other": ' + b"[" * 2000
"""Deeper than the decoder follows."""


@pytest.mark.parametrize(
    "data", [b"nonsense", b"[]", b'{"life": "alive"}', b'{"path": "\xff"}', DEEP]
)
def test_a_probe_that_says_something_else(data: bytes) -> None:
    with pytest.raises(RingError, match="not understood"):
        loads(data)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--recording", "off"), "need --ring"),
        (("--threshold", "5", "--pid", "1"), "need --ring"),
        (("--recording", "of", "--ring", "x"), "on or off"),
        (("--pid", "1", "--ring", "x"), "not both"),
        (("--threshold", "nonsense=5", "--ring", "x"), "no kind of wait"),
        (("--ring", "x") * 257, "more than 256 --ring"),
    ],
)
def test_wrong_usage_is_one_line(words: tuple[str, ...], said: str) -> None:
    argv = [str(probe.find()), "rings", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_more_rings_than_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "rings"
    folder.mkdir()
    for number in range(4200):
        (folder / f"7-{number:x}.ring").write_bytes(b"x")
    argv = [str(probe.find()), "rings"]
    env = {**os.environ, rings.RUNTIME_DIR: str(folder)}
    done = subprocess.run(argv, capture_output=True, check=True, env=env)
    assert len(loads(done.stdout)) == 4096


def test_names_that_are_no_rings_are_left_alone(tmp_path: Path) -> None:
    good = made(tmp_path / "77-1a.ring")
    for name in ("1.ring", "-1.ring", "1-.ring", "1-G.ring", "1-1.rings", "x1-1.ring", "1-1"):
        made(tmp_path / name)
    env = {**os.environ, rings.RUNTIME_DIR: str(tmp_path)}
    done = subprocess.run([str(probe.find()), "rings"], capture_output=True, check=True, env=env)
    assert [one.path for one in loads(done.stdout)] == [good]
