# SPDX-License-Identifier: Apache-2.0
"""Deliver alerts: what each destination still has to get, and when it is tried again.

Each destination has a thread of its own, so that one that is slow or down delays no other. The file
of the outbox has a thread too: a notification waits for it for a second at most. All times are of
the monotonic clock.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from stallscope.base.threads import keep_running
from stallscope.notify.alert import Alert, Event
from stallscope.notify.outbox import MAX_ENTRIES, Entry, Outbox, Progress
from stallscope.notify.receiver import Receiver, SendError

__all__ = ["Delivery"]

_log = logging.getLogger(__name__)

FIRST_RETRY = 0.5
LONGEST_RETRY = 4.0
"""A destination that is back gets its notifications within this time."""
REFUSED_RETRY = 60.0
"""A notification that was refused, as by a wrong key, is tried again so late, or after a reload."""
LONGEST_WISH = 300.0
"""The longest pause that a destination can ask for (Retry-After)."""
SAVE_SECONDS = 1.0
"""How long a notification waits for its copy on disk."""
SAVE_RETRY = 1.0


class _Item:
    """An entry, and what is known of it in this process alone."""

    def __init__(self, entry: Entry, held_until: float, now: float) -> None:
        self.entry = entry
        self.held_until = held_until
        self.made = now
        self.saved = False
        self.number = 0
        """Counts changes: what was saved may be older than what is known."""
        self.opened_at: dict[str, float] = {}
        self.sent_at: dict[str, float] = {}
        self.not_before: dict[str, float] = {}

    def progress(self, name: str) -> Progress:
        return self.entry.progress.setdefault(name, Progress())


class _Channel:
    """One destination and its thread."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver: Receiver | None = receiver
        self.name = receiver.name
        self.failed = 0
        """Attempts in a row."""
        self.not_before = 0.0
        self.why = ""
        self.thread: threading.Thread | None = None
        self.sending = False


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
        self._ended: list[Entry] = []
        """To be removed from the file."""
        self._dirty: set[str] = set()
        self._channels: dict[str, _Channel] = {}
        self._closing = False
        self._notified: set[str] = set()
        """Incidents of which all destinations know, from the file."""
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
        with self._changed:
            entry = Entry(alert, (alert.incident.id,))
            self._items[alert.key] = _Item(entry, now + hold, now)
            self._limit()
            self._touch(alert.key)

    def update(self, alert: Alert, *, hold: float | None = 0.0) -> None:
        """Take what is known now of a stall; it is over where the alert says so.

        ``hold``: the next notification is sent after so many seconds at the latest; None: when it
        was to be sent anyway.
        """
        now = self._clock()
        with self._changed:
            item = self._items.get(alert.key)
            if item is None:
                return
            entry = item.entry
            if alert != entry.alert:
                entry.alert = alert
                entry.revision += 1
            if alert.incident.id not in entry.incidents:
                entry.incidents = (*entry.incidents, alert.incident.id)
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
        """Return why destinations do not work at present, by name."""
        with self._changed:
            return {one.name: one.why for one in self._channels.values() if one.failed}

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
            for item in self._items.values():
                item.not_before.clear()
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
                if channel.thread is None:
                    work = partial(self._work, channel)
                    channel.thread = keep_running(f"notify {channel.name}", work)
        self._changed.notify_all()

    def _limit(self) -> None:
        while len(self._items) > MAX_ENTRIES:
            key = next(iter(self._items))
            self._ended.append(self._items.pop(key).entry)
            self._dirty.discard(key)
            self.failed += 1
            _log.error("%s: given up: more than %d alerts wait", key, MAX_ENTRIES)

    def _forget_done(self, keys: Iterable[str]) -> None:
        for key in keys:
            item = self._items[key]
            over = item.entry.alert.over
            if over and all(self._is_done(item, one) for one in self._channels.values()):
                del self._items[key]
                self._dirty.discard(key)
                self._ended.append(item.entry)
                self._notified.update(item.entry.incidents)

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
        return not receiver.updates or progress.revision >= item.entry.revision

    def _is_busy(self) -> bool:
        """Return whether something can be sent or saved soon."""
        if self._saver is not None and (self._dirty or self._ended):
            return True
        now = self._clock()
        for channel in self._channels.values():
            if channel.receiver is None or channel.failed:
                continue
            if channel.sending or self._next(channel, now)[0] is not None:
                return True
        return False

    def _next(self, channel: _Channel, now: float) -> tuple[tuple[_Item, Event] | None, float]:
        """Return what to send now, or when there may be something."""
        wait = 3600.0
        receiver = channel.receiver
        assert receiver is not None
        if channel.not_before > now:
            return None, channel.not_before - now
        for item in self._items.values():
            event, due = self._step(item, receiver)
            if event is None:
                continue
            due = max(due, item.not_before.get(channel.name, 0.0))
            if not item.saved and self._outbox is not None:
                due = max(due, item.made + SAVE_SECONDS)
            if due <= now:
                return (item, event), 0.0
            wait = min(wait, due - now)
        return None, wait

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
            fired = item.opened_at.get(name)
            least = 0.0 if fired is None else fired + receiver.least_firing
            return "end", max(item.held_until, least)
        if receiver.updates and progress.revision < entry.revision:
            return "update", item.held_until
        if receiver.repeat is not None:
            sent = item.sent_at.get(name)
            return "update", 0.0 if sent is None else sent + receiver.repeat
        return None, 0.0

    def _work(self, channel: _Channel) -> None:
        while True:
            with self._changed:
                while True:
                    if self._closing or channel.receiver is None:
                        return
                    found, wait = self._next(channel, self._clock())
                    if found is not None:
                        break
                    self._changed.wait(wait)
                item, event = found
                alert, revision = item.entry.alert, item.entry.revision
                known = item.progress(channel.name).severity
                if known is not None:
                    alert = msgspec.structs.replace(alert, severity=known)
                receiver = channel.receiver
                channel.sending = True
            _log.debug("destination %s: sending %s of %s", channel.name, event, alert.key)
            error: SendError | None = None
            try:
                receiver.send(event, alert)
            except SendError as raised:
                error = raised
            except Exception as raised:
                error = SendError(f"internal error: {type(raised).__name__}: {raised}")
            with self._changed:
                channel.sending = False
                if error is None:
                    item.progress(channel.name).severity = alert.severity
                    self._delivered(channel, item, event, revision)
                else:
                    self._not_delivered(channel, item, error)

    def _delivered(self, channel: _Channel, item: _Item, event: Event, revision: int) -> None:
        now, name = self._clock(), channel.name
        if channel.failed:
            _log.info("destination %s works again, after %d attempts", name, channel.failed)
        channel.failed, channel.why, channel.not_before = 0, "", 0.0
        progress = item.progress(name)
        if event == "stall":
            progress.opened = True
            item.opened_at[name] = now
        progress.closed = event == "end"
        changed = progress.revision != revision or event != "update"
        progress.revision = revision
        item.sent_at[name] = now
        if changed and item.entry.alert.key in self._items:
            self._touch(item.entry.alert.key)

    def _not_delivered(self, channel: _Channel, item: _Item, error: SendError) -> None:
        now = self._clock()
        self.failed += 1
        why = str(error)
        if why != channel.why:
            _log.error("destination %s: %s; it is tried again", channel.name, why)
        channel.why = why
        channel.failed += 1
        if error.refused:
            item.not_before[channel.name] = now + REFUSED_RETRY
            return
        pause = min(LONGEST_RETRY, FIRST_RETRY * 2 ** min(channel.failed - 1, 10))
        pause *= random.uniform(0.8, 1.0)  # noqa: S311  # so that agents do not come all at once
        channel.not_before = now + max(pause, min(error.after, LONGEST_WISH))

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
                ended = self._ended[:]
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
                del self._ended[: len(ended)]
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
            self._notified.update(done)
            made = self._items
            self._items = {}
            for entry in entries:
                item = self._items[entry.alert.key] = _Item(entry, now, now)
                item.saved = True
            self._items.update(made)
            self._has_loaded = True
            self.loaded.set()
            self._wake()


def _wanted(receiver: Receiver, alert: Alert) -> bool:
    return receiver.least_severity == "warning" or alert.severity == "critical"


def _copy(entry: Entry) -> Entry:
    progress: Iterable[tuple[str, Progress]] = entry.progress.items()
    return msgspec.structs.replace(
        entry, progress={name: msgspec.structs.replace(one) for name, one in progress}
    )
