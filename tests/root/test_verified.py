# SPDX-License-Identifier: Apache-2.0
"""What is labelled verified or sampled is true, also of threads that never rest."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stallscope.model.capture import Label
from tests.root.support import BACKENDS, assert_unharmed, by_tid, own_frames, snap
from tests.support.exactstacks import KINDS, Kind, available, capture_stacks
from tests.support.rights import READABLE
from tests.support.servers import wait_until
from tests.support.targets import Target, target_path

__all__: list[str] = []

MANY = int(os.environ.get("STALLSCOPE_EXACT_CAPTURES", "30"))
"""Of each kind of target; `./scripts/bench capture --only exact-stacks` takes 10,000."""
ROUNDS = 10
"""At most, until what makes a target hard was met."""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_no_exact_stack_is_wrong(kind: Kind, backend: str) -> None:
    """Stacks lie in several places, others write to them, threads and programs come and go."""
    if missing := available(kind):
        pytest.skip(missing)
    captures = MANY if backend == "bpf" else max(MANY // 3, 1)
    exact = 0
    for _ in range(ROUNDS):
        seen = capture_stacks(kind, backend, captures)
        print(seen.stacks, seen.reasons)
        assert seen.wrong_count == 0, seen.wrong
        assert not seen.harm
        assert seen.refused < captures
        # A round can pass while the target waits for a CPU, for one in the middle of its exec, so
        # that only all rounds together need to have one.
        exact += seen.exact
        # What makes the target hard has to be met. How often a thread sleeps on until it is checked
        # again is up to the machine: on a busy one hardly any does.
        is_met = backend != "bpf" or not kind.reason or seen.reasons[kind.reason] + seen.live > 0
        if exact and is_met:
            return
    pytest.fail(f"in {ROUNDS} rounds {exact} exact stacks, and none that was {kind.reason}")


def frames_target() -> Target:
    return Target("frames", str(target_path("module.so")))


@pytest.mark.parametrize("backend", BACKENDS)
def test_label_of_stacks_in_two_places(backend: str) -> None:
    """Who sleeps on keeps its label; with ptrace that is not known, since it was released."""
    with frames_target() as target:
        threads = by_tid(snap(target.pid, backend=backend).whole)
        (fact,) = [fact for fact in target.threads if fact.wait == "sigaltstack"]
        thread = threads[fact.tid]
        if backend == "proc" and thread.unwind == "no-registers":
            pytest.skip("the stack ends before it leaves the copy: registers are not known")
        assert thread.live_reads > 0
        if backend == "ptrace":
            assert (thread.label, thread.label_reason) == (Label.RACED, "live-reads")
        else:
            assert thread.label in (Label.VERIFIED, Label.TRUNCATED)
            assert thread.label_reason is None
        assert_unharmed(target.pid)


@pytest.mark.parametrize("backend", BACKENDS)
def test_label_of_parents_of_children_in_their_memory(backend: str) -> None:
    """A child of vfork runs on its parent's stack; one that was given a stack does not."""
    with frames_target() as target:
        threads = by_tid(snap(target.pid, backend=backend).whole)
        labels = {fact.wait: threads[fact.tid] for fact in target.threads}
        vforked, spawning = labels["vfork"], labels["spawn"]
        assert (vforked.label, vforked.label_reason) == (Label.RACED, "vfork")
        assert (spawning.label, spawning.label_reason) == (Label.VERIFIED, None)
        assert_unharmed(target.pid)


@pytest.mark.needs("root", "bpf")
def test_zero_in_memory_outside_the_copy_ends_no_stack() -> None:
    with frames_target() as target:
        (fact,) = [fact for fact in target.threads if fact.wait == "zero"]
        for options, unwind, label in (
            ((), "complete", Label.VERIFIED),
            (("--max-stack", "4096"), "no-memory", Label.TRUNCATED),
        ):
            thread = by_tid(snap(target.pid, *options).whole)[fact.tid]
            assert own_frames(thread, "target-frames") == fact.expected()
            assert (thread.unwind, thread.label) == (unwind, label)
        assert_unharmed(target.pid)


PAUSE = """
.globl _start
_start:
    mov $29, %eax # pause; of a 64-bit call it would be shmget
    int $0x80
    jmp _start
.section .note.GNU-stack,"",@progbits
"""
MODES = {"code": ("-Wa,--32", "-Wl,-m,elf_i386", "-static"), "call": ("-static-pie",)}
"""A 32-bit program; and a 64-bit one that makes a 32-bit call."""


@contextmanager
def pausing(folder: Path, mode: str) -> Iterator[int]:
    """Run a program until it pauses in a 32-bit system call; yield its process."""
    (folder / "pause.s").write_text(PAUSE)
    program = folder / "pause"
    options = [*MODES[mode], "-nostdlib", "-o", str(program), str(folder / "pause.s")]
    subprocess.run(["gcc", *options], check=True)
    try:
        process = subprocess.Popen([*READABLE, str(program)])
    except OSError as error:
        pytest.skip(f"this kernel runs no 32-bit programs: {error}")

    def waits() -> bool:
        if process.poll() is not None:
            pytest.skip(f"this kernel takes no 32-bit calls: {process.returncode}")
        return Path(f"/proc/{process.pid}/syscall").read_text().startswith("29 ")

    try:
        wait_until(waits, "it pauses")
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.small
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
def test_a_32_bit_call_has_no_64_bit_name(tmp_path: Path, mode: str, backend: str) -> None:
    with pausing(tmp_path, mode) as pid:
        (thread,) = snap(pid, backend=backend).whole.threads
    assert thread.syscall is None
    assert thread.label is not Label.VERIFIED
