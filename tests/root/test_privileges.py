# SPDX-License-Identifier: Apache-2.0
"""What is left of root's capabilities while the probe works, and that it is enough."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.collectors import probe
from tests.root.support import assert_unharmed, run_probe, snap
from tests.support.known_waits import known_waits
from tests.support.servers import PATIENCE, wait_until
from tests.support.serving import ask_snap, serving
from tests.support.targets import Target

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "probe")

# include/uapi/linux/capability.h
BITS = {
    "DAC_OVERRIDE": 1,
    "DAC_READ_SEARCH": 2,
    "FOWNER": 3,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "IPC_LOCK": 14,
    "SYS_PTRACE": 19,
    "SYS_ADMIN": 21,
    "SYS_NICE": 23,
    "SYS_RESOURCE": 24,
    "SYSLOG": 34,
    "PERFMON": 38,
    "BPF": 39,
    "CHECKPOINT_RESTORE": 40,
}
OF_FILES = {"DAC_READ_SEARCH", "SETUID", "SETGID", "KILL"}
OF_PROCESSES = OF_FILES | {"SYS_PTRACE", "SYSLOG", "PERFMON", "BPF", "CHECKPOINT_RESTORE"}
NOBODY = 65534
FIRST_UID = 0x75400000
"""Of the users that processes in a sandbox become: pmp/sandbox/sandbox.c."""
SETS = ("CapInh", "CapBnd", "CapAmb")


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def held(fields: dict[str, str], name: str = "CapPrm") -> set[str]:
    bits = int(fields[name], 16)
    known = {capability for capability, bit in BITS.items() if bits >> bit & 1}
    assert bits == sum(1 << BITS[capability] for capability in known), fields[name]
    return known


def own() -> set[str]:
    bits = int(status(os.getpid())["CapEff"], 16)
    return {capability for capability, bit in BITS.items() if bits >> bit & 1}


def locked_memory() -> set[str]:
    """Return what is kept where the limit of locked memory cannot be raised."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    can = hard == resource.RLIM_INFINITY or "SYS_RESOURCE" in own()
    return set() if can else {"IPC_LOCK"}


def uprobes_take_sys_admin() -> bool:
    """Ask a probe that has all the rest of root's capabilities."""
    argv = ["setpriv", "--bounding-set=-sys_admin", str(probe.find()), "features"]
    done = subprocess.run(argv, capture_output=True, check=True, timeout=PATIENCE)
    uprobes = json.loads(done.stdout)["features"]["uprobes"]
    assert uprobes["ok"] or "CAP_SYS_ADMIN" in uprobes["fix"], uprobes
    return not uprobes["ok"]


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def workers(pid: int) -> list[int]:
    """Return the children in a sandbox; one more reads what can block on mmap_lock or a disk."""
    return [child for child in children(pid) if status(child)["Seccomp"] == "2"]


def assert_reduced(pid: int, wanted: set[str]) -> None:
    fields = status(pid)
    assert held(fields) == wanted & own()
    assert held(fields, "CapEff") == wanted & own()
    assert [int(fields[name], 16) for name in SETS] == [0, 0, 0]
    assert fields["NoNewPrivs"] == "1"
    # No child has more, and its workers have nothing at all.
    for child in set(children(pid)) - set(workers(pid)):
        fields = status(child)
        assert held(fields) <= wanted
        assert [int(fields[name], 16) for name in SETS] == [0, 0, 0]
        assert fields["NoNewPrivs"] == "1"
    for child in workers(pid):
        fields = status(child)
        assert fields["Uid"].split() == [str(FIRST_UID + child)] * 4, "a uid of its own"
        assert [int(fields[name], 16) for name in (*SETS, "CapPrm", "CapEff")] == [0] * 5
        assert fields["NoNewPrivs"] == "1"


@pytest.mark.needs("bpf")
def test_a_serving_probe_keeps_what_it_uses() -> None:
    wanted = OF_PROCESSES | locked_memory()
    with Target("threads", "20", "25") as target:
        with serving(target.pid, "bpf", "--no-uprobes") as process:
            assert_reduced(process.pid, wanted)
            assert len(workers(process.pid)) == 1
            assert len(ask_snap(process).threads) >= 21
            assert_reduced(process.pid, wanted)
        assert_unharmed(target.pid)


@pytest.mark.needs("bpf", "waits", "uprobes")
def test_sys_admin_is_kept_for_uprobes_alone(tmp_path: Path) -> None:
    wanted = OF_PROCESSES | locked_memory()
    for_uprobes = {"SYS_ADMIN"} if uprobes_take_sys_admin() else set()
    with known_waits(tmp_path, 1) as target:
        with serving(target.pid, "bpf", "--watch") as process:
            assert_reduced(process.pid, wanted | for_uprobes)
            assert ask_snap(process).threads
        with serving(target.pid, "bpf", "--watch", "--no-uprobes") as process:
            assert_reduced(process.pid, wanted)
            assert ask_snap(process).threads
        assert_unharmed(target.pid)


@pytest.mark.needs("ptrace")
def test_the_tracer_may_raise_its_priority() -> None:
    with Target("threads", "3", "25") as target:
        with serving(target.pid, "ptrace", "--no-uprobes") as process:
            assert_reduced(process.pid, OF_PROCESSES | locked_memory() | {"SYS_NICE"})
            assert len(ask_snap(process).threads) >= 4
        assert_unharmed(target.pid)


