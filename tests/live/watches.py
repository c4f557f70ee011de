# SPDX-License-Identifier: Apache-2.0
"""Watch a server by the wait programs while it stalls, and let the waits take captures."""

from __future__ import annotations

import functools
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from stallscope.analyzers import catalog, engine
from stallscope.analyzers.analysis import Finding
from stallscope.model.capture import Capture
from tests.live.shots import unharmed
from tests.support.servers import PATIENCE, SqlServer
from tests.support.watching import Line, Watcher, watcher

__all__ = [
    "EVENTS_FIRST",
    "captured_by",
    "first_capture",
    "functions",
    "in_flight",
    "tids",
    "watched",
]

CAPTURE_MS = 200
NEVER_MS = 3_600_000
EVENTS_FIRST = ("--threshold", "50", "--capture-threshold", str(NEVER_MS))
"""What goes on is reported, and takes no capture before the stall stands: see captured_by()."""


@contextmanager
def watched(server: SqlServer, *options: str) -> Iterator[Watcher]:
    """Watch a server; to attach the probes must cost it nothing."""
    with ExitStack() as stack:
        with unharmed(server):
            watch = stack.enter_context(watcher(server.pid, options=("--events", *options)))
        yield watch


def functions(frames: list[str]) -> set[str]:
    """Return the names of the functions, without arguments, in the stack of an event."""
    return {frame.partition("(")[0] for frame in frames}


def in_flight(*kinds: str, within: str = "", name: str = "") -> Callable[[Line], bool]:
    """Return a condition: the event of a wait of these kinds that goes on."""
    return lambda event: (
        event["in_flight"]
        and event["kind"] in kinds
        and name in event["name"]
        and (not within or within in functions(event["frames"]))
    )


@functools.cache
def signatures() -> catalog.Catalog:
    return catalog.load()


def verdict(capture: Capture) -> Finding | None:
    findings = engine.analyze(capture, signatures()).findings
    return findings[0] if findings else None


def captured_by(watch: Watcher, signature: str, kind: str = "all") -> tuple[Capture, Finding]:
    """Let waits of this kind take captures until one has this verdict; return it.

    What is slow before has taken none: a disk may be, or a machine that starts one thread now and
    the next one much later. Afterwards they take none again.
    """
    watch.ask(f"capture-threshold {kind} {CAPTURE_MS}", "capture-threshold")
    found = first_capture(watch, signature)
    watch.ask(f"capture-threshold {kind} {NEVER_MS}", "capture-threshold")
    return found


def first_capture(watch: Watcher, signature: str) -> tuple[Capture, Finding]:
    """Return the first capture of this verdict that a wait has taken; wait for it."""
    seen: Counter[str | None] = Counter()
    deadline = time.monotonic() + PATIENCE
    for number in itertools.count():
        capture = watch.capture(number)
        found = verdict(capture)
        if found is not None and found.signature == signature and found.blocker is not None:
            return capture, found
        seen[found.signature if found is not None else None] += 1
        assert time.monotonic() < deadline, f"no {signature} with a blocker among {seen}"
    raise AssertionError


def tids(watch: Watcher, wanted: Callable[[Line], bool]) -> set[int]:
    return {event["tid"] for event in watch.events() if wanted(event)}
