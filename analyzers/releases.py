# SPDX-License-Identifier: Apache-2.0
"""What the releases of a lock show about its holders, where no holder is in the capture.

The in-process library records waits, and releases of locks that others had waited long for. It does
not see threads that hold a lock and do not wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from stallscope.analyzers.catalog import Signature
from stallscope.analyzers.scene import Candidate, Scene
from stallscope.model.capture import Release

__all__ = ["SOURCE", "blocker", "described", "when"]

SOURCE = "release"
"""The source of a blocker that was found by its release."""

LOCKS = 3
RELEASES = 2
"""The most releases of one lock that are described."""


def blocker(scene: Scene, signature: Signature, waiters: Sequence[int]) -> Candidate | None:
    """Return the last releaser of the lock with most waiters, where it matches the signature."""
    lock = next(iter(scene.queues(waiters)), None)
    if lock is None:
        return None
    sure = scene.released_as(signature, lock)
    for number in scene.releases.get(lock, ()):
        release = scene.capture.releases[number]
        thread = scene.thread_of(release.process, release.tid)
        if thread is None:
            continue
        entry = scene.letting_go(signature, number) if sure else None
        role = entry.role if entry is not None else _holder(scene, signature, number)
        if role is not None:
            return Candidate(
                thread=thread,
                source=SOURCE,
                role=f"{role}, and released it {when(release)}",
                chains=False,
                certain=False,
                release=number,
                unseen=entry.unseen if entry is not None else "",
            )
    return None


def described(scene: Scene, waiters: Sequence[int]) -> list[str]:
    """Return the last releasers of the locks that these threads wait for, and their frames."""
    out = []
    for lock in list(scene.queues(waiters))[:LOCKS]:
        item = scene.capture.locks[lock]
        name = item.symbol or f"{item.address:#x}"
        for number in scene.releases.get(lock, ())[:RELEASES]:
            release = scene.capture.releases[number]
            places = " < ".join(scene.stacks.releases[number].significant()) or "no frames"
            out.append(f"{name} was released by thread {release.tid} {when(release)}, in {places}")
    return out


def when(release: Release) -> str:
    """Return how long before the capture it was, and how long others had waited."""
    text = f"{_milliseconds(release.ago_ns)} before"
    if release.waited_ns is not None:
        text += f", after a wait of {_milliseconds(release.waited_ns)}"
    return text


def _milliseconds(ns: int) -> str:
    ms = ns / 1e6
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms"


def _holder(scene: Scene, signature: Signature, number: int) -> str | None:
    """Return the role of a holder in the frames of the release, where one is enough."""
    if signature.holder_use == "required":
        return None
    entry = signature.certain_holder(scene.stacks.releases[number].holder_of.get(signature.id, ()))
    if entry is None:
        return None
    return signature.holders[entry].role or "was in a function of the holder"
