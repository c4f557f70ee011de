# SPDX-License-Identifier: Apache-2.0
"""Executables that run but lie to their readers."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.root import twins
from tests.root.support import ONE_LINE, assert_frames, assert_unharmed, by_tid, run_probe, snap
from tests.support.chance import SEED
from tests.support.targets import Target, TargetError, target_path

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "bpf")


TRIES = 5
"""A damage can be too much for the program itself, or for the kernel."""


@pytest.mark.parametrize("kind", twins.damages())
@pytest.mark.parametrize("count", [2, pytest.param(100, marks=pytest.mark.nightly)])
def test_damaged_executables(tmp_path: Path, kind: str, count: int) -> None:
    """Whatever the file says, a capture ends in time and shows every thread."""
    rng = random.Random(SEED)
    ran = 0
    for nr in range(TRIES * count):
        if ran == count:
            break
        twin = tmp_path / f"twin-{nr}"
        # The dynamic linker needs much of what a static program runs without.
        source = "threads" if kind == "eh_frame_hdr" else "threads-static"
        twins.damage(target_path(source), twin, kind, rng)
        try:
            with Target("threads", "18", "25", executable=twin) as target:
                ran += 1
                taken = snap(target.pid)
                assert taken.code in (0, 3), taken.stderr
                assert taken.seconds < 60
                threads = by_tid(taken.whole)
                assert {fact.tid for fact in target.threads} <= threads.keys()
                assert all(len(t.frames) <= 512 for t in threads.values())
                assert_unharmed(target.pid)
                assert target.beats_on()
        except (TargetError, OSError):
            continue  # the kernel, or the program itself, did not survive this one
    assert ran, "no damaged twin ran"


def test_library_cut_short_after_it_was_mapped(tmp_path: Path) -> None:
    """Pages beyond the end of the file are gone: reading them must not kill the probe."""
    module = tmp_path / "target-module.so"
    shutil.copy(target_path("module.so"), module)
    content = module.read_bytes()
    with Target("frames", str(module)) as target:
        with module.open("r+b") as file:
            file.truncate(100)
        try:
            taken = snap(target.pid)
        finally:
            module.write_bytes(content)  # its thread would get SIGBUS at exit
        assert taken.code in (0, 3), taken.stderr
        threads = by_tid(taken.whole)
        assert {fact.tid for fact in target.threads} <= threads.keys()
        assert_unharmed(target.pid)
        target.ask("alive")


def test_library_overwritten_after_it_was_mapped(tmp_path: Path) -> None:
    module = tmp_path / "target-module.so"
    shutil.copy(target_path("module.so"), module)
    content = module.read_bytes()
    with Target("frames", str(module)) as target:
        with module.open("r+b") as file:
            file.write(os.urandom(4096))  # headers alone: the code stays
        try:
            taken = snap(target.pid)
        finally:
            module.write_bytes(content)
        assert taken.code in (0, 3), taken.stderr
        assert {fact.tid for fact in target.threads} <= by_tid(taken.whole).keys()
        assert_unharmed(target.pid)


CONTENTS = {
    "none": None,
    "empty": b"",
    "magic": b"\x7fELF",
    "script": b"#!/bin/true\n",
    "noise": os.urandom(65536),
    "program": Path("/bin/true").read_bytes(),
}


@pytest.mark.small
@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_file_at_the_path_of_a_deleted_binary(tmp_path: Path, content: bytes | None) -> None:
    """The path now holds something else: it must not be taken for the program that runs."""
    copy = tmp_path / "target-threads"
    shutil.copy(target_path("threads"), copy)
    with Target("threads", "18", "6", executable=copy) as target:
        copy.unlink()
        if content is not None:
            copy.write_bytes(content)
        taken = snap(target.pid)
        assert taken.code in (0, 3), taken.stderr
        assert_frames(taken.whole, target.threads, "target-threads")
        assert taken.whole.processes[0].exe_deleted
        (module,) = [module for module in taken.whole.modules if module.path == str(copy)]
        assert module.deleted


def test_core_files_that_are_none(tmp_path: Path) -> None:

    program = target_path("threads").read_bytes()
    for nr, content in enumerate([b"", b"\x7fELF", os.urandom(10000), program, program[:5000]]):
        file = tmp_path / f"core-{nr}"
        file.write_bytes(content)
        taken = run_probe("core", "--core", str(file))
        assert taken.code == 1
        assert ONE_LINE.match(taken.stderr), taken.stderr
    taken = run_probe("core", "--core", str(tmp_path / "missing"))
    assert taken.code == 1
    assert ONE_LINE.match(taken.stderr), taken.stderr


@pytest.mark.needs("gdb")
def test_core_file_cut_short(tmp_path: Path) -> None:
    core = tmp_path / "core"
    with Target("threads", "18", "25") as target:
        command = f"generate-core-file {core}"
        subprocess.run(
            ["gdb", "-nx", "-batch", "-p", str(target.pid), "-ex", command],
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )

    size = core.stat().st_size
    rng = random.Random(size)
    for share in (0.9, 0.5, 0.1):
        with core.open("r+b") as file:
            file.truncate(int(size * share) + rng.randrange(64))
        taken = run_probe("core", "--core", str(core), "--exe", str(target_path("threads")))
        assert taken.code in (1, 3), taken.stderr
        if taken.code == 1:
            assert ONE_LINE.match(taken.stderr), taken.stderr
