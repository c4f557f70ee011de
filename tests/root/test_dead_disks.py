# SPDX-License-Identifier: Apache-2.0
"""A disk that never answers keeps no command: it ends by itself, and says what is missing.

The disk is a FUSE file system that takes requests and answers none. Who waits for it cannot be
killed, so a command that did would not end within these tests' patience.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stallscope.collectors import probe
from stallscope.model import capturefile
from stallscope.model.capture import Capture
from tests.support.serving import ask_snap, serving
from tests.support.slowsyncs import dead_disk
from tests.support.targets import Target, target_path

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "probe", "bpf")

PATIENCE = 120.0
"""Seconds for a command that ends after a few."""
SILENT = "does not answer"


def run(*argv: str | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [str(word) for word in (probe.find(), *argv)],
        stdin=subprocess.DEVNULL,
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
def on_dead_disk(name: str = "threads") -> Iterator[tuple[Target, Path, Callable[[], None]]]:
    """Start a target whose program is on a disk, and give what makes that answer no more."""
    with dead_disk() as (disk, stop, end):
        program = copied(name, disk)
        with Target(name, "10", "5", executable=program) as target:
            yield target, disk, stop
            assert target.running()
            end()


@pytest.mark.parametrize("backend", ["bpf", "proc", "ptrace"])
def test_its_program(backend: str) -> None:
    with on_dead_disk() as (target, disk, stop):
        stop()
        capture = snap(target.pid, "--backend", backend)
    assert len(capture.threads) >= 11
    (module,) = [one for one in capture.modules if one.path.startswith(str(disk))]
    assert module.error is not None
    assert SILENT in module.error
    assert "module-unreadable" in [note.code for note in capture.notes]
    # What is on other disks is read.
    libraries = [one for one in capture.modules if "/libc.so" in one.path]
    assert libraries
    assert all(one.error is None for one in libraries)


def test_its_program_while_it_is_served() -> None:
    """The file is open, and its pages are read when it is needed."""
    with (
        on_dead_disk() as (target, _, stop),
        serving(target.pid, "bpf", "--deadline", "5000") as process,
    ):
        stop()
        captures = [ask_snap(process) for _ in range(2)]
    for capture in captures:
        assert len(capture.threads) >= 11
        assert capture.notes


def refusals(pid: int) -> dict[str, str]:
    """Return why functions of the server are not watched, by their names."""
    done = run("waits", "--pid", str(pid), "--duration", "1")
    assert done.returncode == 0, done.stderr
    programs = json.loads(done.stdout.splitlines()[1])["programs"]  # after "ready"
    return {one["name"]: one["why_not"] for one in programs if not one["ok"]}


@pytest.mark.needs("uprobes")
def test_breakpoints_in_its_program() -> None:
    """To set one the kernel reads the file, and cannot be interrupted."""
    with on_dead_disk("server") as (target, disk, stop):
        program = disk / "target-server"
        answering = refusals(target.pid)
        stop()
        silent = refusals(target.pid)
    refused = f"{program} is on a file system that may never answer, of a network or of a program"
    assert answering["trx_weight_ge"] == refused
    assert set(answering.values()) == {refused}
    assert silent["server functions"].startswith(f"{program}: ")
    assert SILENT in silent["server functions"]


def test_a_folder_of_debug_files() -> None:
    with dead_disk() as (disk, stop, end), Target("threads", "10", "5") as target:
        (disk / ".build-id").mkdir()
        stop()
        capture = snap(target.pid, "--debug-dir", disk)
        assert target.running()
        end()
    assert len(capture.threads) >= 11
    assert any(frame.symbol for thread in capture.threads for frame in thread.frames)


def test_the_output() -> None:
    with dead_disk() as (disk, stop, end), Target("threads", "3", "5") as target:
        stop()
        done = run("snap", "--pid", str(target.pid), "--output", disk / "a.jsonl")
        assert target.running()
        end()
    assert done.returncode not in (0, 3)
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        ("cache",),
        ("storage", "--seconds", "1"),
        ("waits", "--duration", "1", "--backend", "poll"),
        ("waits", "--duration", "1"),
        ("growth", "--duration", "1"),
        ("memory",),
        ("rings",),
    ],
    ids=" ".join,
)
def test_its_files(command: tuple[str, ...]) -> None:
    """Whatever a command says of such a process, it ends."""
    with dead_disk() as (disk, stop, end), Target("writes", str(disk)) as target:
        assert target.ask("pwrite ibdata1 1 500")["done"] == 1
        stop()
        done = run(command[0], "--pid", str(target.pid), *command[1:])
        assert target.running()
        end()
    assert done.returncode >= 0
    for line in done.stdout.splitlines():
        json.loads(line)
    assert done.stderr.count(b"\n") <= 1
