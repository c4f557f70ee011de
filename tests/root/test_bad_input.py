# SPDX-License-Identifier: Apache-2.0
"""What cannot be captured gives one clear line, or a part that says what is missing."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stallscope.collectors import probe
from stallscope.model.capture import Capture, Label
from tests.root.support import (
    BACKENDS,
    ONE_LINE,
    SMALL_BACKENDS,
    assert_frames,
    assert_unharmed,
    by_tid,
    own_frames,
    run_probe,
    snap,
)
from tests.support.chance import SEED
from tests.support.servers import PATIENCE
from tests.support.targets import Target, target_path

__all__: list[str] = []

BOUNDED_SECONDS = 60.0
"""No figure: what grows with the square of what is hostile takes hours."""

bpf = pytest.mark.needs("root", "bpf")
needs_probe = pytest.mark.needs("probe")


def unused_pid() -> int:
    """Return a pid that was just freed; pids are given out upwards, so it stays free a while."""
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


@pytest.mark.parametrize("backend", SMALL_BACKENDS)
def test_no_such_process(backend: str) -> None:
    pid = unused_pid()
    taken = snap(pid, backend=backend)
    assert taken.code == 1
    assert ONE_LINE.match(taken.stderr), taken.stderr
    assert str(pid) in taken.stderr
    assert taken.stdout == b""


@pytest.mark.parametrize("backend", SMALL_BACKENDS)
def test_zombie(backend: str) -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        taken = snap(process.pid, backend=backend)
    assert taken.code == 1
    assert ONE_LINE.match(taken.stderr), taken.stderr


@pytest.mark.parametrize("backend", SMALL_BACKENDS)
def test_kernel_thread(backend: str) -> None:
    taken = snap(2, backend=backend)  # kthreadd
    assert taken.code in (1, 3)
    if taken.code == 1:
        assert ONE_LINE.match(taken.stderr), taken.stderr


@pytest.mark.parametrize("backend", BACKENDS)
def test_target_exits_during_captures(backend: str) -> None:
    rng = random.Random(SEED)
    codes = set()
    for _ in range(25):
        with Target("exiter", str(rng.randrange(40_000)), listens=False) as target:
            taken = snap(target.pid, backend=backend)
            codes.add(taken.code)
            if taken.code == 1:
                assert ONE_LINE.match(taken.stderr), taken.stderr
            else:
                assert taken.whole.processes[0].pid == target.pid
            assert target.wait() == 0, "it must end by itself, with its own exit code"
    assert codes <= {0, 1, 3}


EXECERS = {"target-execer": "execer_thread", "target-execer2": "other_thread"}
CHAIN = ["wait_pause", *(f"level_{nr}" for nr in (5, 4, 3, 2, 1, 0))]


def assert_of_one_program(capture: Capture) -> None:
    """Assert that verified threads have frames that belong together."""
    for thread in capture.threads:
        for program, root in EXECERS.items():
            names = own_frames(thread, program)
            assert not {"execer_thread", "other_thread"} & {*names} - {root}, thread
            if thread.label is Label.VERIFIED and {*CHAIN} & {*names}:
                # One that waits for a CPU on its way down has the outer part of them.
                assert names == [*CHAIN, root][-len(names) :], thread


@pytest.mark.parametrize("backend", BACKENDS)
def test_target_execs_during_captures(backend: str) -> None:
    """No frame is given a name of the program that was there before."""
    for microseconds in (300, 3000, 20000):
        other = str(target_path("execer2"))
        with Target("execer", str(microseconds), other, listens=False) as target:
            for _ in range(15):
                taken = snap(target.pid, backend=backend)
                assert taken.code in (0, 1, 3)
                if taken.code == 1:
                    assert ONE_LINE.match(taken.stderr), taken.stderr
                    continue
                assert_of_one_program(taken.whole)
            # A stop would have made exec's own clean-up hang: it still runs.
            assert target.running()
            assert_unharmed(target.pid)


@pytest.mark.parametrize("backend", BACKENDS)
def test_30000_mappings(backend: str) -> None:
    with Target("mapper", "30000") as target:
        taken = snap(target.pid, backend=backend)
        assert taken.code in (0, 3), taken.stderr
        assert_frames(taken.whole, target.threads, "target-mapper")
        assert taken.seconds < BOUNDED_SECONDS
        assert_unharmed(target.pid)


@pytest.mark.parametrize("backend", BACKENDS)
def test_stacks_of_garbage(backend: str) -> None:
    for _ in range(5):
        with Target("garbage", str(SEED)) as target:
            taken = snap(target.pid, backend=backend)
            assert taken.code in (0, 3), taken.stderr
            threads = by_tid(taken.whole)
            assert_frames(taken.whole, target.threads, "target-garbage")
            for fact in target.facts:
                if fact.fact == "garbage":
                    thread = threads[fact.tid]
                    if fact.kind == "null" and not thread.frames:
                        assert thread.unwind == "not-tried"
                        continue
                    first = own_frames(thread, "target-garbage")[:1]
                    assert first == ["garbage_pause"], (fact.kind, thread)
                    # A return address of 0 is how stacks made by hand end.
                    assert thread.unwind != "complete" or fact.kind in ("hole", "huge"), thread
                    assert len(thread.frames) <= 512
            assert taken.seconds < BOUNDED_SECONDS
            assert_unharmed(target.pid)


@pytest.mark.parametrize("backend", SMALL_BACKENDS)
def test_main_thread_has_ended(backend: str) -> None:
    with Target("leaderless") as target:
        taken = snap(target.pid, backend=backend)
        if taken.code == 1:
            assert ONE_LINE.match(taken.stderr), taken.stderr
        else:
            assert_frames(taken.whole, target.threads, "target-leaderless")
        assert_unharmed(target.pid)


@contextmanager
def tiny_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system of 64 KiB."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(file: Path) -> None:
    """Write until nothing more fits."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as output:
        while output.write(b"x" * 4096):
            pass


