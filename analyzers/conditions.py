# SPDX-License-Identifier: Apache-2.0
"""States of the whole process in which no stack matters: stopped, frozen, swapped out, ending.

Its threads sit in ordinary stacks then, most of them idle ones: without this a server that stands
still looks healthy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stallscope.analyzers.blame import Case
from stallscope.analyzers.scene import Scene
from stallscope.analyzers.waits import IDLE
from stallscope.model.capture import FROZEN

__all__ = ["case"]

MOST = 0.9
"""Of the threads: so many show the state of the whole process. One that has just been created, or
that ends, does not."""
SWAPPED = 0.3
"""Of the threads that have something to do."""
LEAST_SWAPPED = 3
INNERMOST = 3
"""Kernel frames in which a thread is that is frozen."""

_STOPPED = frozenset(("T", "t"))
# Linux' kernel/freezer.c and kernel/cgroup/freezer.c; the second is static, and inlined by some
# compilers into get_signal(), in which no other thread sleeps.
_FROZEN = frozenset(("__refrigerator", "do_freezer_trap", "cgroup_enter_frozen"))
_TRAPPED = "get_signal"
_ENDING = frozenset(("do_coredump", "vfs_coredump", "coredump_wait", "do_exit", "do_group_exit"))
_SWAPPING = frozenset(("do_swap_page", "swapin_readahead", "swap_readpage", "swap_read_folio"))


def case(scene: Scene) -> Case | None:
    """Return the case of the whole process, None where it lives."""
    threads = scene.capture.threads
    if not any(thread.tid for thread in threads):
        return None
    every = range(len(threads))
    for signature, fits, says in _WHOLE:
        found = [index for index in every if fits(scene, index)]
        if found and signature == "process-frozen":
            # A thread that slept when its group was frozen sleeps where it was, in state D.
            found = [index for index in every if fits(scene, index) or threads[index].state == "D"]
        if scene.weight(found) >= MOST * scene.total:
            return _case(scene, signature, found, says, whole=True)
    swapped = [index for index in scene.active if _is_swapping(scene, index)]
    count = scene.weight(swapped)
    if count >= LEAST_SWAPPED and count >= SWAPPED * scene.weight(scene.active):
        return _case(scene, "process-swapped", swapped, "wait for their memory from swap")
    return None


def _case(
    scene: Scene, name: str, found: Sequence[int], says: str, *, whole: bool = False
) -> Case | None:
    signature = scene.catalog.by_id.get(name)
    if signature is None:
        return None
    text = f"{scene.weight(found)} of {scene.total} threads {says}"
    return Case(signature, tuple(found), None, says=(text,), sure=True, whole=whole)


def _is_stopped(scene: Scene, index: int) -> bool:
    return scene.capture.threads[index].state in _STOPPED


def _is_frozen(scene: Scene, index: int) -> bool:
    thread = scene.capture.threads[index]
    processes = scene.capture.processes
    if thread.process < len(processes) and processes[thread.process].strings.get(FROZEN) == "1":
        return True
    if thread.state == "D" and scene.states[index] == IDLE:
        return True  # who waits for work sleeps in state S
    names = [str(frame) for frame in thread.kernel_frames]
    if _FROZEN.intersection(names[:INNERMOST]):
        return True
    return thread.state == "S" and names[:1] == [_TRAPPED]


def _is_ending(scene: Scene, index: int) -> bool:
    thread = scene.capture.threads[index]
    if thread.state in ("Z", "X"):
        return True
    return not _ENDING.isdisjoint(str(frame) for frame in thread.kernel_frames)


def _is_swapping(scene: Scene, index: int) -> bool:
    frames = scene.capture.threads[index].kernel_frames
    return not _SWAPPING.isdisjoint(str(frame) for frame in frames)


_WHOLE: tuple[tuple[str, Callable[[Scene, int], bool], str], ...] = (
    ("process-ending", _is_ending, "end, or wait until the core of the process is written"),
    ("process-frozen", _is_frozen, "are frozen by a control group"),
    ("process-stopped", _is_stopped, "are stopped"),
)
