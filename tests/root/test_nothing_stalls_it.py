# SPDX-License-Identifier: Apache-2.0
"""A stall in the kernel, on the disk or of the host does not stall the tool that examines it.

While a process keeps its own mmap_lock, `ps`, `pgrep` and whatever reads its command line wait for
it too: these tests read nothing of the kind, and a timer thaws the disk whatever happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallscope.base.errors import Exit
from stallscope.collectors import probe
from stallscope.model import capturefile
from stallscope.model.capture import Capture, Thread
from tests.root.support import COMMANDS, assert_unharmed, by_tid
from tests.support.cgroups import Cgroup, limited
from tests.support.servers import PATIENCE, wait_until
from tests.support.stalls import Device, loop_device
from tests.support.targets import Target

pytestmark = pytest.mark.needs("root", "probe")

DEADLINE = 10.0
"""The default of ``snap``."""
LONGEST_FREEZE = 45.0
FUTEX = "futex"
READERS_PASS = platform.release().startswith("5.10.")
"""A writer that waits for the mmap_lock: then all of the memory may be read."""
CLI = (sys.executable, "-m", "stallscope")


@contextlib.contextmanager
def frozen_disk() -> Iterator[tuple[Device, Callable[[], None]]]:
    """Give a file system, and what freezes it until the end of the block."""
    with loop_device() as device:
        disk = Device(device.folder, device.folder)
        timer = threading.Timer(LONGEST_FREEZE, disk.thaw)

        def freeze() -> None:
            timer.start()
            disk.freeze()

        try:
            yield disk, freeze
        finally:
            timer.cancel()
            disk.thaw()


def stack(pid: int, tid: int) -> str:
    return Path(f"/proc/{pid}/task/{tid}/stack").read_text()


def state(pid: int, tid: int) -> str:
    return Path(f"/proc/{pid}/task/{tid}/stat").read_text().rpartition(")")[2].split()[0]


def is_stuck(pid: int, tid: int, where: str) -> bool:
    """Whether a thread waits there: it may also wait for a moment for a page of its own code."""
    return state(pid, tid) == "D" and where in stack(pid, tid)


def keep_mmap_lock(target: Target, freeze: Callable[[], None]) -> None:
    """Return when a writer has, or waits for, the mmap_lock of the target."""
    freeze()
    writer, changer = target.fact("writer").tid, target.fact("changer").tid
    target.ask("write")
    wait_until(lambda: is_stuck(target.pid, writer, "page_mkwrite"), "a page fault waits")
    target.ask("change")
    wait_until(lambda: is_stuck(target.pid, changer, "madvise"), "madvise waits for the page fault")


def release(target: Target, disk: Device) -> None:
    """Let the disk answer; return when the target has gone on."""
    assert target.ask("state") == {"written": 0, "changed": 0}, "it was held all the time"
    disk.thaw()
    both = {"written": 1, "changed": 1}
    wait_until(lambda: target.ask("state") == both, "the target goes on")
    assert_unharmed(target.pid)


def waiters_of(target: Target) -> list[int]:
    return [fact.tid for fact in target.facts if fact.fact == "waiter"]


def is_locked(capture: Capture) -> bool:
    return "memory-locked" in [note.code for note in capture.notes]


@contextlib.contextmanager
def keeping_its_mmap_lock() -> Iterator[Target]:
    """Start a target in which a writer has, or waits for, the mmap_lock until the block ends."""
    with (
        frozen_disk() as (disk, freeze),
        Target("mmap_lock", str(disk.folder / "mapped")) as target,
    ):
        keep_mmap_lock(target, freeze)
        yield target
        release(target, disk)


def run(*argv: str, seconds: float = DEADLINE) -> subprocess.CompletedProcess[bytes]:
    """Run a program that must end within its deadline, and a moment for a busy machine."""
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds + 20, check=False
    )


def snap(pid: int, *options: str) -> tuple[Capture, float]:
    """Capture by the probe alone: whole, and how long it took."""
    begun = time.monotonic()
    done = run(str(probe.find()), "snap", "--pid", str(pid), *options)
    taken = time.monotonic() - begun
    assert done.returncode in (0, 3), done.stderr
    return capturefile.loads(done.stdout, "stdout"), taken


def in_kernel(thread: Thread) -> list[str]:
    return [frame.symbol or "" for frame in thread.kernel_frames]


@pytest.mark.kernels("held")
@pytest.mark.needs("bpf", "freeze")
def test_the_mmap_lock_of_the_target_is_held() -> None:
    with keeping_its_mmap_lock() as target:
        capture, seconds = snap(target.pid, "--backend", "bpf")
        threads = by_tid(capture)
        writer, changer = target.fact("writer"), target.fact("changer")
        waiters = waiters_of(target)
    assert seconds < DEADLINE
    (note,) = [note for note in capture.notes if note.code == "memory-locked"]
    assert "mmap_lock" in note.message
    assert not [note for note in capture.notes if note.code == "stacks-truncated"]
    assert set(threads) == {target.pid, writer.tid, changer.tid, *waiters}
    assert threads[writer.tid].state == "D"
    assert any("page_mkwrite" in name for name in in_kernel(threads[writer.tid]))
    call = threads[changer.tid].syscall
    assert call is not None
    assert call.name == "madvise"
    assert any("madvise" in name for name in in_kernel(threads[changer.tid]))
    for tid in waiters:
        call = threads[tid].syscall
        assert call is not None
        assert call.name == FUTEX
        assert threads[tid].label == "truncated"
        assert any("futex" in name for name in in_kernel(threads[tid]))


class Serving:
    """A probe that serves one target."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self.file = folder / "served.jsonl"

    def said(self, kind: str) -> None:
        assert self.process.stdout is not None
        line = json.loads(self.process.stdout.readline())
        assert line["type"] == kind, line

    def shot(self) -> Capture:
        assert self.process.stdin is not None
        self.file.unlink(missing_ok=True)
        self.process.stdin.write(f"snap {self.file}\n".encode())
        self.process.stdin.flush()
        self.said("written")
        return capturefile.read(self.file)


