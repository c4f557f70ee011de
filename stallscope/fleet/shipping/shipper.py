# SPDX-License-Identifier: Apache-2.0
"""What an agent ships of one server: incidents, waits, and heartbeats.

Calls never block: they leave work for a thread, which makes rows, and puts them into the spool of
each destination; from there each is sent by a thread of its own (sender.py).
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.base.threads import keep_running, traced
from stallscope.fleet.address import Address
from stallscope.fleet.batch import Batch, make
from stallscope.fleet.destination import Destination
from stallscope.fleet.facts import Facts
from stallscope.fleet.rows import rows_of
from stallscope.fleet.settings import ShipSettings, spool_bytes
from stallscope.fleet.shipping.record import Record
from stallscope.fleet.shipping.sender import Numbers, Pace, Sender
from stallscope.fleet.shipping.spool import Spool, folder_name, put_all, tidy
from stallscope.fleet.shipping.stored import Request, StoredRows
from stallscope.fleet.shipping.waitminutes import WaitMinutes
from stallscope.fleet.shipping.watched import Watched, WatchedDays
from stallscope.fleet.tables import AgentRow, Row
from stallscope.model.incident import Incident, Origin, TargetEntry
from stallscope.model.samples import Sample
from stallscope.model.waitlines import WaitLine
from stallscope.store import files, layout, listing, owners, read_incident

__all__ = ["Shipper", "Target"]

_log = logging.getLogger(__name__)

RECORD = "incidents"
MAX_JOBS = 1_000
"""The most work that waits for the thread."""
MAX_SAMPLES = 4 << 20
"""Bytes of a file of samples that the agent unpacks; a longer one is for `fleet ship`."""
STORED_MS = 7 * 86_400_000
"""Incidents that an agent before this one could not ship are not older."""
_NEVER = 86_400.0
_LEFT_SECONDS = 0.4
"""For the heartbeats that go into the spool at the end."""

Job = Callable[[], None]


class Target(msgspec.Struct, frozen=True):
    """An address, and what sends to it."""

    address: Address
    destination: Destination


class Shipper:
    """Ships what one agent finds. Without a target it does nothing."""

    def __init__(
        self,
        folder: Path,
        settings: ShipSettings,
        targets: Sequence[Target] = (),
        *,
        store: Path | None = None,
        signatures: Sequence[Path] = (),
        continues: float = 0.0,
        pace: Pace | None = None,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """``folder``: of all spools of this server. ``continues``: one agent follows the other, so
        many seconds after it began (cron). ``pace``: for tests."""
        self._folder = folder
        self._settings = settings
        self._store = store
        self._signatures = [str(path) for path in signatures]
        self._continues = continues
        self._given_pace = pace
        self._wall_ns = wall_ns
        self._targets = tuple(targets)
        self._senders: dict[str, Sender] = {}
        self._jobs: queue.Queue[Job | None] = queue.Queue(MAX_JOBS)
        self._thread: threading.Thread | None = None
        self._record: Record | None = None
        self._origins: dict[int, Origin] = {}
        self._waits = WaitMinutes(redact=settings.redact)
        every = max(settings.heartbeat, continues)
        self._days = WatchedDays(folder, settings.host, every, continues=bool(continues))
        self._lock = threading.Lock()
        self._waits_due = 0.0
        self._stored = StoredRows()
        self._cpu = 0.0
        self.failed = 0
        """Incidents that could not be made into rows, or for which there was no room."""

    @property
    def active(self) -> bool:
        """Whether there is a destination."""
        return bool(self._targets)

    def start(self) -> None:
        """Go on with what the spool holds: this must be the server's only agent."""
        if self._thread is None and self._targets:
            self._waits_due = time.monotonic() + self._settings.waits_every
            self._days.load()
            self._put(self._open)
            self._thread = keep_running("shipper", self._work)

    # What the agent says, in its loop's thread.

    def take(
        self,
        event: str,
        number: int,
        incident: Incident,
        folder: Path | None,
        facts: Facts | None = None,
    ) -> None:
        """Take what happened to an incident: ``verdict`` and ``end`` are shipped."""
        if event in ("verdict", "end") and self._thread is not None:
            self._put(lambda: self._incident(event, number, incident, folder, facts))

    def waits(self, line: WaitLine) -> None:
        """Count the waits of an interval."""
        if self._thread is not None:
            self._waits.add(line)

    def watch(self, watched: Watched) -> None:
        """Take which server is watched, and whether it runs; every few seconds."""
        if self._thread is None:
            return
        with self._lock:
            before = self._days.watched
            if before is not None and before.pid != watched.pid:
                self._put(lambda: self._flush_waits(before, unfinished=True))
            ended = self._days.note(watched, self._wall_ns(), time.monotonic())
        if ended:
            for sender in list(self._senders.values()):
                sender.hold(ended)

    def recover(self, mine: Callable[[TargetEntry], bool]) -> None:
        """Ship incidents of the store that a killed agent has not, where they are ``mine``."""
        if self._thread is not None and self._store is not None:
            self._put(lambda: self._look_back(mine))

    def configure(self, settings: ShipSettings, targets: Sequence[Target]) -> None:
        """Use other destinations; those that stay keep what waits for them."""
        old, self._settings = self._settings, settings
        self._targets = tuple(targets)
        self._waits.redact = settings.redact
        self._days.host = settings.host
        self._days.every_s = max(settings.heartbeat, self._continues)
        if self._thread is None:
            self.start()
        elif not self._put(lambda: self._use_targets(changed=old != settings)):
            _log.error("shipping is not reloaded: too much waits for its disk")

    def numbers(self) -> Mapping[str, Numbers]:
        """Return how each destination is, by its address."""
        return {name: sender.numbers() for name, sender in list(self._senders.items())}

    def problems(self) -> dict[str, str]:
        """Return why destinations do not work at present."""
        return {name: one.why for name, one in self.numbers().items() if one.why}

    @property
    def cpu_seconds(self) -> float:
        """Return the CPU time of its threads since their start."""
        return self._cpu + sum(one.cpu_seconds for one in self.numbers().values())

    def close(self, seconds: float) -> bool:
        """Put what is known into the spool, send what can be sent in that time, and end.

        Return whether nothing is left. What is left is in the spool.
        """
        if self._thread is None:
            return True
        end = time.monotonic() + seconds
        self._stored.close()
        with contextlib.suppress(queue.Full):
            self._jobs.put(None, timeout=max(0.0, seconds))
        self._thread.join(max(0.1, end - time.monotonic()))
        with self._lock:
            last = self._days.last(self._wall_ns(), time.monotonic())
        closing = []
        for name, sender in self._senders.items():
            rows = [self._with_numbers(row, sender.numbers()) for row in last]

            def work(sender: Sender = sender, rows: list[AgentRow] = rows) -> None:
                left = sender.close(max(0.0, end - time.monotonic()), rows)
                put_all(self._folder, [sender.spool], make(left))

            closing.append(threading.Thread(target=work, name=f"close {name}", daemon=True))
        for thread in closing:
            thread.start()
        for thread in closing:  # a disk that hangs is not waited for
            thread.join(max(0.0, end - time.monotonic()) + _LEFT_SECONDS)
        return not any(len(sender.spool) for sender in self._senders.values())

    # The thread.

    def _put(self, job: Job) -> bool:
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self.failed += 1
            return False
        return True

    def _work(self) -> None:
        while True:
            wait = max(0.0, self._waits_due - time.monotonic())
            try:
                job = self._jobs.get(timeout=min(wait, 3600.0))
            except queue.Empty:
                job = self._ship_waits
            if job is None:
                watched = self._days.watched
                if watched is not None:
                    self._flush_waits(watched, unfinished=True)
                return
            try:
                job()
            except Exception as error:
                self.failed += 1
                _log.error("shipping: %s", traced(error))
            self._cpu = time.thread_time()

    def _open(self) -> None:
        tidy(self._folder)
        self._record = Record(self._folder / RECORD, self._now_ms())
        self._use_targets(changed=False)

    def _use_targets(self, *, changed: bool) -> None:
        """Begin to send to new targets, and end with those that are gone."""
        wanted = {target.address.shown: target for target in self._targets}
        for name, sender in list(self._senders.items()):
            if name not in wanted or changed:
                del self._senders[name]
                sender.close(0.0)
        for name, target in wanted.items():
            if name in self._senders:
                self._senders[name].retry()
                continue
            folder = self._folder / folder_name(target.address)
            spool = Spool(folder, spool_bytes(self._settings))
            sender = Sender(target.destination, spool, self._pace(), self._beats)
            self._senders[name] = sender
            sender.start()

    def _pace(self) -> Pace:
        if self._given_pace is not None:
            return self._given_pace
        if self._continues:  # one heartbeat of each pass, at any time of it
            return Pace(heartbeat=_NEVER, first_beat=self._continues * 0.8)
        return Pace(heartbeat=self._settings.heartbeat)

    def _beats(self, numbers: Numbers) -> list[AgentRow]:
        with self._lock:
            rows = self._days.now(self._wall_ns(), time.monotonic())
        return [self._with_numbers(row, numbers) for row in rows]

    def _with_numbers(self, row: AgentRow, numbers: Numbers) -> AgentRow:
        return msgspec.structs.replace(
            row,
            skew_ms=numbers.skew_ms,
            waiting=numbers.waiting,
            dropped=numbers.dropped,
            why=(numbers.why or numbers.dropped_why)[:300],
        )

    def _incident(
        self,
        event: str,
        number: int,
        incident: Incident,
        folder: Path | None,
        facts: Facts | None,
    ) -> None:
        origin = self._origin(number, incident, folder)
        incident = msgspec.structs.replace(incident, origin=origin)
        over = event == "end"
        if over:
            self._origins.pop(number, None)
        rows = rows_of(
            incident,
            facts,
            _samples(folder) if over and folder is not None else (),
            made_ms=self._now_ms(),
            host=self._settings.host,
            redact=self._settings.redact,
        )
        if facts is not None and facts.version:
            with self._lock:
                self._days.version = facts.version
        if self._spooled(make(rows)) and over and self._record is not None:
            self._record.add(incident.id)

    def _origin(self, number: int, incident: Incident, folder: Path | None) -> Origin:
        """Return who began it, as its file says: its key in the fleet is made of that."""
        known = self._origins.get(number)
        if known is None and folder is not None:
            with contextlib.suppress(StallscopeError):
                known = read_incident(folder).incident.origin
        if known is None:
            return owners.origin(incident.start_ns)
        self._origins[number] = known
        return known

    def _spooled(self, batch: Batch) -> bool:
        senders = list(self._senders.values())
        done = put_all(self._folder, [sender.spool for sender in senders], batch)
        for sender in senders:
            sender.wake()
        return done

    def _ship_waits(self) -> None:
        self._waits_due = time.monotonic() + self._settings.waits_every
        watched = self._days.watched
        if watched is not None:
            self._flush_waits(watched, unfinished=False)

    def _flush_waits(self, watched: Watched, *, unfinished: bool) -> None:
        host = self._settings.host or watched.host
        rows: Sequence[Row] = self._waits.take(
            host, watched.program, watched.pid, self._now_ms(), unfinished=unfinished
        )
        if rows:
            self._spooled(make(rows))

    def _look_back(self, mine: Callable[[TargetEntry], bool]) -> None:
        """Find incidents that were not shipped, and have their rows made in another thread."""
        record, store = self._record, self._store
        if record is None or store is None:
            return
        least = max(record.since_ms, self._now_ms() - STORED_MS) * 1_000_000
        try:
            found = listing(store).incidents
        except StallscopeError:
            return  # there is no store yet
        names = [
            one.id
            for one in found
            if one.start_ns >= least
            and one.id not in record
            and not one.going_on
            and mine(one.target)
        ]
        if not names:
            return
        _log.info("%d incidents of the store are not shipped yet: they are now", len(names))
        settings = self._settings
        request = Request(
            str(store / layout.INCIDENTS),
            names,
            host=settings.host,
            redact=settings.redact,
            signatures=self._signatures,
        )

        def made(name: str, batch: Batch | None, why: str) -> None:
            self._put(lambda: self._recovered(name, batch, why))

        threading.Thread(
            target=lambda: self._stored.run(request, made), name="ship stored", daemon=True
        ).start()

    def _recovered(self, name: str, batch: Batch | None, why: str) -> None:
        if self._record is None or name in self._record:
            return
        if batch is None:
            self.failed += 1
            _log.error("incident %s is not shipped: %s", name, why)
            self._record.add(name)  # the next start would come to the same end
        elif self._spooled(batch):
            self._record.add(name)

    def _now_ms(self) -> int:
        return self._wall_ns() // 1_000_000


def _samples(folder: Path) -> list[Sample]:
    """Return the samples of an incident, none where there are too many for an agent."""
    try:
        with files.folder(folder) as inside:
            status = files.regular(layout.SAMPLES, inside)
        if status is None or status.st_size > MAX_SAMPLES:
            return []
        return read_incident(folder).samples()
    except (OSError, StallscopeError):
        return []
