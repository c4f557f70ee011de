# SPDX-License-Identifier: Apache-2.0
"""Deliver alerts: what each destination still has to get, and when it is tried again.

Each destination has a thread of its own, so that one that is slow or down delays no other, and a
second one for what has failed: an alert that the destination cannot take has its own pauses, and
delays no other alert. Only where the destination gives no answer does all wait for it. The file of
the outbox has a thread too: a notification waits for it for a second at most. All times are of the
monotonic clock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from stallscope.base.backoff import Backoff
from stallscope.base.sending import Channel, SendError
from stallscope.base.threads import keep_running
from stallscope.notify.alert import Alert, Event
from stallscope.notify.outbox import (
    MAX_BYTES,
    MAX_DONE,
    MAX_ENTRIES,
    Entry,
    Outbox,
    Progress,
    fitting,
)
from stallscope.notify.receiver import Receiver
from stallscope.notify.settings import Severity

__all__ = ["Delivery"]

_log = logging.getLogger(__name__)

FIRST_RETRY = 0.5
LONGEST_RETRY = 4.0
"""A destination that can be reached again gets its notifications within this time."""
LONGEST_ALERT_RETRY = 10.0
"""Of one alert that the destination answers with an error."""
REFUSED_RETRY = 60.0
"""A notification that was refused, as by a wrong key, is tried again so late, or after a reload."""
FAILED_PAUSE = 0.2
"""After an alert that failed again, until the next one of those: many are no burst of requests."""
LONGEST_WISH = 300.0
"""The longest pause that a destination can ask for (Retry-After)."""
SAVE_SECONDS = 1.0
"""How long a notification waits for its copy on disk."""
SAVE_RETRY = 1.0


class _Way:
    """One alert on its way to one destination, as this process alone knows it."""

    def __init__(self) -> None:
        self.opened_at: float | None = None
        self.sent_at: float | None = None
        self.tried_at = 0.0
        self.not_before = 0.0
        self.backoff = Backoff(FIRST_RETRY, LONGEST_ALERT_RETRY)
        self.why = ""
        """Why it was not taken."""
        self.sending = False


class _Item:
    """An entry, and what is known of it in this process alone."""

    def __init__(self, entry: Entry, held_until: float, now: float, size: int = 0) -> None:
        self.entry = entry
        self.size = size
        self.held_until = held_until
        self.made = now
        self.saved = False
        self.number = 0
        """Counts changes: what was saved may be older than what is known."""
        self._ways: dict[str, _Way] = {}

    def progress(self, name: str) -> Progress:
        return self.entry.progress.setdefault(name, Progress())

    def way(self, name: str) -> _Way:
        return self._ways.setdefault(name, _Way())

    def keep(self, names: Iterable[str]) -> None:
        """Forget destinations that are gone."""
        self._ways = {name: self._ways[name] for name in names if name in self._ways}
        known = self.entry.progress
        self.entry.progress = {name: known[name] for name in names if name in known}


class _Channel(Channel):
    """One destination and its threads. It is left alone where it gives no answer."""

    def __init__(self, receiver: Receiver) -> None:
        backoff = Backoff(FIRST_RETRY, LONGEST_RETRY)
        super().__init__(f"destination {receiver.name}", backoff, LONGEST_WISH, _log)
        self.receiver: Receiver | None = receiver
        self.name = receiver.name
        self.failed_not_before = 0.0
        """``not_before`` of what has failed."""
        self.failing: dict[str, _Item] = {}
        """What was not taken, by the alert's key."""
        self.threads: dict[bool, threading.Thread] = {}
        """By whether it is the one for what has failed."""