@bpf
@pytest.mark.parametrize("name", ["capture.jsonl", "capture.jsonl.zst"])
def test_full_disk(tmp_path: Path, name: str) -> None:
    with Target("threads", "400", "25") as target, tiny_disk(tmp_path / "disk") as disk:
        fill(disk / "filler")
        before = sorted(path.name for path in disk.iterdir())
        taken = snap(target.pid, "--output", str(disk / name))
        assert taken.code == 1
        assert ONE_LINE.match(taken.stderr), taken.stderr
        assert "No space left" in taken.stderr
        assert sorted(path.name for path in disk.iterdir()) == before
        assert_unharmed(target.pid)


@pytest.mark.small
@bpf
def test_output_file(tmp_path: Path) -> None:
    with Target("threads", "4", "2") as target:
        file = tmp_path / "capture.jsonl"
        assert snap(target.pid, "--output", str(file)).code == 0
        assert file.stat().st_mode & 0o777 == 0o600
        first = file.read_bytes()
        again = snap(target.pid, "--output", str(file))
        assert again.code == 1
        assert ONE_LINE.match(again.stderr), again.stderr
        assert file.read_bytes() == first
        assert snap(target.pid, "--output", str(file), "--force-overwrite").code == 0
        assert file.read_bytes() != first
        missing = snap(target.pid, "--output", str(tmp_path / "none" / "x"))
        assert missing.code == 1
        assert ONE_LINE.match(missing.stderr), missing.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["capture.jsonl"]


