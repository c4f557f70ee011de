# SPDX-License-Identifier: Apache-2.0
"""How long a stall has lasted: as the server and the waits report it, never since the capture."""

from __future__ import annotations

from stallscope.analyzers.analysis import Age, Finding
from stallscope.analyzers.scene import Scene

__all__ = ["of"]

LEAST_NS = 10**9
"""Servers count in seconds: less is not reported."""


def of(scene: Scene, finding: Finding) -> Age | None:
    """Return the age of a finding that this scene shows; None: nothing says it.

    A statement that waits began when its wait began, or before: the oldest of those that wait
    shows the age. Where the server lists no statements, what a burst has seen is the least.
    """
    threads = scene.capture.threads
    longest = scene.oldest_statement_ns(finding.members)
    if longest >= LEAST_NS:
        return Age(longest)
    by_source = max((threads[index].waited_ns or 0 for index in finding.members), default=0)
    if by_source:
        return Age(by_source)
    seen = max((scene.waited_ns(index) for index in finding.members), default=0)
    return Age(seen, at_least=True) if seen else None
