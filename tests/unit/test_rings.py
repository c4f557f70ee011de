# SPDX-License-Identifier: Apache-2.0
"""What ``stallscope-probe rings`` says of rings and writes to them; hostile files."""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallscope.collectors import probe, rings
from stallscope.model.rings import Found, Ring, RingError, loads
from stallscope.model.waitkinds import SOURCE_LOST, THRESHOLDS
from tests.support.ringimages import COMMANDS, COMMANDS_AT, SIZE, made

__all__: list[str] = []

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


def test_the_switch_and_the_thresholds_change_nothing_else(tmp_path: Path) -> None:
    path = made(tmp_path / "r.ring")
    before = path.read_bytes()
    rings.switch(path, on=False)
    rings.set_thresholds(path, ["lock=50", "write=0.000001"])
    ring = rings.read(path)
    assert not ring.enabled
    assert ring.thresholds_ms["lock"] == 50
    assert ring.thresholds_ms["write"] == 1e-6
    assert ring.thresholds_ms["fsync"] == 100
    after = path.read_bytes()
    ends = (COMMANDS_AT, COMMANDS_AT + COMMANDS.size)
    assert before[: ends[0]] == after[: ends[0]]
    assert before[ends[1] :] == after[ends[1] :]
    rings.switch(path, on=True)
    rings.set_thresholds(path, ["100"])
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", THRESHOLDS)
def test_each_threshold_has_its_place(tmp_path: Path, kind: str) -> None:
    path = made(tmp_path / "r.ring")
    rings.set_thresholds(path, [f"{kind}=7"])
    assert rings.read(path).thresholds_ms == {**dict.fromkeys(THRESHOLDS, 100.0), kind: 7.0}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: b"", "not a ring"),
        (lambda data: data[:600], "not a ring"),
        (lambda data: b"\x7fELF" + data[4:], "not a ring"),
        (lambda data: data[:8] + b"\x09" + data[9:], "version 9"),
        (lambda data: data + b"x", "longer than it says"),
        (lambda data: data[:-1], "it was cut"),
    ],
)
def test_a_file_that_is_no_ring_is_reported(
    tmp_path: Path, damage: Callable[[bytes], bytes], said: str
) -> None:
    path = made(tmp_path / "r.ring")
    path.write_bytes(damage(path.read_bytes()))
    before = path.read_bytes()
    for act in (
        rings.read,
        lambda path: rings.switch(path, on=False),
        lambda path: rings.set_thresholds(path, ["5"]),
    ):
        with pytest.raises(RingError, match=said) as error:
            act(path)
        assert str(path) in str(error.value)
        assert path.read_bytes() == before


def test_more_slots_than_the_file_holds(tmp_path: Path) -> None:
    with pytest.raises(RingError, match="do not fit"):
        rings.read(made(tmp_path / "r.ring", slots=16384))


def test_links_and_pipes_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "link.ring").symlink_to(made(tmp_path / "r.ring"))
    with pytest.raises(RingError, match="symbolic link"):
        rings.switch(tmp_path / "link.ring", on=False)
    os.mkfifo(tmp_path / "pipe.ring")
    with pytest.raises(RingError, match="not a regular file"):
        rings.read(tmp_path / "pipe.ring")
    with pytest.raises(RingError, match="No such file"):
        rings.read(tmp_path / "nothing.ring")


def test_any_bytes_are_a_ring_or_an_error(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    good = made(tmp_path / "r.ring").read_bytes()
    paths = [tmp_path / f"{number}.ring" for number in range(300)]
    for path in paths:
        data = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(8, SIZE)] = chance.randrange(256)
        path.write_bytes(data)
    found = rings.look(paths)
    assert [one.path for one in found] == paths
    assert all((one.ring is None) == (one.error is not None) for one in found)
    read = [one.ring for one in found if one.ring is not None]
    assert read, "some damage is harmless"
    assert all(ring.threads <= ring.slots for ring in read)


@pytest.mark.parametrize("data", [b"nonsense", b"[]", b'{"life": "alive"}', b'{"path": "\xff"}'])
def test_a_probe_that_says_something_else(data: bytes) -> None:
    with pytest.raises(RingError, match="not understood"):
        loads(data)


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a folder that all users may look into."""
    with tempfile.TemporaryDirectory(prefix="stallscope-public-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.needs("root")
def test_root_writes_to_the_ring_of_another_user(tmp_path: Path) -> None:
    path = made(tmp_path / "r.ring")
    os.chown(path, 54321, 54321)
    rings.switch(path, on=False)
    ring = rings.read(path)
    assert (ring.enabled, ring.owner) == (False, 54321)


@pytest.mark.needs("root")
def test_what_may_only_be_read_is_not_written(public: Path) -> None:
    path = made(public / "r.ring")
    path.chmod(0o444)
    argv = ["setpriv", "--reuid=54321", "--clear-groups", "--bounding-set=-all", str(probe.find())]
    done = subprocess.run(
        [*argv, "rings", "--ring", str(path), "--recording", "off"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot write to the ring" in done.stderr
    assert rings.read(path).enabled


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
