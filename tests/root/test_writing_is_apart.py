# SPDX-License-Identifier: Apache-2.0
"""The probe does its work without a system call that writes to another process, and does not stop
one where its rights come from its file."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stallscope.collectors import probe
from stallscope.collectors.poke import looking
from stallscope.model.pokes import AllowList
from tests.root.support import COMMANDS, ONE_LINE, assert_unharmed, needing, run_probe
from tests.root.test_poke import address
from tests.root.test_privileges import NOBODY
from tests.support.nowrites import MemoryWatch
from tests.support.servers import PATIENCE
from tests.support.serving import ask_snap, serving
from tests.support.targets import Target

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "probe")

FORBIDDEN = (sys.executable, "-m", "tests.support.nowrites")
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
THREADS = 4

# By libc's syscall(2): number and arguments.
CALL = "import ctypes; ctypes.CDLL(None).syscall({})"


SNAPS = (
    needing("--backend bpf", "bpf"),
    needing("--backend proc"),
    needing("--backend ptrace --stop-blocked-reads", "ptrace"),
)


@pytest.mark.parametrize("words", SNAPS)
def test_no_capture_writes_to_a_process(words: str) -> None:
    with Target("threads", str(THREADS), "5") as target, MemoryWatch(target.pid) as memory:
        options = words.split()
        done = run_probe("snap", "--pid", str(target.pid), *options, prefix=FORBIDDEN)
        assert done.code == 0, done.stderr
        # A child that the filter kills is a note.
        assert [note.code for note in done.whole.notes] == []
        assert len(done.whole.threads) >= THREADS
        assert memory.opened()[1] == 0
        assert_unharmed(target.pid)


@pytest.mark.parametrize("words", COMMANDS)
def test_no_other_command_does(words: str) -> None:
    with Target("threads", str(THREADS), "5") as target, MemoryWatch(target.pid) as memory:
        done = subprocess.run(
            [*FORBIDDEN, str(probe.find()), *words.split(), "--pid", str(target.pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert memory.opened()[1] == 0
        assert_unharmed(target.pid)


@pytest.mark.needs("bpf", "waits")
def test_nor_does_one_that_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "probe"
    program.write_text(f'#!/bin/sh\nexec {" ".join(FORBIDDEN)} {probe.find()} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("STALLSCOPE_PROBE", str(program))
    with Target("threads", str(THREADS), "5") as target, MemoryWatch(target.pid) as memory:
        with serving(target.pid, "bpf", "--watch") as process:
            capture = ask_snap(process)
            assert len(capture.threads) >= THREADS
        assert process.returncode == 0
        assert memory.opened()[1] == 0
        assert_unharmed(target.pid)


@pytest.mark.parametrize(
    "arguments",
    [
        "311, 1, 0, 0, 0, 0, 0",
        "438, 0, 0, 0",
        *(f"101, {request}, 1, 0, 0" for request in (4, 5, 6, 13, 0x4205)),
    ],
)
def test_the_filter_kills(arguments: str) -> None:
    done = subprocess.run([*FORBIDDEN, sys.executable, "-c", CALL.format(arguments)], check=False)
    assert done.returncode == -signal.SIGSYS


def test_the_watch_sees_who_writes(tmp_path: Path) -> None:
    record = tmp_path / "record"
    record.write_text("{}\n")
    record.chmod(0o600)
    with Target("pokes") as target, MemoryWatch(target.pid) as memory:
        identity = looking.look(target.pid, AllowList()).identity
        read, written = memory.opened()
        assert read > 0
        assert written == 0
        words = ("--pid", str(target.pid), "--process", identity, "--record", str(record))
        word = f"{address(target, 'word'):x}:8:0:1"
        subprocess.run(
            [probe.find(probe.POKE), *words, "--do", "set", "--word", word],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        assert memory.opened() == (0, 1)
        assert target.ask("read")["word"] == 1


@pytest.fixture
def with_capabilities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a copy of the probe with file capabilities, as packages install it."""
    if shutil.which("setcap") is None:
        pytest.skip("no setcap here: run scripts/setup --all")
    copy = tmp_path / probe.PROBE
    shutil.copy(probe.find(), copy)
    copy.chmod(0o755)
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        folder.chmod(folder.stat().st_mode | 0o011)
    rights = "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_checkpoint_restore+ep"
    subprocess.run(["setcap", rights, str(copy)], check=True)
    monkeypatch.setenv("STALLSCOPE_PROBE", str(copy))


@pytest.mark.needs("bpf", "ptrace")
@pytest.mark.usefixtures("with_capabilities")
def test_rights_of_its_file_stop_no_thread() -> None:
    with Target("threads", str(THREADS), "5") as target:
        words = ("snap", "--pid", str(target.pid))
        refused = run_probe(*words, "--backend", "ptrace", prefix=AS_NOBODY)
        assert refused.code == 1
        assert ONE_LINE.match(refused.stderr), refused.stderr
        assert "stops no thread of another process: do this as root" in refused.stderr
        features = json.loads(run_probe("features", prefix=AS_NOBODY).stdout)["features"]
        assert not features["ptrace"]["ok"]
        taken = run_probe(*words, prefix=AS_NOBODY)
        assert len(taken.whole.threads) >= THREADS
        assert run_probe(*words, "--backend", "ptrace").code in (0, 3)
        assert_unharmed(target.pid)
