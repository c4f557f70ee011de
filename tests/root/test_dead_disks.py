# SPDX-License-Identifier: Apache-2.0
"""A disk that never answers keeps no command: it ends by itself, and says what is missing.

The disk is a FUSE file system that takes requests and answers none, in guests also one of an NFS
server. A command that waited for it would not end within these tests' patience.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from stallscope.collectors import probe
from stallscope.model import capturefile
from stallscope.model.capture import Capture
from stallscope.model.rings import SUFFIX
from tests.root.test_frames import chroot_with
from tests.support import filesystems, ringimages
from tests.support.nfsdisk import dead_nfs
from tests.support.rights import may_read_others
from tests.support.serving import ask_snap, serving
from tests.support.slowsyncs import dead_disk
from tests.support.targets import Target, target_path

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "probe"), pytest.mark.kernels("disks")]

Disk = AbstractContextManager[tuple[Path, Callable[[], None], Callable[[], None]]]
FUSE = pytest.param(dead_disk, id="fuse")
NFS = pytest.param(dead_nfs, id="nfs", marks=pytest.mark.needs("nfs"))
still_opens = partial(dead_disk, opens=True)
Place = Callable[[Path], AbstractContextManager[Target]]
each_disk = pytest.mark.parametrize("dead", [FUSE, NFS])

PATIENCE = 120.0
"""Seconds for a command that ends after a few."""
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
SILENT = "does not answer"


def run(
    *argv: str | Path, program: str = probe.PROBE, said: str = ""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [str(word) for word in (probe.find(program), *argv)],
        input=said.encode(),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )


def snap(pid: int, *options: str | Path) -> Capture:
    done = run("snap", "--pid", str(pid), *options)
    assert done.returncode in (0, 3), done.stderr
    return capturefile.loads(done.stdout, "stdout")


def copied(name: str, disk: Path) -> Path:
    """Copy a built target, or a library of one, to the disk."""
    file = target_path(name) if "." not in name else target_path("threads").with_name(name)
    return Path(shutil.copy(file, disk / file.name))


@contextmanager
def on_dead_disk(
    dead: Disk, name: str = "threads", over: Path | None = None
) -> Iterator[tuple[Target, Path, Callable[[], None]]]:
    """Start a target whose program is on a disk, and give what makes that answer no more.

    It is another user's: to NFS a file that the same user has open is not closed. ``over`` is a
    folder for an overlay of the disk, in which the target then sees its program.
    """
    wrapper = AS_NOBODY if may_read_others() else ()
    with dead as (disk, stop, end), ExitStack() as at_end:
        program = copied(name, disk)
        if over is not None:
            layers = f"lowerdir={disk}:{over}"
            subprocess.run(["mount", "-t", "overlay", "-o", layers, "none", over], check=True)
            at_end.callback(subprocess.run, ["umount", "-l", str(over)], check=True)
            program = over / program.name
        with Target(name, "10", "5", executable=program, wrapper=wrapper) as target:
            yield target, disk, stop
            assert target.running()
            end()


@each_disk
@pytest.mark.parametrize(
    "backend", [pytest.param("bpf", marks=pytest.mark.needs("bpf")), "proc", "ptrace"]
)
def test_its_program(backend: str, dead: Callable[[], Disk]) -> None:
    with on_dead_disk(dead()) as (target, disk, stop):
        stop()
        capture = snap(target.pid, "--backend", backend)
    assert len(capture.threads) >= 11
    (module,) = [one for one in capture.modules if one.path.startswith(str(disk))]
    assert module.error is not None
    assert SILENT in module.error
    codes = {note.code for note in capture.notes}
    assert "module-unreadable" in codes
    # Who waits for NFS can be killed.
    assert ("children-left" in codes) == (dead is dead_disk)
    # What is on other disks is read.
    libraries = [one for one in capture.modules if "/libc.so" in one.path]
    assert libraries
    assert all(one.error is None for one in libraries)


def test_its_program_that_is_opened_and_not_read() -> None:
    with on_dead_disk(still_opens()) as (target, _, stop):
        stop()
        capture = snap(target.pid, "--deadline", "5000")
    assert len(capture.threads) >= 11
    assert capture.notes


@pytest.mark.needs("bpf")
@each_disk
@pytest.mark.parametrize("overlaid", [False, True], ids=["", "overlay"])
def test_its_program_while_it_is_served(
    dead: Callable[[], Disk], overlaid: bool, tmp_path: Path
) -> None:
    """What was read of its files is used. They are open: to close them would take an answer."""
    with (
        on_dead_disk(dead(), over=tmp_path if overlaid else None) as (target, _, stop),
        serving(target.pid, "bpf", "--deadline", "5000") as process,
    ):
        stop()
        captures = [ask_snap(process) for _ in range(2)]
    for capture in captures:
        assert len(capture.threads) >= 11
        assert all(thread.frames for thread in capture.threads)


def refusals(pid: int) -> dict[str, str]:
    """Return why functions of the server are not watched, by their names."""
    done = run("waits", "--pid", str(pid), "--duration", "1")
    assert done.returncode == 0, done.stderr
    programs = json.loads(done.stdout.splitlines()[1])["programs"]  # after "ready"
    return {one["name"]: one["why_not"] for one in programs if not one["ok"]}


@pytest.mark.needs("waits", "uprobes")
def test_breakpoints_in_its_program() -> None:
    """To set one the kernel reads the file, and cannot be interrupted."""
    with on_dead_disk(dead_disk(), "server") as (target, disk, stop):
        program = disk / "target-server"
        answering = refusals(target.pid)
        stop()
        silent = refusals(target.pid)
    refused = f"{program} is on a file system that may never answer, of a network or of a program"
    assert answering["trx_weight_ge"] == refused
    assert set(answering.values()) == {refused}
    assert silent["server functions"].startswith(f"{program}: ")
    assert SILENT in silent["server functions"]


@pytest.mark.needs("waits", "uprobes")
def test_breakpoints_on_an_overlay(tmp_path: Path) -> None:
    """As of a container: the probe has no file there open for reading."""
    with (
        filesystems.mounted("overlay", tmp_path) as folder,
        Target("server", "10", "5", executable=copied("server", folder)) as target,
    ):
        assert "trx_weight_ge" not in refusals(target.pid)


@each_disk
def test_a_folder_of_debug_files(dead: Callable[[], Disk]) -> None:
    with dead() as (disk, stop, end), Target("threads", "10", "5") as target:
        (disk / ".build-id").mkdir()
        stop()
        capture = snap(target.pid, "--debug-dir", disk)
        assert target.running()
        end()
    assert len(capture.threads) >= 11
    assert any(frame.symbol for thread in capture.threads for frame in thread.frames)


@each_disk
def test_the_output(dead: Callable[[], Disk]) -> None:
    with dead() as (disk, stop, end), Target("threads", "3", "5") as target:
        stop()
        done = run("snap", "--pid", str(target.pid), "--output", disk / "a.jsonl")
        assert target.running()
        end()
    assert done.returncode not in (0, 3)
    assert done.stderr.count(b"\n") == 1


def test_a_folder_of_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    with dead_disk() as (disk, stop, end):
        monkeypatch.setenv("STALLSCOPE_RUNTIME_DIR", str(disk))
        stop()
        done = run("rings")
        end()
    (found,) = map(json.loads, done.stdout.splitlines())
    assert found["path"] == str(disk)
    assert SILENT in found["error"]
    assert done.returncode == 0, done.stderr


def test_a_folder_of_rings_hides_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STALLSCOPE_RUNTIME_DIR", raising=False)
    folder = Path(tempfile.mkdtemp(prefix="stallscope-", dir="/dev/shm"))
    try:
        path = ringimages.made(folder / f"4711-1{SUFFIX}")
        with dead_disk() as (disk, stop, end):
            monkeypatch.setenv("XDG_RUNTIME_DIR", str(disk))
            stop()
            done = run("rings")
            end()
    finally:
        shutil.rmtree(folder)
    rings = map(json.loads, done.stdout.splitlines())
    errors = {ring["path"]: ring.get("error") for ring in rings}
    assert SILENT in errors[f"{disk}/stallscope"]
    assert errors[str(path)] is None


@contextmanager
def root_on(disk: Path) -> Iterator[Target]:
    """Start a target in a mount namespace, with the disk for its root."""
    inside = chroot_with(target_path("threads"), disk)
    script = f"mount -t proc proc {disk}/proc && exec chroot {disk} {inside} 10 5"
    wrapper = ["unshare", "--mount", "sh", "-c", script]
    with Target("threads", executable=Path(inside), wrapper=wrapper) as target:
        yield target


@contextmanager
def library_on(disk: Path) -> Iterator[Target]:
    library = copied("target-module.so", disk)
    with Target("threads", "10", "5", env={"LD_PRELOAD": str(library)}) as target:
        yield target


@contextmanager
def data_on(disk: Path) -> Iterator[Target]:
    with Target("writes", str(disk)) as target:
        assert target.ask("pwrite ibdata1 1 500")["done"] == 1
        yield target


SNAP, CACHE, STORAGE = ("snap",), ("cache",), ("storage", "--seconds", "1")
POKE = (probe.POKE, "--hash", "--open-files", "--deadline", "3000")


def assert_ends(command: tuple[str, ...], place: Place, dead: Disk) -> None:
    pokes = command is POKE
    words = command[1:] if pokes else command
    with dead as (disk, stop, end), place(disk) as target:
        stop()
        done = run(*words, "--pid", str(target.pid), program=probe.POKE if pokes else probe.PROBE)
        assert target.running()
        end()
    assert done.returncode >= 0
    for line in done.stdout.splitlines():
        json.loads(line)
    assert done.stderr.count(b"\n") <= 1


@pytest.mark.parametrize(
    "command",
    [
        SNAP,
        ("snap", "--backend", "proc"),
        CACHE,
        STORAGE,
        ("waits", "--duration", "1", "--backend", "poll"),
        ("waits", "--duration", "1"),
        ("growth", "--duration", "1"),
        ("memory",),
        ("rings",),
        POKE,
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("place", [root_on, library_on, data_on])
def test_each_command_ends(command: tuple[str, ...], place: Place) -> None:
    """Whatever it says of such a process."""
    assert_ends(command, place, dead_disk())


@pytest.mark.needs("nfs")
@pytest.mark.parametrize(
    ("command", "place"),
    [
        (SNAP, root_on),
        (SNAP, library_on),
        (POKE, library_on),
        (CACHE, data_on),
        (STORAGE, data_on),
        (POKE, data_on),
    ],
    ids=lambda part: part.__name__ if callable(part) else part[0],
)
def test_a_command_ends_on_nfs(command: tuple[str, ...], place: Place) -> None:
    assert_ends(command, place, dead_nfs())


@pytest.mark.parametrize(
    ("command", "dead"),
    [
        ("core", dead_disk),
        ("core", still_opens),
        ("ring", dead_disk),
        ("pack", still_opens),
        ("symbolize", still_opens),
        pytest.param("core", dead_nfs, marks=pytest.mark.needs("nfs")),
        pytest.param("pack", dead_nfs, marks=pytest.mark.needs("nfs")),
    ],
)
def test_a_file_to_read(tmp_path: Path, command: str, dead: Callable[[], Disk]) -> None:
    """Its disk does not answer any more, or still opens it."""
    words = {
        "core": ("--core", "{}", "--deadline", "5000"),
        "ring": ("--ring", "{}", "--deadline", "5000"),
        "pack": ("--output", tmp_path / "a.pack", "{}"),
        "symbolize": (),
    }[command]
    with dead() as (disk, stop, end):
        file = copied("threads", disk)
        stop()
        done = run(
            command,
            *(str(word).format(file) for word in words),
            said=f"1 0x1000 - {file}\n",
        )
        end()
    assert done.returncode > 0
    assert done.stderr.count(b"\n") == 1
