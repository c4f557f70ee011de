# SPDX-License-Identifier: Apache-2.0
"""Captured frames are those that the target's threads are known to be in."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from stallscope.model.capture import Label
from tests.root.support import (
    BACKENDS,
    SMALL_BACKENDS,
    assert_frames,
    assert_unharmed,
    by_tid,
    own_frames,
    snap,
    without_plt,
)
from tests.support.servers import wait_until
from tests.support.targets import Target, target_path
from tests.support.unwinders import assert_same_stacks, core_in, whole_cores

__all__: list[str] = []

bpf = pytest.mark.needs("root", "bpf")
CHILDREN = "/proc/{0}/task/{0}/children"


@pytest.mark.kernels("backend")
@pytest.mark.parametrize("backend", SMALL_BACKENDS)
def test_every_kind_of_wait(backend: str) -> None:
    with Target("threads", "36", "25") as target:
        taken = snap(target.pid, backend=backend)
        capture = taken.whole
        assert taken.code == 0, capture.notes
        assert capture.backend == backend
        assert_frames(capture, target.threads, "target-threads")
        threads = by_tid(capture)
        for fact in target.threads:
            thread = threads[fact.tid]
            assert thread.label is Label.VERIFIED, (fact.wait, thread)
            assert thread.unwind == "complete", (fact.wait, thread)
            assert thread.state == "S"
            if fact.syscall is not None:
                assert thread.syscall is not None
                assert thread.syscall.nr == fact.syscall, fact.wait
                assert thread.name == f"w-{fact.wait}"[:15]
        assert len(threads) == len(target.threads) + 1  # the heartbeat
        assert_unharmed(target.pid)
        assert target.beats_on()


@pytest.mark.kernels("backend")
@pytest.mark.parametrize("backend", SMALL_BACKENDS)
def test_shapes_of_stacks(backend: str) -> None:
    with Target("frames", str(target_path("module.so"))) as target:
        capture = snap(target.pid, backend=backend).whole
        threads = by_tid(capture)
        for fact in target.threads:
            thread = threads[fact.tid]
            names = own_frames(thread, "target-frames", "target-module.so")
            if backend == "proc" and thread.unwind == "no-registers":
                # Without rbp the unwinder must stop, and say so, where a frame is kept by it.
                assert names == fact.expected()[: len(names)]
                assert fact.wait in ("alloca", "vla", "aligned", "sigaltstack", "callback")
                continue
            assert names == fact.expected(), (fact.wait, thread)
            assert thread.unwind == "complete", (fact.wait, thread)
        assert_unharmed(target.pid)
        target.ask("alive")


@pytest.mark.parametrize("backend", SMALL_BACKENDS)
def test_names_of_cxx(backend: str) -> None:
    with Target("cxx") as target:
        capture = snap(target.pid, backend=backend).whole
        assert_frames(capture, target.threads, "target-cxx")
        lambdas = [f for t in capture.threads for f in t.frames if "{lambda" in (f.symbol or "")]
        assert lambdas
        assert all((f.linkage or "").startswith("_Z") for f in lambdas)


@pytest.mark.small
@bpf
@pytest.mark.parametrize("kind", ["nopie", "static", "static-pie", "debugframe"])
def test_kinds_of_binaries(kind: str) -> None:
    with Target(f"threads-{kind}", "18", "25") as target:
        capture = snap(target.pid).whole
        if kind.startswith("static"):
            # libc's frames are in the same file.
            own = {name for fact in target.threads for name in fact.expected()}
            for fact in target.threads:
                names = own_frames(by_tid(capture)[fact.tid], f"target-threads-{kind}")
                assert [name for name in names if name in own] == fact.expected()
        else:
            assert_frames(capture, target.threads, f"target-threads-{kind}")
        assert {t.unwind for t in capture.threads} == {"complete"}


@pytest.mark.small
@bpf
def test_recursion_beyond_the_limit() -> None:
    with Target("threads", "1", "10000", "--wait", "mutex") as target:
        taken = snap(target.pid)
        (fact,) = [fact for fact in target.threads if fact.depth]
        thread = by_tid(taken.whole)[fact.tid]
        names = own_frames(thread, "target-threads")
        assert 200 <= len(names) <= 512
        assert names == fact.expected()[: len(names)]
        assert thread.unwind in ("limit", "no-memory")
        assert thread.label is not None
        assert_unharmed(target.pid)


def chroot_with(path: Path, root: Path) -> str:
    """Copy a program and the libraries that ldd names below ``root``; return its path inside."""
    listed = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=True).stdout
    for word in [*listed.split(), str(path)]:
        if word.startswith("/"):
            copy = root / word.lstrip("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(word, copy)
    (root / "proc").mkdir()
    return str(path)


@bpf
@pytest.mark.parametrize("backend", BACKENDS)
def test_chroot_in_a_mount_namespace(tmp_path: Path, backend: str) -> None:
    inside = chroot_with(target_path("threads"), tmp_path)
    # Another program stands at the same path outside: the file inside has to be taken.
    outside = target_path("spin").read_bytes()
    hidden = tmp_path.parent / "hidden-target-threads"
    hidden.write_bytes(outside)
    script = f"mount -t proc proc {tmp_path}/proc && exec chroot {tmp_path} {inside} 18 6"
    wrapper = ["unshare", "--mount", "sh", "-c", script]
    with Target("threads", executable=Path(inside), wrapper=wrapper) as target:
        capture = snap(target.pid, backend=backend).whole
        assert_frames(capture, target.threads, "target-threads")
        # The kernel gives the path as the reader's root shows it.
        assert (capture.processes[0].exe or "").endswith(inside)
        assert_unharmed(target.pid)


@pytest.mark.small
@bpf
@pytest.mark.kernels("bpf")
def test_pid_namespace() -> None:
    wrapper = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with Target("threads", "18", "6", wrapper=wrapper) as target:
        pid = int(Path(CHILDREN.format(target.pid)).read_text())
        capture = snap(pid).whole
        inside = {thread.ns_tid: thread for thread in capture.threads}
        assert 1 in inside  # the main thread is the namespace's init
        for fact in target.threads:
            thread = inside[fact.tid]
            assert os.path.exists(f"/proc/{pid}/task/{thread.tid}")
            assert own_frames(thread, "target-threads") == fact.expected()
        owner = [lock.owner_tid for lock in capture.locks if lock.kind == "mutex"]
        assert owner == [pid]  # as seen from here, not 1
        assert_unharmed(pid)


@pytest.mark.parametrize("backend", SMALL_BACKENDS)
def test_hostile_thread_names(backend: str) -> None:
    with Target("names") as target:
        taken = snap(target.pid, backend=backend)
        threads = by_tid(taken.whole)
        assert not [byte for byte in taken.stdout if byte < 0x20 and byte != 0x0A]
        taken.stdout.decode("utf-8")
        for fact in target.threads:
            raw = bytes.fromhex(fact.name_hex)[:15]
            name = threads[fact.tid].name
            assert own_frames(threads[fact.tid], "target-names") == fact.expected()
            try:
                assert name == raw.decode()
            except UnicodeDecodeError:
                assert len(name) >= 1
        assert len(threads) == len(target.threads) + 1


def turns(target: Target) -> int:
    """Return how often its threads have gone round so far."""
    return int(target.ask("turns")["turns"])


@bpf
@pytest.mark.needs("perf")
def test_threads_on_a_cpu() -> None:
    """Two threads spin: each is either sampled on its CPU or proven while it waits for one."""
    with Target("spin", "user", "syscall") as target:
        spinning = [fact for fact in target.threads if fact.spin]
        (blocked,) = [fact for fact in target.threads if not fact.spin]
        sampled = captures = 0
        # On a busy machine they are rarely on a CPU.
        while captures < 10 or (not sampled and captures < 300):
            captures += 1
            before = turns(target)
            threads = by_tid(snap(target.pid).whole)
            assert threads[blocked.tid].label is Label.VERIFIED
            assert own_frames(threads[blocked.tid], "target-spin") == blocked.expected()
            for fact in spinning:
                thread = threads[fact.tid]
                assert thread.stopped_ns == 0
                if thread.label is Label.RUNNING and thread.frames:
                    sampled += 1
                if thread.label is Label.VERIFIED or (
                    thread.label is Label.RUNNING and thread.frames
                ):
                    assert without_plt(own_frames(thread, "target-spin")) == fact.expected()
            wait_until(lambda: turns(target) > before, "they spin on")  # noqa: B023 (asked here)
        assert sampled


@bpf
@pytest.mark.needs("perf")
def test_thread_in_the_vdso() -> None:
    with Target("spin", "vdso") as target:
        (fact,) = [fact for fact in target.threads if fact.spin]
        inside = captures = 0
        while captures < 30 or (not inside and captures < 300):
            captures += 1
            thread = by_tid(snap(target.pid).whole)[fact.tid]
            if thread.label is Label.RACED or not thread.frames:
                continue
            assert without_plt(own_frames(thread, "target-spin")) == fact.expected(), thread
            first = thread.frames[0].module
            inside += first is not None and first.path == "[vdso]"
        assert inside


@pytest.mark.needs("probe", "gdb", "cores")
@pytest.mark.parametrize("name", ["frames", "threads", "threads-nopie", "threads-static-pie"])
def test_others_unwind_a_core_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [str(target_path("module.so"))] if name == "frames" else ["18", "25"]
    with whole_cores(), Target(name, *arguments) as target:
        os.kill(target.pid, signal.SIGXCPU)
        wait_until(lambda: not target.running(), f"{name} ends with a core")
        known = len(target.threads)
    capture = assert_same_stacks(core_in(tmp_path), target_path(name))
    assert len(capture.threads) >= known > 10