@contextlib.contextmanager
def serving(pid: int, folder: Path) -> Iterator[Serving]:
    argv = [str(probe.find()), "serve", "--backend", "bpf", "--pid", str(pid)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        one = Serving(process, folder)
        one.said("ready")
        yield one
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def own_names(capture: Capture, tid: int) -> list[str | None]:
    return [frame.symbol for frame in by_tid(capture)[tid].frames]


@pytest.mark.needs("bpf", "freeze")
def test_the_memory_is_read_again_once_it_can_be(tmp_path: Path) -> None:
    with (
        frozen_disk() as (disk, freeze),
        Target("mmap_lock", str(disk.folder / "mapped")) as target,
        serving(target.pid, tmp_path) as served,
    ):
        whole = served.shot()
        keep_mmap_lock(target, freeze)
        begun = time.monotonic()
        captures = [served.shot() for _ in range(4)]
        seconds = time.monotonic() - begun
        release(target, disk)
        wait_until(lambda: not is_locked(served.shot()), "the memory is read again")
        again = served.shot()
    assert seconds < DEADLINE
    assert all(is_locked(capture) for capture in captures)
    for tid in waiters_of(target):
        assert "waiter_body" in own_names(whole, tid)
        assert own_names(again, tid) == own_names(whole, tid)


@pytest.mark.needs("bpf", "freeze")
def test_a_verdict_of_what_the_kernel_says() -> None:
    with keeping_its_mmap_lock() as target:
        begun = time.monotonic()
        done = run(*CLI, "snap", "--json", "--no-sql", "-p", str(target.pid))
        seconds = time.monotonic() - begun
        said = done.stdout.decode()
    assert seconds < 2 * DEADLINE, done.stderr
    assert done.returncode == Exit.PARTIAL, done.stderr
    assert json.loads(said)["threads"]["total"] == 6
    assert "mmap_lock" in said


@pytest.mark.kernels("held")
@pytest.mark.needs("freeze")
@pytest.mark.parametrize(
    "backend",
    [pytest.param(name, marks=pytest.mark.needs(name)) for name in ("proc", "ptrace")],
)
def test_other_backends_do_not_hang_either(backend: str) -> None:
    with keeping_its_mmap_lock() as target:
        more = ["--stop-blocked-reads"] if backend == "ptrace" else []
        capture, seconds = snap(target.pid, "--backend", backend, *more)
        assert_unharmed(target.pid)
    assert seconds < DEADLINE
    if READERS_PASS and not is_locked(capture):
        assert all("waiter_body" in own_names(capture, tid) for tid in waiters_of(target))
    else:
        assert [note.code for note in capture.notes].count("memory-locked") == 1
    call = by_tid(capture)[target.fact("changer").tid].syscall
    assert call is not None
    assert call.name == "madvise"


@pytest.mark.needs("freeze")
@pytest.mark.parametrize("words", COMMANDS)
def test_other_commands_do_not_hang_either(words: str) -> None:
    """Whatever they say of such a process, they end."""
    with keeping_its_mmap_lock() as target:
        done = run(str(probe.find()), *words.split(), "--pid", str(target.pid))
        assert_unharmed(target.pid)
    assert done.returncode >= 0
    assert done.stderr.count(b"\n") <= 1


@pytest.mark.needs("bpf", "freeze")
def test_the_evidence_goes_to_a_frozen_disk() -> None:
    with frozen_disk() as (disk, freeze), Target("threads", "1", "1") as target:
        file = disk.folder / "stall.jsonl.zst"
        freeze()
        done = run(*CLI, "snap", "--json", "--no-sql", "-p", str(target.pid), "-o", str(file))
        assert done.returncode == Exit.PARTIAL, done.stderr
        assert json.loads(done.stdout)["threads"]["total"] == len(
            os.listdir(f"/proc/{target.pid}/task")
        )
        said = done.stderr.decode()
        assert said.count("\n") == 1
        assert "is not written yet: its file system has not answered" in said
        assert not file.exists()
        disk.thaw()
        wait_until(file.exists, "the file is written once the disk answers")
        assert capturefile.read(file).threads
        wait_until(lambda: os.listdir(disk.folder).count(file.name) == 1, "it alone is left")
        assert_unharmed(target.pid)


@pytest.mark.needs("bpf")
def test_the_evidence_goes_to_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(disk)], check=True)
    try:
        (disk / "full").write_bytes(b"x" * 4096)
        with Target("threads", "1", "1") as target:
            done = run(
                *CLI, "snap", "--json", "--no-sql", "-p", str(target.pid), "-o", str(disk / "a")
            )
            assert_unharmed(target.pid)
        assert done.returncode == Exit.PARTIAL, done.stderr
        assert json.loads(done.stdout)["threads"]["total"]
        said = done.stderr.decode()
        assert said == f"stallscope: cannot write {disk / 'a'}: No space left on device\n"
        assert os.listdir(disk) == ["full"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@contextlib.contextmanager
def running_in(group: Cgroup, *argv: str) -> Iterator[None]:
    """Run a program in the group until the block ends."""
    with subprocess.Popen([*group.wrapper, *argv], stdin=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def cpu_of_children() -> float:
    """Return the CPU time of all child processes that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def assert_a_verdict_in_time(group: Cgroup, target: Target, share: float = 1.0) -> None:
    """Capture by the whole command, in the group, within its deadline and its start.

    ``share``: of a CPU that it gets; the start takes as long as its CPU time takes at that.
    """
    begun, used = time.monotonic(), cpu_of_children()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shot.jsonl"
        options = ("--json", "--no-sql", "--output", str(file), "-p", str(target.pid))
        done = run(*group.wrapper, *CLI, "snap", *options, seconds=DEADLINE / share)
        seconds, cpu = time.monotonic() - begun, cpu_of_children() - used
        assert done.returncode in (Exit.DONE, Exit.STALL), done.stderr
        capture = capturefile.read(file)
    print(f"{seconds:.1f} s, {cpu:.2f} s of CPU")
    assert seconds < DEADLINE + max(DEADLINE, cpu / share)
    threads = json.loads(done.stdout)["threads"]
    assert threads["total"] == len(os.listdir(f"/proc/{target.pid}/task"))
    assert len(capture.threads) == threads["total"]
    # The heartbeat may run whenever it is looked for.
    others = [one for one in capture.threads if one.tid != target.fact("heartbeat").tid]
    assert [one.tid for one in others if one.label != "verified"] == []
    assert_unharmed(target.pid)


@pytest.mark.alone
@pytest.mark.needs("bpf", "cgroups")
def test_the_cpu_quota_of_the_unit_is_used_up() -> None:
    """As its unit limits it, with two others in the unit that take all they get.

    Alone: others would take the CPUs before the quota is used up.
    """
    spin = ("sh", "-c", "while :; do :; done")
    with limited("cpu") as group, Target("threads", "20", "5") as target:
        group.limit_cpu(5_000, 10_000)
        with running_in(group, *spin), running_in(group, *spin):
            wait_until(lambda: group.throttled() > 100, "the quota is used up")
            before = group.throttled()
            # Half a CPU for three.
            assert_a_verdict_in_time(group, target, share=0.5 / 3)
            assert group.throttled() - before > 50, "it was throttled all the time"


MEMORY = 192 << 20
READ_AGAIN_AND_AGAIN = """
import mmap, sys
held = bytearray(int(sys.argv[2]))
with open(sys.argv[1], "rb") as file:
    whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    while True:
        for at in range(0, len(whole), 4096):
            held[at % len(held)] = whole[at]
"""


@pytest.mark.needs("bpf", "cgroups")
def test_the_memory_of_the_unit_and_of_the_target_is_at_its_limit(tmp_path: Path) -> None:
    """Both in one group whose pages, those of programs too, are always wanted by another."""
    file = tmp_path / "file"
    with file.open("wb") as out:
        for _ in range(2 * MEMORY >> 20):
            out.write(os.urandom(1 << 20))
        # Its pages are the group's that reads them first.
        os.fsync(out.fileno())
        os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    reader = (sys.executable, "-c", READ_AGAIN_AND_AGAIN, str(file), str(64 << 20))
    with limited("memory") as group:
        group.limit_memory(MEMORY)
        with (
            Target("threads", "20", "5", wrapper=group.wrapper) as target,
            running_in(group, *reader),
        ):
            wait_until(lambda: group.reclaimed() > 100, "the limit is met all the time")
            before = group.reclaimed()
            assert_a_verdict_in_time(group, target)
            assert group.reclaimed() > before
        assert group.killed() == 0