class Delivery:
    """Delivers the alerts of one server. ``open``, ``update`` and ``resolve`` never block."""

    def __init__(
        self,
        outbox: Outbox | None,
        receivers: Sequence[Receiver],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outbox = outbox
        self._clock = clock
        self._changed = threading.Condition()
        self._items: dict[str, _Item] = {}
        self._ended: dict[str, Entry] = {}
        """To be removed from the file, by the alert's key."""
        self._dirty: set[str] = set()
        self._channels: dict[str, _Channel] = {}
        self._closing = False
        self._notified: dict[str, None] = {}
        """Incidents of which all destinations know, the latest."""
        self._bytes = 0
        """Of all alerts."""
        self._has_loaded = False
        self.loaded = threading.Event()
        """The file was read, or cannot be read now: nobody waits for it any longer."""
        self.failed = 0
        """Attempts that failed, and alerts that were given up, since too many waited."""
        self._saver: threading.Thread | None = None
        if outbox is None:
            self.loaded.set()
        self.configure(receivers)

    def start(self) -> None:
        """Read the outbox, and go on with what it holds: this must be its only agent."""
        if self._outbox is not None and self._saver is None:
            self._saver = keep_running("outbox", self._save)

    # What the agent says.

    def open(self, alert: Alert, *, hold: float = 0.0) -> None:
        """Notify of a stall, after ``hold`` seconds at the latest."""
        now = self._clock()
        alert, size = fitting(alert)
        with self._changed:
            self._remove(alert.key)
            entry = Entry(alert, (alert.incident.id,))
            self._add(_Item(entry, now + hold, now, size))
            self._limit()
            self._touch(alert.key)

    def update(self, alert: Alert, *, hold: float | None = 0.0) -> None:
        """Take what is known now of a stall; it is over where the alert says so.

        ``hold``: the next notification is sent after so many seconds at the latest; None: when it
        was to be sent anyway.
        """
        now = self._clock()
        alert, size = fitting(alert)
        with self._changed:
            item = self._items.get(alert.key)
            if item is None:
                return
            entry = item.entry
            self._bytes += size - item.size
            item.size = size
            if _rises(alert.severity, entry.alert.severity):  # it never falls
                alert = msgspec.structs.replace(alert, severity=entry.alert.severity)
            if alert != entry.alert:
                entry.alert = alert
                entry.revision += 1
            if alert.incident.id not in entry.incidents:
                entry.incidents = (*entry.incidents, alert.incident.id)[-MAX_DONE:]
            if hold is not None:
                item.held_until = now + hold
            self._touch(alert.key)

    def firing(self) -> list[Alert]:
        """Return the alerts that are not over, the oldest first."""
        with self._changed:
            return [item.entry.alert for item in self._items.values() if not item.entry.alert.over]

    def knows(self, incident: str) -> bool:
        """Return whether an incident has an alert, or had one."""
        with self._changed:
            return incident in self._notified or any(
                incident in item.entry.incidents for item in self._items.values()
            )

    def waiting(self) -> dict[str, int]:
        """Return how many notifications wait, by destination."""
        with self._changed:
            found = dict.fromkeys(self._channels, 0)
            for channel in self._channels.values():
                for item in self._items.values():
                    found[channel.name] += not self._is_done(item, channel)
            return found

    def problems(self) -> dict[str, str]:
        """Return why destinations do not work at present, or which alerts they do not take, by
        name.
        """
        with self._changed:
            found = {}
            for channel in self._channels.values():
                failing = channel.failing
                if channel.backoff.failed:
                    found[channel.name] = channel.why
                elif failing:
                    key, item = next(iter(failing.items()))
                    count = "" if len(failing) == 1 else f" and {len(failing) - 1} more"
                    found[channel.name] = f"alert {key}{count}: {item.way(channel.name).why}"
            return found

    def configure(self, receivers: Sequence[Receiver]) -> None:
        """Use these destinations; what was refused is tried again."""
        with self._changed:
            given = {receiver.name: receiver for receiver in receivers}
            for name in [name for name in self._channels if name not in given]:
                self._channels.pop(name).receiver = None
            for name, receiver in given.items():
                channel = self._channels.get(name)
                if channel is None:
                    self._channels[name] = _Channel(receiver)
                else:
                    channel.receiver = receiver
                    channel.not_before = 0.0
                    channel.failed_not_before = 0.0
            for item in self._items.values():
                item.keep(given)
                for name in given:
                    item.way(name).not_before = 0.0
            self._forget_done(list(self._items))
            self._wake()

    def close(self, seconds: float) -> bool:
        """Wait until all that can be sent is sent and saved, and end the threads.

        Return whether nothing is left. What is left is in the file, and sent at the next start.
        """
        end = self._clock() + seconds
        with self._changed:
            while (left := end - self._clock()) > 0 and self._is_busy():
                self._changed.wait(min(left, 0.1))
            self._closing = True
            self._changed.notify_all()
            clean = not self._items
        if self._saver is not None:
            self._saver.join(max(0.1, end - self._clock()))
            clean = clean or not self._saver.is_alive()
        return clean

    # Below, the lock is held, but for the functions of threads: _work, _save, _load.

    def _touch(self, key: str) -> None:
        item = self._items[key]
        item.number += 1
        self._dirty.add(key)
        self._forget_done([key])
        self._wake()

    def _wake(self) -> None:
        """Wake all threads, and start those that have work for the first time."""
        if self._items:
            for channel in self._channels.values():
                self._start_thread(channel, again=False)
        self._changed.notify_all()

    def _start_thread(self, channel: _Channel, *, again: bool) -> None:
        if again not in channel.threads:
            name = f"notify {channel.name}{' again' if again else ''}"
            channel.threads[again] = keep_running(name, partial(self._work, channel, again))

    def _add(self, item: _Item) -> None:
        self._items[item.entry.alert.key] = item
        self._ended.pop(item.entry.alert.key, None)
        self._bytes += item.size

    def _remove(self, key: str) -> None:
        item = self._items.pop(key, None)
        if item is not None:
            self._bytes -= item.size
            self._dirty.discard(key)
            for channel in self._channels.values():
                channel.failing.pop(key, None)

    def _limit(self) -> None:
        while len(self._items) > MAX_ENTRIES or self._bytes > MAX_BYTES:
            over = (key for key, item in self._items.items() if item.entry.alert.over)
            key = next(over, next(iter(self._items)))
            item = self._items[key]
            self._end(item.entry)
            self.failed += 1
            _log.error(
                "%s: given up: more than %d alerts, or %d MiB of them, wait",
                key,
                MAX_ENTRIES,
                MAX_BYTES >> 20,
            )

    def _forget_done(self, keys: Iterable[str]) -> None:
        for key in keys:
            item = self._items[key]
            over = item.entry.alert.over
            if over and all(self._is_done(item, one) for one in self._channels.values()):
                self._end(item.entry)
                self._remember(item.entry.incidents)

    def _end(self, entry: Entry) -> None:
        self._remove(entry.alert.key)
        if self._outbox is None:
            return
        self._ended[entry.alert.key] = entry
        while len(self._ended) > MAX_ENTRIES:  # the disk fails: the next start sends it again
            del self._ended[next(iter(self._ended))]

    def _remember(self, incidents: Iterable[str]) -> None:
        self._notified.update(dict.fromkeys(incidents))
        while len(self._notified) > MAX_DONE:
            del self._notified[next(iter(self._notified))]

    def _is_done(self, item: _Item, channel: _Channel) -> bool:
        progress = item.progress(channel.name)
        receiver = channel.receiver
        if receiver is None or progress.closed:
            return True
        alert = item.entry.alert
        if not progress.opened:
            return alert.over and not _wanted(receiver, alert)
        if alert.over:
            return not receiver.resolves
        if _rises(progress.severity, alert.severity):
            return False
        return not receiver.updates or progress.revision >= item.entry.revision

    def _is_busy(self) -> bool:
        """Return whether something can be sent or saved soon."""
        if self._saver is not None and (self._dirty or self._ended):
            return True
        now = self._clock()
        for channel in self._channels.values():
            if channel.receiver is None or channel.backoff.failed:
                continue
            if self._next(channel, now, again=False)[0] is not None:
                return True
            if any(
                item.way(channel.name).sending and key not in channel.failing
                for key, item in self._items.items()
            ):
                return True
        return False

    def _next(
        self, channel: _Channel, now: float, *, again: bool
    ) -> tuple[tuple[_Item, Event] | None, float]:
        """Return what to send now, or when there may be something: repetitions after all else.
        ``again``: of what has failed, which is in the order of the attempts."""
        receiver = channel.receiver
        assert receiver is not None
        pause = max(channel.not_before, channel.failed_not_before if again else 0.0) - now
        if pause > 0:
            return None, pause
        wait = 3600.0
        found: tuple[_Item, Event] | None = None
        oldest = now
        for key, item in (channel.failing if again else self._items).items():
            way = item.way(channel.name)
            if way.sending or (key in channel.failing) != again:
                continue
            event, due = self._step(item, receiver)
            if event is None:
                continue
            due = max(due, way.not_before)
            if not item.saved and self._outbox is not None:
                due = max(due, item.made + SAVE_SECONDS)
            if due > now:
                wait = min(wait, due - now)
            elif event != "update" or not self._is_done(item, channel):
                return (item, event), 0.0
            elif found is None or way.tried_at < oldest:  # it is repeated
                found, oldest = (item, event), way.tried_at
        return found, wait

    def _step(self, item: _Item, receiver: Receiver) -> tuple[Event | None, float]:
        """Return the next notification of one alert, and when it is due."""
        name, entry = receiver.name, item.entry
        progress, alert = item.progress(name), entry.alert
        if progress.closed:
            return None, 0.0
        if not progress.opened:
            if not _wanted(receiver, alert):
                return None, 0.0
            return "stall", item.held_until
        if alert.over:
            if not receiver.resolves:
                return None, 0.0
            fired = item.way(name).opened_at
            least = 0.0 if fired is None else fired + receiver.least_firing
            return "end", max(item.held_until, least)
        if _rises(progress.severity, alert.severity):
            return "update", item.held_until
        if receiver.updates and progress.revision < entry.revision:
            return "update", item.held_until
        if receiver.repeat is not None:
            sent = item.way(name).sent_at
            return "update", 0.0 if sent is None else sent + receiver.repeat
        return None, 0.0

    def _work(self, channel: _Channel, again: bool) -> None:
        while True:
            with self._changed:
                while True:
                    if self._closing or channel.receiver is None:
                        return
                    found, wait = self._next(channel, self._clock(), again=again)
                    if found is not None:
                        break
                    self._changed.wait(wait)
                item, event = found
                revision = item.entry.revision
                alert = _for(item.progress(channel.name), event, item.entry.alert)
                receiver = channel.receiver
                way = item.way(channel.name)
                way.sending = True
            _log.debug("destination %s: sending %s of %s", channel.name, event, alert.key)
            error: SendError | None = None
            try:
                receiver.send(event, alert)
            except SendError as raised:
                error = raised
            except Exception as raised:
                error = SendError(f"internal error: {type(raised).__name__}: {raised}")
            with self._changed:
                way.sending = False
                way.tried_at = self._clock()
                if error is None:
                    self._delivered(channel, item, event, alert, revision)
                else:
                    self._not_delivered(channel, item, way, error)

    def _delivered(
        self, channel: _Channel, item: _Item, event: Event, alert: Alert, revision: int
    ) -> None:
        name, way, progress = channel.name, item.way(channel.name), item.progress(channel.name)
        if event == "stall":
            progress.opened = True
            progress.first = alert.severity
            way.opened_at = way.tried_at
        progress.closed = event == "end"
        changed = progress.revision != revision or event != "update"
        changed = changed or progress.severity != alert.severity
        progress.severity, progress.revision = alert.severity, revision
        way.sent_at = way.tried_at
        if channel.failing.pop(item.entry.alert.key, None) is not None:
            for other in channel.failing.values():  # what it did not take, it may take now
                other.way(name).not_before = 0.0
            channel.failed_not_before = 0.0
        way.backoff.reset()
        channel.answers()
        if not channel.failing:
            channel.works()
        if changed and item.entry.alert.key in self._items:
            self._touch(item.entry.alert.key)
        else:
            self._changed.notify_all()

    def _not_delivered(self, channel: _Channel, item: _Item, way: _Way, error: SendError) -> None:
        now = way.tried_at
        self.failed += 1
        channel.fails(error, now)
        way.why = str(error)
        key = item.entry.alert.key
        if self._items.get(key) is item:
            channel.failing.pop(key, None)
            channel.failing[key] = item  # the last one
        # Of a destination that worked a moment ago, the alert is suspected too.
        suspected = not error.unreachable or not channel.backoff.failed
        if error.unreachable or error.after:
            channel.pause(error, now)
        if error.refused:
            way.not_before = now + REFUSED_RETRY
        elif suspected:
            way.not_before = now + way.backoff.next()
        channel.failed_not_before = now + FAILED_PAUSE
        self._start_thread(channel, again=True)
        self._changed.notify_all()

    def _save(self) -> None:
        """Load the file, and keep it up to date (the outbox's thread)."""
        assert self._outbox is not None
        said = ""
        pause = 0.0
        while True:
            with self._changed:
                if pause:
                    self._changed.wait_for(lambda: self._closing, pause)
                while self._has_loaded and not (self._dirty or self._ended or self._closing):
                    self._changed.wait()
                closing = self._closing
                changed = {key: self._items[key] for key in self._dirty if key in self._items}
                numbers = {key: item.number for key, item in changed.items()}
                # Copies: the others go on while this thread writes.
                values = [_copy(item.entry) for item in changed.values()]
                ended = list(self._ended.values())
            try:
                if not self._has_loaded:
                    self._load()
                if values or ended:
                    self._outbox.save(values, ended)
            except OSError as error:
                if str(error) != said:
                    _log.error("the outbox is not written: %s; notifications are sent", error)
                said, pause = str(error), SAVE_RETRY
                self.loaded.set()
                if closing:
                    return
                continue
            pause = 0.0
            if said:
                _log.info("the outbox is written again")
                said = ""
            with self._changed:
                for entry in ended:
                    if self._ended.get(entry.alert.key) is entry:
                        del self._ended[entry.alert.key]
                for key, number in numbers.items():
                    item = self._items.get(key)
                    if item is None or item.number == number:
                        self._dirty.discard(key)
                    if item is not None:
                        item.saved = True
                self._changed.notify_all()
                if self._closing and not (self._dirty or self._ended):
                    self._outbox.close()
                    return

    def _load(self) -> None:
        assert self._outbox is not None
        entries, done = self._outbox.load()
        now = self._clock()
        with self._changed:
            self._remember(done)
            made = self._items
            self._items, self._bytes = {}, 0
            for entry in entries:
                item = _Item(entry, now, now, fitting(entry.alert)[1])
                item.saved = True
                item.keep(self._channels)
                self._add(item)
            for key, item in made.items():
                self._remove(key)
                self._add(item)
            self._limit()
            self._has_loaded = True
            self.loaded.set()
            self._wake()


def _wanted(receiver: Receiver, alert: Alert) -> bool:
    return receiver.least_severity == "warning" or alert.severity == "critical"


def _rises(before: Severity | None, severity: Severity) -> bool:
    return before == "warning" and severity == "critical"


def _for(progress: Progress, event: Event, alert: Alert) -> Alert:
    """Return the alert as this destination knows it: its end has the severity that it got."""
    known = progress.severity
    if known is None:
        return alert
    severity = known if event == "end" else alert.severity
    return msgspec.structs.replace(alert, severity=severity, first=progress.first or known)


def _copy(entry: Entry) -> Entry:
    progress: Iterable[tuple[str, Progress]] = entry.progress.items()
    return msgspec.structs.replace(
        entry, progress={name: msgspec.structs.replace(one) for name, one in progress}
    )
