# SPDX-License-Identifier: Apache-2.0
"""Whether a stall is notified once, and in time, while something around the agent fails."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.bench import agent_faultkinds as kinds
from tests.bench import agent_faultmoments, progress
from tests.bench.agent_faultkinds import Scene, Sizes
from tests.bench.stats import BenchError, Row, Section
from tests.support.receivers import Posted, receiver
from tests.support.servers import Late, MariaDB, wait_until
from tests.support.stalls import metadata_lock_pileup

__all__ = ["FULL", "QUICK", "sections"]

GOAL_SECONDS = 5.0
"""From the cure to the notification."""
FULL = Sizes(down_seconds=600.0, kills=200, stored=5_000, servers=20)
QUICK = Sizes(down_seconds=30.0, kills=20, stored=500, servers=4)


@dataclass(frozen=True)
class Outcome:
    """What was notified, and when."""

    stalls: int
    """How many were made."""
    notified: int
    """How many different stalls were notified."""
    ended: int
    deliveries: int
    after_stall: float
    after_cure: float | None
    """Of the latest notification; None: each was sent before the cure."""
    damage: str
    """What is wrong with the store; empty: every incident is whole."""
    more: str = ""

    @property
    def once(self) -> bool:
        """Return whether each stall was notified, and its end, and nothing else."""
        return self.notified == self.ended == self.stalls

    @property
    def in_time(self) -> bool:
        return self.after_cure is None or self.after_cure <= GOAL_SECONDS

    def row(self, name: str) -> Row:
        cure = "before it" if self.after_cure is None else f"{self.after_cure:.1f} s"
        return Row(
            name,
            {
                "stalls": str(self.stalls),
                "notified": f"{self.notified}, ends {self.ended}",
                "repeated": str(self.deliveries - self.notified - self.ended),
                "after the stall": f"{self.after_stall:.1f} s",
                "after the cure": cure,
                "incidents": self.damage or "whole",
                "": self.more,
            },
        )


def sections(
    quick: bool, only: list[str], moments: agent_faultmoments.Options
) -> Iterator[Section]:
    """Yield a table of all faults, or of those whose names begin as one of ``only``; and one of
    those at random moments, which are chosen by their whole names, or alone by their number."""
    chosen = [name for name in agent_faultmoments.KINDS if name in only]
    if len(chosen) < len(only) or not (only or moments.moments):
        yield fixed(quick, [name for name in only if name not in chosen])
    if chosen or not only:
        yield agent_faultmoments.section(moments, chosen, quick=quick)


def fixed(quick: bool, only: list[str]) -> Section:
    """Make the faults whose moment is always the same."""
    sizes = QUICK if quick else FULL
    faults: dict[str, Callable[[Scene], AbstractContextManager[kinds.Fault]]] = kinds.faults(sizes)
    more: dict[str, Callable[[MariaDB, Path], Outcome]] = {
        f"agent killed {sizes.kills} times": lambda server, home: kills(server, home, sizes.kills),
        f"{sizes.stored} incidents stored": lambda server, home: stored(server, home, sizes.stored),
        f"{sizes.servers} servers, one agent": lambda _, home: servers(home, sizes.servers),
    }
    names = [name for name in (*faults, *more) if not only or name.startswith(tuple(only))]
    if not names:
        raise BenchError(f"no fault {', '.join(only)}; there are {', '.join((*faults, *more))}")
    rows, outcomes, left_out = [], [], []
    with MariaDB() as server:
        for name in names:
            progress(name)
            with tempfile.TemporaryDirectory(prefix="stallscope-fault-") as folder:
                try:
                    if name in faults:
                        outcome = tried(server, Path(folder), faults[name])
                    else:
                        outcome = more[name](server, Path(folder))
                except kinds.LeftOut as error:
                    left_out.append(f"{name}: {error}")
                    continue
                except (Late, BenchError) as error:
                    raise BenchError(f"{name}: {error}") from error
            outcomes.append(outcome)
            rows.append(outcome.row(name))
    return Section(
        "agent-faults",
        "Faults: what is notified of one stall",
        tuple(rows),
        checks=(
            "each stall is a real one (SELECTs behind ALTER TABLE); a webhook of the bench counts",
            "the key of a notification counts, a repeated delivery has the same",
        ),
        goals=(
            ("each stall and its end notified exactly once", all(one.once for one in outcomes)),
            (
                f"within {GOAL_SECONDS:g} s of the cure",
                all(one.in_time for one in outcomes),
            ),
            ("every incident on disk is whole", not any(one.damage for one in outcomes)),
        ),
        left_out=tuple(left_out),
    )


def tried(
    server: MariaDB, home: Path, fault: Callable[[Scene], AbstractContextManager[kinds.Fault]]
) -> Outcome:
    """Make a stall while something is wrong, and put it right again."""
    with receiver() as hook, ExitStack() as stack:
        scene = Scene(server, home, hook)
        made = stack.enter_context(fault(scene))
        scene.start(stack)
        made.begin()
        begun = time.monotonic()
        with (
            made.stall() if made.stall is not None else metadata_lock_pileup(server, kinds.WAITERS)
        ):
            begun = time.monotonic()
            made.wait(hook)
            made.cure()
            cured = time.monotonic()
            wait_until(lambda: of(hook, "stall"), "the stall is notified")
        wait_until(lambda: of(hook, "end"), "its end is notified")
        scene.stop()
        last = latest(hook)
        return outcome(hook, last - begun, last - cured, scene.damage())


def of(hook: kinds.Hook, event: str) -> tuple[Posted, ...]:
    return tuple(posted for posted in list(hook.posted) if posted.json["event"] == event)


def outcome(
    hook: kinds.Hook,
    after_stall: float,
    after_cure: float,
    damage: str,
    *,
    stalls: int = 1,
    more: str = "",
) -> Outcome:
    """Return what the webhook got, and these times of the latest stall; before the cure they are
    negative."""
    return Outcome(
        stalls,
        len(first_posts(hook)),
        len(keys(hook, "end")),
        len(hook.posted),
        after_stall,
        None if after_cure < 0 else after_cure,
        damage,
        more,
    )


def first_posts(hook: kinds.Hook) -> dict[str, Posted]:
    """Return the first notification of each stall."""
    found: dict[str, Posted] = {}
    for posted in of(hook, "stall"):
        found.setdefault(posted.json["key"], posted)
    return found


def latest(hook: kinds.Hook) -> float:
    """Return when the last of the stalls was notified first."""
    return max(posted.at for posted in first_posts(hook).values())


def keys(hook: kinds.Hook, event: str) -> set[str]:
    return {posted.json["key"] for posted in of(hook, event)}


def kills(server: MariaDB, home: Path, count: int) -> Outcome:
    """Kill the agent again and again; each stall outlives several agents."""
    chance = kinds.chances()
    after_stall: list[float] = []
    after_cure: list[float] = []
    with receiver() as hook, ExitStack() as stack:
        scene = Scene(server, home, hook)
        for begin in range(0, count, kinds.KILLS_A_STALL):
            known = set(first_posts(hook))
            with metadata_lock_pileup(server, kinds.WAITERS):
                begun = time.monotonic()
                for _ in range(min(kinds.KILLS_A_STALL, count - begin)):
                    scene.start(stack, ready=False)
                    scene.kill_after(chance.uniform(0.0, kinds.LONGEST_LIFE))
                scene.start(stack)
                cured = time.monotonic()
                wait_keys(hook, "stall", len(after_stall) + 1)
                first = min(one.at for key, one in first_posts(hook).items() if key not in known)
                after_stall.append(first - begun)
                after_cure.append(first - cured)
            wait_keys(hook, "end", len(after_stall))
            scene.stop()
        return outcome(
            hook,
            max(after_stall),
            max(after_cure),
            scene.damage(),
            stalls=len(after_stall),
            more=f"seed {chance.seed_used}",
        )


def wait_keys(hook: kinds.Hook, event: str, count: int) -> None:
    wait_until(lambda: len(keys(hook, event)) >= count, f"{event} {count} is notified")


def stored(server: MariaDB, home: Path, count: int) -> Outcome:
    """Make a stall where the store has many incidents."""
    with receiver() as hook, ExitStack() as stack:
        scene = Scene(server, home, hook)
        kinds.fill_store(scene.store, count)
        scene.start(stack)
        with metadata_lock_pileup(server, kinds.WAITERS):
            begun = time.monotonic()
            wait_until(lambda: of(hook, "stall"), "the stall is notified")
        wait_until(lambda: of(hook, "end"), "its end is notified")
        scene.stop()
        listed = f"listed in {scene.listing_seconds():.1f} s"
        after = latest(hook) - begun
        return outcome(hook, after, after, scene.damage(), more=listed)


def servers(home: Path, count: int) -> Outcome:
    """Make a stall in each of many servers; one agent watches all of them.

    The times are those of the latest one, each from its own stall: to make the stalls takes long
    where the processors are busy with those that are there.
    """
    with receiver() as hook, ExitStack() as stack:
        running = [stack.enter_context(MariaDB(*kinds.SMALL_SERVER)) for _ in range(count)]
        scene = Scene(running[0], home, hook, *running[1:])
        scene.start(stack)
        made: dict[int, float] = {}
        with ExitStack() as stalls:
            begun = time.monotonic()
            for server in running:
                stalls.enter_context(metadata_lock_pileup(server, kinds.WAITERS))
                made[server.pid] = time.monotonic()
            wait_keys(hook, "stall", count)
        wait_keys(hook, "end", count)
        scene.stop()
        after = max(
            posted.at - made[posted.json["incident"]["target"]["pid"]]
            for posted in first_posts(hook).values()
        )
        more = f"made in {max(made.values()) - begun:.1f} s"
        return outcome(hook, after, after, scene.damage(), stalls=count, more=more)
