# SPDX-License-Identifier: Apache-2.0
"""Send the batches of one spool to its destination, in a thread of their own.

All times are of the monotonic clock. Thousands of agents ship to one engine: none of them begins at
once, and after a failure none comes at the same moment as the others.

Where an attempt with several batches fails, the next ones have fewer, down to one. A batch that
fails alone has its own pauses, and the others go past it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from stallscope.base.backoff import Backoff
from stallscope.base.sending import Channel, SendError
from stallscope.base.threads import keep_running
from stallscope.fleet.batch import Batch, make
from stallscope.fleet.destination import Destination
from stallscope.fleet.shipping.delivering import Delivered, deliver, merged
from stallscope.fleet.shipping.sentstacks import SentStacks
from stallscope.fleet.shipping.spool import MAX_FILES, Spool, Waiting
from stallscope.fleet.tables import STACKS, AgentRow

__all__ = ["Numbers", "Pace", "Sender"]

_log = logging.getLogger(__name__)

MERGED_FILES = 100
MERGED_ROWS = 2_000
MERGED_BYTES = 4 << 20
"""Of rows without compression: one send has at most these, or one batch."""
MOST_BEATS = 32
"""The most heartbeats that wait: one for each day and process."""


class Pace(msgspec.Struct, frozen=True):
    """Seconds from one attempt to the next."""

    heartbeat: float = 60.0
    first: float = 5.0
    """The first send is within that time."""
    first_beat: float = 30.0
    """The first heartbeat is within that time."""
    spread: float = 2.0
    """A new batch is sent within that time: a stall of many servers is no burst of requests."""
    retry: float = 1.0
    longest_retry: float = 300.0
    longest_wish: float = 3600.0
    """The longest pause that an engine can ask for."""


class Numbers(msgspec.Struct, frozen=True):
    """How a destination is."""

    waiting: int
    """Batches in the spool."""
    bytes: int
    sent: int
    """Rows, since the start."""
    dropped: int
    """Rows, also of earlier runs."""
    dropped_why: str
    failures: int
    """Attempts that failed, since the start."""
    why: str
    """Why it does not work now; empty: it does, or nothing was sent yet."""
    skew_ms: float | None
    cpu_seconds: float
    """Of its thread."""


class _Aside:
    """A batch that failed alone."""

    def __init__(self, backoff: Backoff) -> None:
        self.backoff = backoff
        self.not_before = 0.0
        """0: it goes with the others again."""


class Sender:
    """One destination and its thread."""

    def __init__(
        self,
        destination: Destination,
        spool: Spool,
        pace: Pace,
        beats: Callable[[Numbers], Sequence[AgentRow]] = lambda numbers: (),
        chance: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``beats`` returns the heartbeats that are due; it is called in the thread."""
        self.destination = destination
        self.spool = spool
        self._pace = pace
        self._beats = beats
        self._chance = chance or random.Random()  # noqa: S311  # so that agents differ
        self._clock = clock
        self._changed = threading.Condition()
        self._closing = False
        self._ends: float = 0.0
        self._stacks = SentStacks()
        self._held: dict[tuple[str, int, int], AgentRow] = {}
        """Heartbeats that are not sent yet, the latest of each day and process."""
        now = clock()
        self._channel = Channel(
            f"shipping to {destination.shown}",
            self._backoff(),
            pace.longest_wish,
            _log,
        )
        self._channel.not_before = now + self._chance.uniform(0, pace.first)
        self._beat_due = now + self._chance.uniform(0, min(pace.heartbeat, pace.first_beat))
        self._most = MERGED_FILES
        """Batches of one attempt."""
        self._aside: dict[str, _Aside] = {}
        self._failures = self._sent = 0
        self._noted: tuple[str, ...] = ()
        self._cpu = 0.0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to send."""
        if self._thread is None:
            self._thread = keep_running(f"ship {self.destination.shown}", self._work)

    def wake(self) -> None:
        """Look at the spool: it has a new batch."""
        with self._changed:
            if not self._channel.failed:
                soon = self._clock() + self._chance.uniform(0, self._pace.spread)
                self._channel.not_before = max(self._channel.not_before, soon)
            self._changed.notify_all()

    def hold(self, rows: Sequence[AgentRow]) -> None:
        """Take heartbeats that will not come again, such as the last one of a day."""
        with self._changed:
            self._hold(rows)

    def retry(self) -> None:
        """Try again now: somebody may have repaired what failed."""
        with self._changed:
            self._channel.not_before = min(self._channel.not_before, self._clock())
            self._changed.notify_all()

    def numbers(self) -> Numbers:
        """Return how it is."""
        counts = self.spool.counts
        return Numbers(
            waiting=len(self.spool),
            bytes=self.spool.size,
            sent=self._sent,
            dropped=counts.rows,
            dropped_why=counts.why,
            failures=self._failures,
            why=self._channel.why if self._channel.failed else "",
            skew_ms=self.destination.skew_ms,
            cpu_seconds=self._cpu,
        )

    def close(self, seconds: float, beats: Sequence[AgentRow] = ()) -> list[AgentRow]:
        """Send what can be sent in that time, with a last heartbeat, and end the thread.

        Return the heartbeats that were not sent; the batches are in the spool.
        """
        with self._changed:
            self._hold(beats)
            self._ends = self._clock() + seconds
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(seconds + 0.1)
        with self._changed:
            left = list(self._held.values())
        if self._thread is None or not self._thread.is_alive():
            self.destination.close()
        return left

    def _hold(self, rows: Sequence[AgentRow]) -> None:
        for row in rows:
            self._held[row.day, row.pid, row.started_ms] = row
        while len(self._held) > MOST_BEATS:
            del self._held[next(iter(self._held))]

    def _work(self) -> None:
        while self._wait():
            self._step()
            self._cpu = time.thread_time()

    def _wait(self) -> bool:
        """Wait until something is to be sent; False: it is time to end."""
        with self._changed:
            while True:
                now = self._clock()
                ready = 0.0 if self._held else self._ready()
                if self._closing:
                    can = ready <= now < self._ends
                    return can and not self._channel.backoff.failed
                due = max(self._channel.not_before, min(ready, self._beat_due))
                if due <= now:
                    return True
                self._changed.wait(min(due - now, 3600.0))

    def _step(self) -> None:
        """Make one attempt."""
        now = self._clock()
        if now >= self._beat_due and not self._closing:
            found = self._beats(self.numbers())
            # There is none before a server is watched: the first does not come a minute later.
            pace = self._pace.heartbeat if found else self._pace.retry
            self._beat_due = now + pace * self._chance.uniform(0.9, 1.1)
            with self._changed:
                self._hold(found)
        files, batch = self._next(now)
        with self._changed:
            # Not with a batch that is tried alone: which of them fails must be known.
            beats = [] if files and self._most == 1 else list(self._held.values())
        if beats:
            batch = merged([batch, make(beats)])
        if not batch.rows:
            self.spool.remove(files)  # of a later version, which has other tables
            if not files and self._ready() <= now:
                self._not_sent(SendError(f"the spool {self.spool.folder} cannot be read"))
            return
        new = self._stacks.without(batch)
        try:
            done = self._deliver(new)
        except SendError as error:
            self._not_sent(error, files)
            return
        except Exception as error:
            why = f"internal error: {type(error).__name__}: {error}"
            self._not_sent(SendError(why), files)
            return
        with self._changed:
            for key, row in list(self._held.items()):
                if row in beats:
                    del self._held[key]
        self._sent += batch.rows - done.refused
        if done.refused:
            why = f"{self.destination.shown} refused them: {done.why}"
            self.spool.lose(done.refused, why)
        notes = tuple(self.destination.notes)
        if notes != self._noted:
            self._noted = notes
            for note in notes:
                _log.warning("shipping: %s", note)
        with self._changed:
            self._channel.answers()
            self._taken(files)
        self.spool.remove(files)

    def _deliver(self, batch: Batch) -> Delivered:
        """Send the stacks, and then what refers to them: if that fails, the engine has the stacks,
        and the next attempt is smaller. Raises: SendError."""
        stacks = {name: lines for name, lines in batch.lines.items() if name == STACKS.name}
        done = Delivered(0)
        if stacks:
            done = deliver(self.destination, Batch(stacks))
            if not done.refused:
                self._stacks.add(batch)
        rest = Batch({name: of for name, of in batch.lines.items() if name not in stacks})
        if not rest.rows:
            return done
        other = deliver(self.destination, rest)
        return Delivered(
            done.sent + other.sent, done.refused + other.refused, other.why or done.why
        )

    def _backoff(self) -> Backoff:
        return Backoff(self._pace.retry, self._pace.longest_retry, 0.5, self._chance)

    def _ready(self) -> float:
        """Return when a file can be sent: the oldest that is not aside at once."""
        oldest = self.spool.oldest(len(self._aside) + 1)
        return min((self._not_before(one) for one in oldest), default=float("inf"))

    def _not_before(self, waiting: Waiting) -> float:
        aside = self._aside.get(waiting.name)
        return 0.0 if aside is None else aside.not_before

    def _next(self, now: float) -> tuple[list[Waiting], Batch]:
        """Return the oldest files, and their rows as one batch; or, where there is no other, one
        that failed alone."""
        files: list[Waiting] = []
        found: list[Batch] = []
        rows = size = 0
        oldest = self.spool.oldest(MERGED_FILES + len(self._aside))
        chosen = [one for one in oldest if not self._not_before(one)]
        if not chosen:
            chosen = sorted(oldest, key=self._not_before)[:1]
            chosen = [one for one in chosen if self._not_before(one) <= now]
        for waiting in chosen[: self._most]:
            if files and rows + waiting.rows > MERGED_ROWS:
                break
            batch = self.spool.read(waiting)
            if batch is None:
                continue
            new = sum(len(line) for lines in batch.lines.values() for line in lines)
            if files and size + new > MERGED_BYTES:
                break
            files.append(waiting)
            found.append(batch)
            rows, size = rows + batch.rows, size + new
        return files, merged(found)

    def _taken(self, files: Sequence[Waiting]) -> None:
        gone = [self._aside.pop(one.name, None) for one in files]
        if any(gone):  # what was not taken before may be taken now
            for aside in self._aside.values():
                aside.not_before = 0.0
        self._most = min(MERGED_FILES, 2 * self._most)
        if not self._aside:
            self._channel.works()

    def _not_sent(self, error: SendError, files: Sequence[Waiting] = ()) -> None:
        self._failures += 1
        now = self._clock()
        with self._changed:
            self._channel.fails(error, now)
            self._channel.pause(error, now)
            if error.after or not files:
                return
            if len(files) == 1:
                there = {one.name for one in self.spool.oldest(MAX_FILES)}
                for gone in self._aside.keys() - there:
                    del self._aside[gone]
                aside = self._aside.setdefault(files[0].name, _Aside(self._backoff()))
                aside.not_before = now + aside.backoff.next()
            elif not error.unreachable:  # the smaller part is tried soon
                self._channel.not_before = min(self._channel.not_before, now + self._pace.retry)
            self._most = max(1, len(files) // 2)
