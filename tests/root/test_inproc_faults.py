# SPDX-License-Identifier: Apache-2.0
"""Whatever a process with the library inside does to itself, or is done to it: it goes on, and
what it has recorded can be read.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from stallscope.collectors import probe
from stallscope.collectors import rings as find_rings
from stallscope.main import main
from stallscope.model import capturefile
from stallscope.model.rings import Life
from stallscope.model.waitkinds import THRESHOLDS
from tests.root.support import run_probe
from tests.support import ringimages
from tests.support.chance import SEED
from tests.support.servers import PATIENCE, wait_until
from tests.support.servers.inside import RINGS, one_ring, preloaded
from tests.support.targets import Target, trouble

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "library")]

NOBODY = 65534
NO_CORE = ("prlimit", "--core=0")
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
TRIES = 5
"""Killed before it has waited, a process leaves nothing: so many lives there are for each ring."""
BOUND_SECONDS = 0.3
"""The longest life of a process that is killed."""


STAT = struct.Struct("=128x40Q")
"""struct stall_wait_stat of ebpf/waits.h: how many waits were how long."""


def ended_waits(ring: Path) -> int:
    """Return how many waits have ended: the header's own count is a rough one."""
    data = ring.read_bytes()
    fields = ringimages.CONSTANT.unpack_from(data)
    first, count = fields[6], fields[12] + len(THRESHOLDS)
    stats = (STAT.unpack_from(data, first + number * STAT.size) for number in range(count))
    return sum(map(sum, stats))


@contextmanager
def saying(
    name: str, *arguments: str, env: dict[str, str], wrapper: Sequence[str] = ()
) -> Iterator[tuple[Target, Path]]:
    """Run a target with what it says on stderr in a file."""
    with tempfile.TemporaryDirectory(prefix="stallscope-said-") as folder:
        said = Path(folder) / "stderr"
        redirect = ("sh", "-c", f'exec "$@" 2>{said}', "sh")
        with Target(name, *arguments, env=env, wrapper=(*redirect, *wrapper)) as target:
            yield target, said


def lines_of(said: Path) -> list[str]:
    return said.read_text().splitlines()


def assert_readable(ring: Path) -> None:
    """Read a ring that a dead process has left, as everybody may."""
    assert find_rings.look([ring])[0].life is not Life.ENDED
    done = run_probe("ring", "--ring", str(ring))
    assert done.code in (0, 3), done.stderr
    capture = capturefile.loads(done.stdout, str(ring))
    assert capture.backend == "inproc"
    assert all(thread.label is None or thread.frames is not None for thread in capture.threads)
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["analyze", "--json", str(ring)]) in (0, 3)


@pytest.mark.needs("probe")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.nightly)])
def test_a_process_that_is_killed_at_any_moment_leaves_a_ring(
    rings: Path, number: signal.Signals, kills: int
) -> None:
    chance = random.Random(SEED)
    read = 0
    for _ in range(TRIES * kills):
        if read == kills:
            break
        env = preloaded(rings, STALLSCOPE_THRESHOLD="lock=0")
        with Target("storm", "8", "1000", "1000", env=env, wrapper=NO_CORE) as target:
            target.send("run 10000")
            with contextlib.suppress(subprocess.TimeoutExpired):
                target.wait(chance.uniform(0, BOUND_SECONDS))
            os.kill(target.pid, number)
            assert target.wait() == -number
        for ring in rings.glob(RINGS):
            assert_readable(ring)
            ring.unlink()
            read += 1
        # No part of a file has a ring's name; a part under another one was being made.
        for part in rings.iterdir():
            part.unlink()
    assert read == kills


@pytest.mark.parametrize("call", ["exit", "_exit"])
def test_a_process_that_ends_with_an_error_leaves_a_ring(rings: Path, call: str) -> None:
    """As MySQL does: its handler of SIGSEGV ends so, and does not die by the signal."""
    for status, left in ((0, 0), (1, 1)):
        with Target("lives", env=preloaded(rings)) as target:
            target.ask("wait")
            target.send(f"{call} {status}")
            assert target.wait() == status
        found = find_rings.look(list(rings.glob(RINGS)))
        assert [(one.ring and one.ring.pid, one.life) for one in found] == [
            (target.pid, Life.LEFT)
        ] * left


def test_a_server_that_crashes_again_and_again_fills_no_memory(rings: Path) -> None:
    pids = []
    for _ in range(12):
        with Target("lives", env=preloaded(rings), wrapper=NO_CORE) as target:
            target.ask("wait")
            os.kill(target.pid, signal.SIGKILL)
            target.wait()
            pids.append(target.pid)
    kept = {find_rings.read(ring).pid for ring in rings.glob(RINGS)}
    assert kept == set(pids[-5:])  # the last one and the four that it has kept


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(options), "none", str(folder)], check=True
    )
    try:
        yield folder
    finally:
        # A reader of /proc/PID/maps keeps what was in it for a moment.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("kib", [0, 4, 64, 512, 2048, 8192])