def test_a_probe_that_only_reads_files_keeps_fewer_capabilities() -> None:
    argv = [str(probe.find()), "symbolize"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        wait_until(lambda: workers(process.pid), "what reads files is in its sandbox")
        assert_reduced(process.pid, OF_FILES)
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


@pytest.mark.needs("bpf")
def test_a_worker_that_hangs_is_killed_and_another_made() -> None:
    with Target("threads", "20", "25") as target:
        with serving(target.pid, "bpf", "--no-uprobes", "--deadline", "500") as process:
            (worker,) = workers(process.pid)
            os.kill(worker, signal.SIGSTOP)
            assert ask_snap(process).notes
            (other,) = workers(process.pid)
            assert other != worker
            assert_reduced(process.pid, OF_PROCESSES | locked_memory())
            assert not ask_snap(process).notes
        assert_unharmed(target.pid)


@pytest.fixture
def foreign_folder() -> Iterator[Path]:
    """Yield a folder of another user, where root's rights as its owner are not enough."""
    folder = Path("/var/tmp") / f"stallscope-foreign-{os.getpid()}"
    folder.mkdir()
    folder.chmod(0o755)
    os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.needs("bpf")
def test_files_in_a_folder_of_another_user(foreign_folder: Path) -> None:
    wanted = OF_PROCESSES | locked_memory()
    file = foreign_folder / "capture.jsonl"
    with Target("threads", "3", "25") as target:
        for force in ([], ["--force-overwrite"]):
            done = snap(target.pid, "--output", str(file), *force)
            assert done.code == 0, done.stderr
        threshold = ("--capture-threshold", "1000")
        options = ("--no-uprobes", *threshold, "--captures", str(foreign_folder))
        with serving(target.pid, "bpf", *options) as process:
            assert_reduced(process.pid, wanted | {"DAC_OVERRIDE"})
        options = ("--no-uprobes", *threshold, "--captures", "/var/tmp")
        with serving(target.pid, "bpf", *options) as process:
            assert_reduced(process.pid, wanted)
        assert_unharmed(target.pid)


@pytest.mark.needs("bpf")
def test_sys_admin_replaces_capabilities_that_the_container_lacks() -> None:
    with Target("threads", "3", "25") as target:
        for missing in ("-bpf,-perfmon,-checkpoint_restore", "-checkpoint_restore"):
            done = snap(target.pid, prefix=("setpriv", f"--bounding-set={missing}"))
            assert done.whole.backend == "bpf"
            assert len(done.whole.threads) >= 4
        assert_unharmed(target.pid)


def test_root_without_ptrace_reads_those_that_have_its_capabilities() -> None:
    """As in a container, where root has some capabilities, and its server has the same."""
    limited = ("setpriv", "--bounding-set=-sys_ptrace,-sys_admin", "--inh-caps=-all")
    with Target("threads", "3", "25", wrapper=limited) as target:
        done = snap(target.pid, backend="proc", prefix=limited)
        assert len(done.whole.threads) >= 4
        assert_unharmed(target.pid)


def test_what_the_sandbox_lacks_is_said(tmp_path: Path) -> None:
    limited = ("setpriv", "--bounding-set=-setuid,-setgid")
    said = "hostile files are parsed without a uid of its own; give it CAP_SETUID and CAP_SETGID"
    with Target("threads", "3", "25") as target:
        capture = snap(target.pid, prefix=limited).whole
        (note,) = [note for note in capture.notes if note.code == "sandbox-incomplete"]
        assert note.message == said
        program = os.readlink(f"/proc/{target.pid}/exe")
    for words in (["pack", program, "--output", str(tmp_path / "one.pack")], ["symbolize"]):
        done = run_probe(*words, prefix=limited)
        assert (done.code, done.stderr) == (0, f"stallscope-probe: {said}\n")


def test_a_program_that_only_its_owner_may_read_has_names(foreign_folder: Path) -> None:
    program = foreign_folder / "target"
    with Target("threads", "3", "25") as target:
        shutil.copy(Path(f"/proc/{target.pid}/exe").resolve(), program)
    os.chown(program, NOBODY, NOBODY)
    program.chmod(0o700)
    argv = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", str(program)]
    with subprocess.Popen(
        [*argv, "3", "25"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        while b"ready" not in process.stdout.readline():
            pass
        try:
            names = {
                frame.symbol
                for thread in snap(process.pid, backend="auto").whole.threads
                for frame in thread.frames
            }
            assert "main" in names
            assert_unharmed(process.pid)
        finally:
            process.kill()


def test_the_cache_command_keeps_the_right_of_owners() -> None:
    with Target("threads", "2", "5") as target:
        argv = [str(probe.find()), "cache", "-p", str(target.pid), "--uncache", "binlog"]
        with subprocess.Popen(
            [*argv, "--yes", "--after", "600"], stdout=subprocess.PIPE
        ) as process:
            try:
                wait_until(
                    lambda: (
                        status(process.pid)["NoNewPrivs"] == "1"
                        and Path(f"/proc/{process.pid}/wchan").read_text().endswith("nanosleep")
                    ),
                    "it watches reads",
                )
                assert_reduced(process.pid, OF_FILES | {"SYS_PTRACE", "FOWNER"})
            finally:
                process.kill()
        assert_unharmed(target.pid)
