# SPDX-License-Identifier: Apache-2.0
"""The file that holds a thread up, and a file system that is frozen."""

from __future__ import annotations

import msgspec
import pytest

from stallscope.analyzers import files
from stallscope.analyzers.catalog import load
from stallscope.analyzers.engine import analyze
from stallscope.model import capturefile, capturewriter
from stallscope.model.capture import Capture, File, Frame, Process, Syscall, Thread
from stallscope.reporters import firstlines

FILE = File("/var/lib/mysql/#innodb_redo/#ib_redo7", "/var/lib/mysql", "/dev/sdb1", "ext4")
THAWED = ("percpu_rwsem_wait", "vfs_write", "__x64_sys_pwrite64", "do_syscall_64")
BEFORE_5_10 = ("__sb_start_write", "vfs_write", "sys_pwrite64")
OF_A_GROUP = ("percpu_rwsem_wait", "__percpu_down_read", "cgroup_can_fork", "copy_process")
OF_A_DEVICE = ("folio_wait_bit", "folio_wait_writeback", "file_write_and_wait_range")


def thread(
    kernel: tuple[str, ...] = THAWED,
    *,
    call: str = "pwrite64",
    state: str = "D",
    file: File | None = FILE,
    tid: int = 7,
) -> Thread:
    return Thread(
        tid=tid,
        name="writer",
        state=state,
        syscall=Syscall(18, call, (5,)),
        file=file,
        frames=tuple(Frame(symbol=name) for name in ("pwrite", "save_page", "main")),
        kernel_frames=tuple(Frame(symbol=name, kernel=True) for name in kernel),
    )


def capture(*threads: Thread) -> Capture:
    return Capture(
        backend="bpf", processes=(Process(pid=5, comm="stored", exe="/usr/bin/stored"),),
        threads=threads,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "frozen"),
    [
        (thread(), True),
        (thread(BEFORE_5_10), True),
        (thread(call="openat", file=None), True),
        (thread(state="S"), False),
        (thread(OF_A_GROUP, call="clone", file=None), False),
        (thread(OF_A_DEVICE, call="fdatasync"), False),
        (thread(("vfs_write", *THAWED[2:], "more", "percpu_rwsem_wait")), False),
        (Thread(tid=1), False),
    ],
)
def test_a_frozen_file_system_is_known_by_the_kernels_frames(found: Thread, frozen: bool) -> None:
    assert files.is_frozen(found) is frozen


def test_the_file_in_words() -> None:
    where = "on /dev/sdb1 (ext4, mounted at /var/lib/mysql)"
    assert files.text(thread()) == f"pwrite64 of {FILE.path} {where}"
    assert files.text(thread(), brief=True) == f"pwrite64 of …/#innodb_redo/#ib_redo7 {where}"
    assert files.text(thread(file=File("/a/b"))) == "pwrite64 of /a/b"
    assert files.text(thread(file=File("/a/b", device="none")), brief=True) == (
        "pwrite64 of /a/b on none"
    )
    assert files.text(Thread(tid=1)) is None
    hostile = files.text(thread(file=File("/a\x1b[2J\nb", "/m\x1b", "/d\r")))
    assert hostile is not None
    assert hostile.isprintable()


def test_a_capture_keeps_the_file() -> None:
    whole = capture(thread(), thread(file=None, tid=8), thread(file=File("/a"), tid=9))
    data = b"".join(capturewriter.lines(whole))
    assert [each.file for each in capturefile.loads(data, "it").threads] == [FILE, None, File("/a")]


@pytest.mark.parametrize("count", [1, 5])
def test_a_program_without_a_signature(count: int) -> None:
    writers = [thread(tid=10 + number) for number in range(count)]
    analysis = analyze(capture(Thread(tid=5, state="S"), *writers), load())
    verdict = analysis.findings[0]
    assert verdict.signature == "file-system-frozen"
    assert verdict.threads == count
    assert any(FILE.path in says for says in verdict.evidence)
    (ending,) = analysis.endings
    assert (ending.statement, ending.in_shell) == ("fsfreeze --unfreeze /var/lib/mysql", True)
    text = "\n".join(line.text for line in firstlines.render(analysis, 80))
    assert "paste in a shell:\n  fsfreeze --unfreeze /var/lib/mysql" in text
    assert "blocked in pwrite64 of …/#innodb_redo/#ib_redo7 on /dev/sdb1 (ext4," in text


@pytest.mark.parametrize(
    ("mount", "statement"),
    [
        ("/my data", "fsfreeze --unfreeze '/my data'"),
        ("/a;reboot", "fsfreeze --unfreeze '/a;reboot'"),
        ("/a\nreboot", None),
        ("/a\x1b[2J", None),
        (None, None),
    ],
)
def test_a_mount_point_is_pasted_as_one_word(mount: str | None, statement: str | None) -> None:
    found = thread(file=msgspec.structs.replace(FILE, mount=mount))
    analysis = analyze(capture(found, found), load())
    assert [ending.statement for ending in analysis.endings] == ([statement] if statement else [])