def test_a_full_disk_costs_the_ring_and_never_the_server(tmp_path: Path, kib: int) -> None:
    """With room for nothing, for a part of the ring, and for some threads of many."""
    folder = tmp_path / "disk"
    with mounted(folder, f"size={max(kib, 4)}k") as disk:
        if not kib:
            (disk / "full").write_bytes(b"x" * 4096)
        with saying("threads", "300", "6", "--wait", "cond", env=preloaded(disk)) as (one, said):
            assert not trouble(one.pid)
            assert "ns" in one.ask("gap") or one.running()
            rings = list(disk.glob(RINGS))
            if rings:
                seen = find_rings.read(rings[0])
                assert seen.threads <= 301
                assert seen.threads == 301 or seen.lost.get("slots-full") or kib >= 4096
            else:
                (line,) = lines_of(said)
                assert line.startswith("stallscope: ")
                assert [path.name for path in disk.iterdir()] == ([] if kib else ["full"])
            assert one.close() == 0
        if kib == 8192:
            assert rings


@pytest.mark.parametrize("name", ["missing", "closed", "file"])
def test_a_folder_that_does_not_do_gets_one_line(open_to_all: Path, name: str) -> None:
    folder = open_to_all / name
    if name == "closed":
        folder.mkdir(0o755)  # root's
    elif name == "file":
        folder.write_text("")
    env = preloaded(folder)
    with saying("lives", env=env, wrapper=AS_NOBODY) as (target, said):
        for _ in range(5):
            target.ask("wait")
        (line,) = lines_of(said)
        assert line.startswith("stallscope: ")
        assert str(folder) in line
        assert target.close() == 0
    assert not list(open_to_all.rglob(RINGS))


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """Return a folder that every user may read, with the library in it."""
    folder = Path(tempfile.mkdtemp(prefix="stallscope-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_read_only_folder_gets_one_line(tmp_path: Path) -> None:
    with (
        mounted(tmp_path / "disk", "size=32m", "ro") as disk,
        saying("lives", env=preloaded(disk)) as (target, said),
    ):
        for _ in range(5):
            target.ask("wait")
        (line,) = lines_of(said)
        assert line.startswith("stallscope: ")
        assert "read-only" in line
        assert target.close() == 0


@pytest.mark.needs("probe")
def test_two_servers_with_one_folder_each_have_a_ring(rings: Path) -> None:
    env = preloaded(rings)
    with Target("lives", env=env) as one, Target("lives", env=env) as other:
        for _ in range(3):
            one.ask("wait")
        other.ask("wait")
        of = {find_rings.read(ring).pid: ended_waits(ring) for ring in rings.glob(RINGS)}
        assert of == {one.pid: 3, other.pid: 1}
    assert not list(rings.iterdir())


def test_files_under_numbers_that_were_closed_are_not_written_to(rings: Path) -> None:
    with saying("lives", env=preloaded(rings)) as (target, said):
        target.ask("wait")
        before = ended_waits(one_ring(rings))
        target.ask("close")
        for _ in range(20):
            target.ask("wait")
        assert target.ask("intact") == {"intact": True}
        assert ended_waits(one_ring(rings)) == before + 20
        assert lines_of(said) == []


def test_files_that_are_closed_before_the_first_wait(rings: Path) -> None:
    with Target("lives", env=preloaded(rings)) as target:
        target.ask("close")
        target.ask("wait")
        assert target.ask("intact") == {"intact": True}
        assert ended_waits(one_ring(rings)) == 1


def test_a_complaint_does_not_go_into_a_file_that_took_the_place_of_stderr(tmp_path: Path) -> None:
    with saying("lives", env=preloaded(tmp_path / "missing")) as (target, said):
        target.ask("close")  # stderr, too
        target.ask("wait")
        assert target.ask("intact") == {"intact": True}
        assert lines_of(said) == []


@pytest.mark.parametrize("change", ["undumpable", f"user {NOBODY}", "root"])
def test_a_process_that_changes_itself_is_recorded_further(
    rings: Path, tmp_path: Path, change: str
) -> None:
    with saying("lives", env=preloaded(rings)) as (target, said):
        target.ask("wait")
        target.ask(f"root {tmp_path}" if change == "root" else change)
        for _ in range(20):
            target.ask("wait")
        assert ended_waits(one_ring(rings)) == 21
        assert lines_of(said) == []


@pytest.mark.parametrize("change", ["undumpable", f"user {NOBODY}"])
def test_a_process_that_changes_itself_first_has_a_ring(rings: Path, change: str) -> None:
    rings.chmod(0o700)
    os.chown(rings, NOBODY if "user" in change else 0, -1)
    with Target("lives", env=preloaded(rings)) as target:
        target.ask(change)
        target.ask("wait")
        assert ended_waits(one_ring(rings)) == 1


def test_a_root_folder_without_a_place_for_rings_gets_one_line(rings: Path, tmp_path: Path) -> None:
    with saying("lives", env=preloaded(rings)) as (target, said):
        target.ask(f"root {tmp_path}")
        for _ in range(5):
            target.ask("wait")
        (line,) = lines_of(said)
        assert line.startswith("stallscope: ")
        assert target.close() == 0
    assert not list(rings.iterdir())


def test_a_child_has_a_ring_of_its_own(rings: Path) -> None:
    with Target("lives", env=preloaded(rings)) as target:
        target.ask("wait")
        target.ask("wait")
        child = target.ask("fork")["pid"]
        assert child != target.pid
        assert target.wait() == 0
        assert not list(rings.iterdir())  # the parent has taken its own away
        target.ask("wait")
        ring = one_ring(rings)
        assert (find_rings.read(ring).pid, ended_waits(ring)) == (child, 1)


@pytest.mark.needs("probe")
def test_a_process_that_executes_itself_has_a_new_ring(rings: Path) -> None:
    with Target("lives", env=preloaded(rings)) as target:
        target.ask("wait")
        target.ask("wait")
        assert target.ask("exec")["pid"] == target.pid
        target.ask("wait")
        newest = max(rings.glob(RINGS), key=lambda ring: find_rings.read(ring).created_ns)
        assert (find_rings.read(newest).pid, ended_waits(newest)) == (target.pid, 1)
        done = run_probe(
            *("snap", "--backend", "inproc", "--pid", str(target.pid)),
            prefix=("env", f"STALLSCOPE_RUNTIME_DIR={rings}"),
        )
        assert done.code == 0, done.stderr
    assert newest not in rings.iterdir()


SYNCS_AND_EXECUTES = """
import os, sys, tempfile
with tempfile.TemporaryFile(dir="/dev/shm") as file:
    os.fsync(file.fileno())
print("synced", flush=True)
os.read(0, 1)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.needs("root", "probe")
def test_the_ring_of_the_program_before_is_nobody_s(rings: Path) -> None:
    """An execve changes neither pid nor start time, and the new program makes no ring."""
    words = ("snap", "--backend", "inproc", "--ring", str(rings), "--pid")
    watch = ("waits", "--backend", "inproc", "--ring", str(rings), "--interval", "20", "--pid")
    with subprocess.Popen(
        [sys.executable, "-c", SYNCS_AND_EXECUTES, shutil.which("cat") or "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **preloaded(rings)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"synced\n"
        ring = one_ring(rings)
        assert ringimages.CONSTANT.unpack_from(ring.read_bytes())[26]
        assert find_rings.look([ring])[0].life is Life.ALIVE
        assert run_probe(*words, str(process.pid)).code == 0
        with subprocess.Popen(
            [str(probe.find()), *watch, str(process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as watcher:
            assert watcher.stdin is not None
            assert watcher.stdout is not None
            assert b"ready" in watcher.stdout.readline()
            lines = watcher.stdout
            mark_a_wait(ring)
            wait_until(lambda: in_flight(lines), "the wait is seen")
            process.stdin.write(b".executed\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"executed\n"
            wait_until(lambda: not in_flight(lines), "it is over with its program")
            watcher.stdin.close()
        refused = run_probe(*words, str(process.pid))
        assert refused.code == 1
        assert f"no ring of process {process.pid}" in refused.stderr
        assert find_rings.look([ring])[0].life is Life.LEFT
        assert trouble(process.pid) == []
        process.stdin.close()


def mark_a_wait(ring: Path) -> None:
    """Make the first thread seem to be in its wait still: its number becomes odd."""
    with ring.open("r+b") as file:
        file.seek(32 - 8)  # slots_offset
        (slots,) = struct.unpack("=Q", file.read(8))
        file.seek(slots)
        (seq,) = struct.unpack("=I", file.read(4))
        file.seek(slots)
        file.write(struct.pack("=I", seq | 1))


def in_flight(lines: IO[bytes]) -> bool:
    line = json.loads(lines.readline())
    return any(kind["in_flight"] for kind in line["kinds"].values())


PROGRAMS = (
    ("ls", "/"),
    ("sh", "-c", "echo out; echo err >&2; exit 3"),
    ("bash", "-c", "sleep 0; (exit 4) & wait $!"),
    (sys.executable, "-c", "import json; print(json.dumps([1]))"),
    ("find", "/proc/self/fdinfo", "-maxdepth", "0"),
    ("tar", "--version"),
)


@pytest.mark.parametrize("argv", PROGRAMS, ids=lambda argv: Path(argv[0]).name)
def test_a_program_that_is_no_server_works_as_before(rings: Path, argv: tuple[str, ...]) -> None:
    plain = subprocess.run(argv, capture_output=True, check=False, timeout=PATIENCE)
    env = {**os.environ, **preloaded(rings)}
    loaded = subprocess.run(argv, capture_output=True, check=False, timeout=PATIENCE, env=env)
    assert (loaded.returncode, loaded.stdout, loaded.stderr) == (
        plain.returncode,
        plain.stdout,
        plain.stderr,
    )
    assert not list(rings.iterdir())


def test_the_probe_itself_can_have_the_library_inside(rings: Path) -> None:
    done = subprocess.run(
        [str(probe.find()), "--version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env={**os.environ, **preloaded(rings)},
    )
    assert (done.returncode, done.stderr) == (0, "")
