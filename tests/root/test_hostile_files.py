# SPDX-License-Identifier: Apache-2.0
"""Executables that run but lie to their readers."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.root import twins
from tests.root.support import ONE_LINE, assert_frames, assert_unharmed, by_tid, run_probe, snap
from tests.support.chance import SEED
from tests.support.servers import wait_until
from tests.support.targets import Target, TargetError, target_path
from tests.support.watching import Waits

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


@pytest.mark.small
@pytest.mark.needs("waits")
@pytest.mark.parametrize("kind", ["debug", "pack"])
def test_symbol_inside_an_instruction(tmp_path: Path, kind: str) -> None:
    """No breakpoint is set where no function of the mapped file starts."""
    name, source = "srv_suspend_mysql_thread", target_path("server")
    shifted, twin, folder = tmp_path / "shifted", tmp_path / "twin", tmp_path / kind
    twins.shift(source, shifted, name, 1)
    if kind == "debug":
        twins.separate(shifted, twin, folder)
        (file,) = folder.rglob("*.debug")
    else:
        twins.strip(shifted, twin)
        folder.mkdir()
        file = folder / f"{twins.build_id(twin)}.pack"
        assert run_probe("pack", str(shifted), "--output", str(file)).code == 0
        file.chmod(0o644)
    options = ("--interval", "50", f"--{kind}-dir", str(folder))
    with Target("server", executable=twin) as target, Waits(*options, pids=(target.pid,)) as waits:
        (program,) = [one for one in waits.line().programs if one.name == name]
        target.ask("row")
        target.ask("release")
        assert target.running()
        assert not program.ok
        assert program.why_not == f"no function of {twin} starts at the symbol {name} of {file}"


LONG_NAME = "_Z8000" + "n" * 8000 + "v"
LONG_NAMED = f"""
.intel_syntax noprefix
.globl _start
.type _start, @function
_start:
    .cfi_startproc
    .cfi_undefined rip
    lea rbx, [rip + {LONG_NAME}]
    push 0
    mov rcx, 500
again:
    lea rax, [rbx + rcx * 8 + 16]
    push rax
    loop again
    jmp {LONG_NAME}
    .cfi_endproc
.globl {LONG_NAME}
.type {LONG_NAME}, @function
{LONG_NAME}:
    .cfi_startproc
    .cfi_def_cfa rsp, 8
    mov eax, 34 # pause
    syscall
    jmp {LONG_NAME}
    .fill 8192, 1, 0x90
    .cfi_endproc
.size {LONG_NAME}, . - {LONG_NAME}
.section .note.GNU-stack,"",@progbits
"""
"""A function with a name of 8 KB, which each word of its stack makes a frame of."""


def test_long_names_are_written_once(tmp_path: Path) -> None:
    """A program makes no capture that is a thousand times as large as it is itself."""
    program, code = tmp_path / "long", tmp_path / "long.s"
    code.write_text(LONG_NAMED)
    subprocess.run(["gcc", "-nostdlib", "-static", "-o", program, code], check=True)
    processes = [subprocess.Popen([program]) for _ in range(4)]
    try:
        calls = [Path(f"/proc/{process.pid}/syscall") for process in processes]
        wait_until(
            lambda: all(call.read_text().startswith("34 ") for call in calls), "all of them pause"
        )
        first, *others = (str(process.pid) for process in processes)
        taken = snap(int(first), *(word for pid in others for word in ("--pid", pid)))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert len(taken.whole.threads) == len(processes)
    for thread in taken.whole.threads:
        assert len(thread.frames) > 400
        assert {len(frame.symbol or "") for frame in thread.frames[:-1]} == {len(LONG_NAME)}
    assert len(taken.stdout) < 1_000_000


PT_LOAD, PT_NOTE = 1, 4
NT_PRSTATUS, NT_FILE = 1, 0x46494C45


def core_file(path: Path, notes: bytes, loads: Sequence[int] = (), copies: int = 1) -> Path:
    """Write a core with pages of code at ``loads``, and its notes in so many segments."""
    count = copies + len(loads)
    data = 64 + 56 * count
    head = struct.pack("=16xHHIQQQIHHHHHH", 4, 62, 1, 0, 64, 0, 0, 64, 56, count, 0, 0, 0)
    table = struct.pack("=IIQQQQQQ", PT_NOTE, 4, data, 0, 0, len(notes), 0, 4) * copies
    for load in loads:
        table += struct.pack("=IIQQQQQQ", PT_LOAD, 5, data, load, 0, 0, 4096, 4096)
    path.write_bytes(b"\x7fELF\2\1\1" + head[7:] + table + notes)
    return path


def core_note(kind: int, content: bytes) -> bytes:
    padding = bytes(-len(content) % 4)
    return struct.pack("=3I8s", 5, len(content), kind, b"CORE") + content + padding


def test_core_file_names_a_file_that_others_may_not_read(tmp_path: Path) -> None:
    """Who gives root a core does not choose which files root reads."""
    named = tmp_path / "named"
    shutil.copyfile(target_path("threads"), named)
    files = struct.pack("=5Q", 1, 4096, 0x10000, 0x11000, 0) + os.fsencode(named) + b"\0"
    thread = struct.pack("=240xQ88x", 0x10010)  # its program counter
    notes = core_note(NT_PRSTATUS, thread) + core_note(NT_FILE, files)
    core = core_file(tmp_path / "core", notes, [0x10000])
    for mode, is_read in ((0o600, False), (0o640, False), (0o644, True), (0o700, True)):
        named.chmod(mode)
        (module,) = run_probe("core", "--core", str(core)).whole.modules
        assert module.path == str(named)
        assert (module.error is None) == is_read, module.error


def test_core_file_that_takes_long(tmp_path: Path) -> None:
    """A small file that says that it has terabytes of notes."""
    core = core_file(tmp_path / "core", bytes(64 << 20), copies=60000)
    taken = run_probe("core", "--core", str(core), "--deadline", "1000")
    assert taken.code == 1
    assert ONE_LINE.match(taken.stderr), taken.stderr


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
