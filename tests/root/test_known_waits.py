# SPDX-License-Identifier: Apache-2.0
"""The target that makes known waits reports them correctly."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.support.known_waits import known_waits, make
from tests.support.targets import Target, TargetError

__all__: list[str] = []

LOCKS = ("mutex", "rwlock", "sem", "cond")
OPERATIONS = (
    "fsync",
    "fdatasync",
    "sync_file_range",
    "msync",
    "syncfs",
    "fallocate",
    "ftruncate",
    "extend",
    "unlink",
    "rename",
    "write",
    "read",
)
NS_PER_MS = 1_000_000


def futex_of(pid: int, tid: int) -> int | None:
    """Return the address that a thread waits for in futex, by /proc/PID/task/TID/syscall."""
    words = Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()
    return int(words[1], 16) if words[0] == "202" else None


@pytest.mark.parametrize("kind", LOCKS)
def test_lock_waits_are_as_long_as_they_say(kind: str, tmp_path: Path) -> None:
    with known_waits(tmp_path, waiters=5) as target:
        alone = make(target, f"{kind} 31 3").calls
        together = make(target, f"{kind} 2 3 5").calls
    assert len(alone) == 31
    assert len(together) == 10
    for call in (*alone, *together):
        assert call.start_ns < call.asleep_ns < call.released_ns < call.end_ns
        assert call.released_ns - call.asleep_ns >= 3 * NS_PER_MS
        # It slept once: there is one wait to be seen, as long as the call.
        assert call.voluntary == 1, call
    assert len({call.tid for call in alone}) == 1
    assert len({call.tid for call in together}) == 5


@pytest.mark.parametrize("kind", LOCKS)
def test_held_lock_has_its_waiters_asleep(kind: str, tmp_path: Path) -> None:
    with known_waits(tmp_path, waiters=3) as target:
        held = make(target, f"hold {kind} 3")
        assert held.address is not None
        word = int(held.address, 16)
        for call in held.calls:
            at = futex_of(target.pid, call.tid)
            assert at is not None
            assert word <= at < word + 64
        with pytest.raises(TargetError, match="release first"):
            make(target, f"{kind} 1 1")
        released = make(target, "release")
        assert len(released.calls) == 3
        tids = {call.tid for call in held.calls}
        assert {call.tid for call in released.calls} == tids
        assert all(futex_of(target.pid, tid) is None for tid in tids)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_are_as_many_as_asked(operation: str, tmp_path: Path) -> None:
    with known_waits(tmp_path) as target:
        made = make(target, f"{operation} 7 4096")
    assert len(made.calls) == 7
    assert {call.tid for call in made.calls} == {target.pid}
    assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(made.calls))
    assert made.path is not None
    file = Path(made.path)
    if operation in ("fallocate", "ftruncate", "extend"):
        assert file.stat().st_size == 7 * 4096
    assert file.exists() == (operation not in ("unlink", "rename"))


def test_nobody_else_waits_for_a_lock(tmp_path: Path) -> None:
    """Only the idle threads are in a futex, each in its own."""
    with known_waits(tmp_path, waiters=3, idle=6) as target:
        idle = {fact.tid: fact for fact in target.threads}
        assert len(idle) == 9
        for task in Path(f"/proc/{target.pid}/task").iterdir():
            at = futex_of(target.pid, int(task.name))
            fact = idle.get(int(task.name))
            if fact is None or fact.wait == "poll":
                assert at is None
            else:
                word = int(fact.address, 16)
                assert at is not None
                assert word <= at < word + 64, fact


def test_the_storm_counts_its_operations() -> None:
    def run(milliseconds: int) -> dict[str, Any]:
        return target.ask(f"run {milliseconds}")

    with Target("storm", "8", "1000", "1000") as target:
        short, long = run(100), run(300)
        for done, milliseconds in ((short, 100), (long, 300)):
            assert done["ns"] >= milliseconds * NS_PER_MS
            # Not by time: a machine that was slow when the work was measured is fast later.
            assert 0 < done["operations"] == done["passes"]
            assert done["voluntary"] > 0


def test_costs_are_reported_for_every_kind() -> None:
    with Target("costs") as target:
        for kind in ("getppid", "futex_changed", "futex_wake", "futex_wait", "function"):
            assert 1 < target.ask(f"{kind} 20")["ns"] < 1000 * NS_PER_MS, kind
        assert target.ask("nothing 20") == {"error": "no such command"}
