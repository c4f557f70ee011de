# SPDX-License-Identifier: Apache-2.0
"""Waits are the same whatever sees them: the wait programs, the ring of the library, or polling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stallscope.collectors import rings as find_rings
from stallscope.model.waitlines import Notice
from tests.root.mutex_waits import WAITER, assert_convoy, assert_nothing_lost, own
from tests.root.support import assert_unharmed
from tests.support.known_waits import Made, known_waits, make
from tests.support.servers.inside import one_ring, preloaded
from tests.support.targets import Target
from tests.support.watching import Waits, key_of

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "probe")

MAX_ERROR_MS = 2.0
ROUNDING_MS = 0.001
ONCE = ("--interval", "3600000")
"""No line but the last."""
OPTIONS = {
    "bpf": ("--backend", "bpf"),
    "inproc": ("--backend", "inproc", "--ring"),
    "poll": ("--backend", "poll", "--poll-interval", "10"),
}
BPF = pytest.param("bpf", marks=[pytest.mark.needs("waits")])
INPROC = pytest.param("inproc", marks=[pytest.mark.needs("library")])
MATRIX = (
    pytest.param("bpf", marks=[pytest.mark.needs("waits"), pytest.mark.kernels("waits")]),
    pytest.param("inproc", marks=[pytest.mark.needs("library"), pytest.mark.kernels("inproc")]),
    pytest.param("poll", marks=[pytest.mark.needs("poll"), pytest.mark.kernels("poll")]),
)
"""Those that other kernels try as well."""


class Source:
    """One of those, and targets that it can see."""

    def __init__(self, name: str, rings: Path) -> None:
        self.name = name
        self.rings = rings

    @contextmanager
    def target(self, folder: Path, waiters: int = 1, idle: int = 4) -> Iterator[Target]:
        """Start a target, with the library in it where that is asked."""
        env = preloaded(self.rings) if self.name == "inproc" else None
        with known_waits(folder, waiters, idle, env=env) as target:
            if env is not None:
                one_ring(self.rings)
            yield target

    def watch(self, target: Target, *options: str) -> Waits:
        rings = [str(self.rings)] if self.name == "inproc" else []
        return Waits(*OPTIONS[self.name], *rings, *options, pids=(target.pid,))


@pytest.fixture(params=[BPF, INPROC])
def source(request: pytest.FixtureRequest, rings: Path) -> Source:
    return Source(request.param, rings)


@pytest.fixture
def target(source: Source, tmp_path: Path) -> Iterator[Target]:
    with source.target(tmp_path, waiters=8, idle=6) as target:
        yield target
        assert target.running()
        assert_unharmed(target.pid)


@pytest.mark.parametrize("source", MATRIX[:2], indirect=True)
def test_counts_are_exact(source: Source, target: Target) -> None:
    make(target, "fsync 7")  # nobody watches yet
    with source.watch(target, *ONCE, "--threshold", "1", "--events") as watch:
        synced = make(target, "fsync 23")
        space = make(target, "fallocate 29 65536")
        locked = make(target, "mutex 31 5")
        final = watch.finish()
    assert final.source == source.name
    assert final.kinds["fsync"].count == 23
    assert final.kinds["fallocate"].count == 29
    assert (final.kinds["mutex"].count, final.kinds["mutex"].over) == (31, 31)
    for kind, waits in final.kinds.items():
        assert sum(count for _, _, count in waits.histogram) == waits.count, kind
    for made in (synced, space):
        key = key_of(final, made.operation, made.path)
        assert key.count == len(made.calls)
        assert key.total_ms <= sum(call.length_ns for call in made.calls) / 1e6
        assert key.max_ms <= max(call.length_ns for call in made.calls) / 1e6
    key = key_of(final, "mutex")
    assert (key.name, key.address) == ("the_mutex", locked.address)
    assert_lengths(watch, locked)
    assert_nothing_lost(final, *(("rate",) if source.name == "inproc" else ()))


def assert_lengths(watch: Waits, made: Made) -> None:
    """Assert that each wait that was made was reported once, with its length.

    The lengths agree at best: a thread that has to do without its CPU on its way out, or whose
    machine has to, reads the clock late.
    """
    ended = [event for event in watch.events if event.kind == "mutex" and not event.in_flight]
    assert [event.tid for event in ended] == [call.tid for call in made.calls]
    longer = []
    for event, call in zip(ended, made.calls, strict=True):
        assert (call.released_ns - call.asleep_ns) / 1e6 <= event.length_ms
        assert event.length_ms <= call.length_ns / 1e6 + ROUNDING_MS
        longer.append(call.length_ns / 1e6 - event.length_ms)
    assert min(longer) < MAX_ERROR_MS


@pytest.mark.small
@pytest.mark.parametrize("source", MATRIX, indirect=True)
def test_convoy_in_flight(source: Source, target: Target) -> None:
    threshold = "30" if source.name == "poll" else "1"
    options = ("--interval", "20", "--threshold", threshold, "--events")
    with source.watch(target, *options) as watch:
        made = make(target, "hold mutex 8")
        line = watch.line()
        # A waiter is reported once its stack is known.
        while (
            line.kinds["mutex"].in_flight != 8
            or len({event.tid for event in watch.events if event.kind == "mutex"}) < 8
        ):
            line = watch.line()
        assert len(made.calls) == 8
        assert_convoy(watch, target, made, line)


@pytest.mark.small
def test_waits_below_their_threshold_in_flight(source: Source, target: Target) -> None:
    """No record shows them yet: the lock words do, or a waiter that has lost its patience."""
    with source.watch(target, "--interval", "20", "--threshold", "60000") as watch:
        made = make(target, "hold mutex 5")
        line = watch.line()
        while not any(key.in_flight == 5 and key.owner_tid for key in line.keys):
            line = watch.line()
        key = key_of(line, "mutex", "the_mutex")
        assert (key.address, key.owner_tid) == (made.address, made.holder)
        # The idle threads, which nobody has sampled, are not among them.
        assert not [key for key in line.keys if key.kind in ("cond", "futex", "sem")]
        make(target, "release")
        watch.finish()


@pytest.mark.small
def test_short_waits_are_classified_too(source: Source, target: Target) -> None:
    """A lock that nobody waits for as long as the threshold is a lock all the same."""
    with source.watch(target, *ONCE, "--threshold", "60000") as watch:
        make(target, "mutex 5 1")
        final = watch.finish()
    key = key_of(final, "mutex", "the_mutex")
    assert (key.count, key.over, key.waiters) == (5, 0, ())
    assert final.kinds["futex"].count == 0


@pytest.mark.small
@pytest.mark.needs("libc-symbols")
def test_idle_threads_are_no_stall(source: Source, target: Target) -> None:
    """Six threads wait for work all the time, and others for work that comes."""
    with source.watch(target, *ONCE, "--threshold", "1", "--events") as watch:
        make(target, "cond 9 3 2")
        final = watch.finish()
    assert final.kinds["cond"].count == 18
    assert not [key for key in final.keys if key.kind == "cond"]
    assert not [event for event in watch.events if event.kind in ("cond", "futex")]
    with source.watch(target, *ONCE, "--kind", "cond") as watch:
        make(target, "cond 2 3")
        shown = watch.finish()
    assert key_of(shown, "cond", "the_cond").count == 2


def test_intervals_add_up(source: Source, target: Target) -> None:
    with source.watch(target, "--interval", "30") as watch:
        for _ in range(10):
            make(target, "fsync 5")
            watch.line()
        final = watch.finish()
    lines = [line for line in watch.lines if not line.final]
    assert final.kinds["fsync"].count == 50
    assert sum(line.kinds["fsync"].count for line in lines) <= 50
    assert sum(line.seconds for line in lines) <= final.seconds
    assert max(line.kinds["fsync"].max_ms for line in lines) <= final.kinds["fsync"].max_ms
    assert [bool(line.programs) for line in watch.lines] == [True] + [False] * len(lines)


@pytest.mark.small
def test_threshold_changes(source: Source, target: Target) -> None:
    def of_the_ring() -> object:
        """A reader leaves the server as it was."""
        return source.name == "inproc" and find_rings.read(one_ring(source.rings)).thresholds_ms

    before = of_the_ring()
    with source.watch(target, *ONCE, "--threshold", "60000") as watch:
        make(target, "mutex 3 5")
        assert watch.ask(b"threshold lock 1") == Notice("threshold")
        make(target, "mutex 4 5")
        final = watch.finish()
    assert (final.kinds["mutex"].count, final.kinds["mutex"].over) == (7, 4)
    assert final.kinds["mutex"].threshold_ms == 1.0
    assert of_the_ring() == before


@pytest.mark.small
def test_the_target_ends(source: Source, tmp_path: Path) -> None:
    with source.target(tmp_path) as target, source.watch(target, *ONCE) as watch:
        synced = make(target, "fsync 6")
        target.close()
        final = watch.rest()
    assert watch.notices[-1] == Notice("ended", target.pid)
    assert final.kinds["fsync"].count == 6
    assert key_of(final, "fsync", synced.path).count == 6
    assert final.targets[0].pid == target.pid


@pytest.mark.small
def test_follows_to_the_next(source: Source, tmp_path: Path) -> None:
    with (
        source.target(tmp_path) as first,
        source.watch(first, *ONCE, "--follow", "--threshold", "1") as watch,
    ):
        make(first, "fsync 6")
        first.close()
        assert watch.read() == Notice("ended", first.pid)
        with source.target(tmp_path) as second:
            assert watch.ask(f"target {second.pid}".encode()) == Notice("target", second.pid)
            make(second, "fsync 2")
            make(second, "mutex 2 5")
            final = watch.finish()
    assert final.kinds["fsync"].count == 8
    assert {key.pid: key.count for key in final.keys if key.kind == "fsync"} == {
        first.pid: 6,
        second.pid: 2,
    }
    key = key_of(final, "mutex", "the_mutex")
    assert (key.pid, key.count, key.over) == (second.pid, 2, 2)
    assert [own(stack.frames) for stack in key.waiters] == [WAITER]