@bpf
def test_reader_of_standard_output_goes_away() -> None:
    with Target("threads", "2000", "25") as target:
        with subprocess.Popen(
            [str(probe.find()), "snap", "--pid", str(target.pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            process.stdout.read(100)
            process.stdout.close()
            assert process.wait(PATIENCE) in (1, -signal.SIGPIPE)
        assert_unharmed(target.pid)


NOBODY = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--no-new-privs"]


def open_to_all(folder: Path) -> None:
    """Let everybody reach what is in pytest's temporary folder."""
    for parent in (folder, *folder.parents):
        if "pytest" in str(parent):
            parent.chmod(0o755)


def public_copy(folder: Path) -> Path:
    """Copy the target of many waits to where nobody can execute it."""
    open_to_all(folder)
    copy = folder / "target-threads"
    shutil.copy(target_path("threads"), copy)
    return copy


@pytest.fixture
def public_probe(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a copy of the probe that everybody can reach."""
    folder = tmp_path_factory.mktemp("public")
    open_to_all(folder)
    shutil.copy(probe.find(), folder / "stallscope-probe")
    monkeypatch.setenv("STALLSCOPE_PROBE", str(folder / "stallscope-probe"))


@pytest.mark.small
@pytest.mark.needs("root", "probe")
@pytest.mark.usefixtures("public_probe")
@pytest.mark.parametrize(
    ("backend", "wanted"),
    [
        ("bpf", ["CAP_BPF", "CAP_PERFMON"]),
        ("ptrace", ["CAP_SYS_PTRACE"]),
        ("proc", ["CAP_SYS_PTRACE"]),
        ("auto", ["CAP_SYS_PTRACE"]),
    ],
)
def test_without_privileges(backend: str, wanted: list[str]) -> None:
    """Root's target, captured by nobody: the line names what is missing."""
    with Target("threads", "4", "2") as target:
        taken = run_probe("snap", "--pid", str(target.pid), "--backend", backend, prefix=NOBODY)
        assert taken.code == 1
        assert ONE_LINE.match(taken.stderr), taken.stderr
        assert any(name in taken.stderr for name in wanted), taken.stderr
        assert_unharmed(target.pid)


@pytest.mark.small
@pytest.mark.needs("root", "probe")
@pytest.mark.usefixtures("public_probe")
def test_own_process_without_privileges(tmp_path: Path) -> None:
    """A user who may trace a process can capture it by proc."""
    copy = public_copy(tmp_path)
    with Target("threads", "18", "6", executable=copy, wrapper=NOBODY) as target:
        taken = run_probe("snap", "--pid", str(target.pid), prefix=NOBODY)
        assert taken.whole.backend == "proc"
        assert taken.whole.backend_reason
        assert_frames(taken.whole, target.threads, "target-threads")


@pytest.mark.needs("root", "probe")
@pytest.mark.usefixtures("public_probe")
def test_binary_that_nobody_may_read(tmp_path: Path) -> None:
    """Its frames have no names, and a note says why; its privileged reader has them all."""
    copy = public_copy(tmp_path)
    copy.chmod(0o711)
    with Target("threads", "18", "6", executable=copy, wrapper=NOBODY) as target:
        taken = run_probe("snap", "--pid", str(target.pid), prefix=NOBODY)
        if taken.code == 1:  # where such a process may not be traced by its own user
            assert ONE_LINE.match(taken.stderr), taken.stderr
        else:
            assert taken.code == 3
            assert "module-unreadable" in {note.code for note in taken.whole.notes}
            for fact in target.threads:
                names = own_frames(by_tid(taken.whole)[fact.tid], "target-threads")
                assert all(name.startswith("target-threads+0x") for name in names)
        assert_frames(snap(target.pid, backend="auto").whole, target.threads, "target-threads")
        assert_unharmed(target.pid)


@pytest.mark.needs("root", "bpf")
def test_deadline_is_kept() -> None:
    with Target("threads", "2000", "25") as target:
        start = time.monotonic()
        taken = snap(target.pid, "--deadline", "1")
        assert taken.code in (1, 3)
        if taken.code == 3:
            assert taken.whole.notes
        else:
            assert ONE_LINE.match(taken.stderr), taken.stderr
        assert time.monotonic() - start < BOUNDED_SECONDS
        assert_unharmed(target.pid)


@pytest.mark.small
@bpf
def test_more_threads_than_the_limit() -> None:
    with Target("threads", "100", "2") as target:
        taken = snap(target.pid, "--max-threads", "50")
        assert taken.code in (1, 3)
        if taken.code == 3:
            assert len(taken.whole.threads) == 50
            assert taken.whole.processes[0].threads_lost >= 50
            assert taken.whole.notes
        else:
            assert ONE_LINE.match(taken.stderr), taken.stderr


@pytest.mark.small
@bpf
def test_stack_beyond_the_limit_is_labelled() -> None:
    with Target("threads", "1", "400", "--wait", "pause") as target:
        (fact,) = [fact for fact in target.threads if fact.depth]
        taken = snap(target.pid, "--max-stack", "4096")
        thread = by_tid(taken.whole)[fact.tid]
        names = own_frames(thread, "target-threads")
        assert names == fact.expected()[: len(names)]
        assert thread.label is Label.TRUNCATED
