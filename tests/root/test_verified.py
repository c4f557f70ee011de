# SPDX-License-Identifier: Apache-2.0
"""What is labelled verified or sampled is true, also of threads that never rest."""

from __future__ import annotations

from collections import Counter

import pytest
from serving import ask_snap, serving
from targets import Target

from stallscope.model import Label, Thread
from tests.root.support import BACKENDS, own_frames, without_plt

__all__: list[str] = []

CAPTURES = 150
THREADS = 8


def is_one_chain(names: list[str]) -> bool:
    """Say whether the frames are one unbroken way down from the thread's start."""
    if not names or names[-1] != "flip_main":
        return False
    names = names[-2::-1]
    for chain in ("heads", "tails"):
        whole = [f"{chain}_{nr}" for nr in range(10)] + [f"{chain}_nap"]
        if names == whole[: len(names)]:
            return True
    return False


def describe(thread: Thread) -> str:
    return f"{thread.label} {thread.state} {own_frames(thread, 'target-flip')}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_verified_stack_is_torn(backend: str) -> None:
    """The threads sleep and wake every few microseconds, in one chain of frames or another."""
    seen: Counter[str] = Counter()
    with Target("flip", str(THREADS)) as target, serving(target.pid, backend) as process:
        tids = {fact.tid for fact in target.facts}
        before = target.ask("turns")["turns"]
        for _ in range(CAPTURES):
            for thread in ask_snap(process).threads:
                if thread.tid not in tids:
                    continue
                names = without_plt(own_frames(thread, "target-flip"))
                right = is_one_chain(names)
                seen[f"{thread.label}, {'right' if right else 'wrong' if names else 'none'}"] += 1
                if thread.label is Label.VERIFIED or (
                    thread.label is Label.RUNNING and thread.frames
                ):
                    assert right, describe(thread)
        # ptrace stops them most of the time where others want the CPUs, too.
        least = THREADS if backend == "ptrace" else CAPTURES
        assert target.ask("turns")["turns"] > before + least
    print(dict(seen))
    if backend != "proc":  # it can say nothing of threads that wait for a CPU
        assert seen["verified, right"] > CAPTURES, seen
