# SPDX-License-Identifier: Apache-2.0
"""All triggers together: samples in, the triggers that fired out.

There is no clock in here. Time comes with the samples: ``clock_ns`` decides, ``time_ns`` is only
passed on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stallscope.base.text import one_line
from stallscope.collectors.triggers import sentence, waiting
from stallscope.collectors.triggers.baseline import NS
from stallscope.collectors.triggers.evaluation import Evaluation, Moment
from stallscope.collectors.triggers.expression import (
    Name,
    Named,
    Node,
    is_condition,
    names,
    parse,
    remembered,
)
from stallscope.collectors.triggers.readings import STATE, Readings
from stallscope.collectors.triggers.settings import AgentSettings, TriggerSettings
from stallscope.collectors.triggers.state import Machine, Phase
from stallscope.model.capture import Trigger
from stallscope.model.incident import Fired
from stallscope.model.samples import Sample
from stallscope.model.stallstatus import Status
from stallscope.model.waitkinds import kinds_of
from stallscope.model.waitlines import WaitLine

__all__ = [
    "CONFIRM",
    "Engine",
    "TriggerState",
    "needs_processlist",
    "reader_of_counts",
    "sources_named",
    "status_variables",
]

STALE_NS = 5 * NS
STALE_INTERVALS = 3
# Samples come early and late. Skipping one costs a whole polling interval, so a trigger skips none
# that comes about on time; it skips those that come much faster than its interval.
EARLY = 0.9
CONFIRM = 0.2
"""Of its interval: so long after a breach the next sample counts, while a wait is long."""
_ALWAYS = ("Uptime", "Uptime_since_flush_status")


class TriggerState(msgspec.Struct, frozen=True):
    """The state of a trigger, for metrics and the dry run."""

    name: str
    phase: Phase
    samples: int
    """Samples in which its value and threshold were known."""
    value: float | None
    threshold: float | None
    fired: int
    suppressed: int
    most_in_a_row: int
    nearest: float | None
    """The value that came closest to the threshold, or went farthest beyond it."""
    nearest_threshold: float | None
    never_seen: tuple[str, ...]
    """Its names that no sample had."""


def status_variables(settings: AgentSettings) -> frozenset[str]:
    """Return the status variables that the triggers read, and those that show a restart."""
    wanted = set(_ALWAYS)
    for trigger in settings.triggers:
        wanted |= {n.name for n in _names(trigger) if isinstance(n, Name) and "." not in n.name}
    return frozenset(wanted)


def sources_named(settings: AgentSettings) -> dict[str, float]:
    """Return the first words of names such as ``lock_waits.waiting``, each with the shortest
    interval, in seconds, of the triggers that read it.
    """
    found: dict[str, float] = {}
    for trigger in settings.triggers:
        for name in _names(trigger):
            if isinstance(name, Name) and "." in name.name:
                word = name.name.partition(".")[0]
                found[word] = min(trigger.interval, found.get(word, trigger.interval))
    return found


def reader_of_counts(settings: AgentSettings) -> tuple[str, str] | None:
    """Return a trigger that reads a value of waits which only attached wait programs count, and the
    value; None where no trigger does. At rest, only waits past half of their threshold are seen.
    """
    for trigger in settings.triggers:
        for name in _names(trigger):
            if isinstance(name, Name) and waiting.is_counted(name.name):
                return trigger.name, name.name
    return None


def needs_processlist(settings: AgentSettings) -> bool:
    """Return whether a trigger reads what Threads_running does not announce: sleeping connections,
    the longest statement, or earlier values of the processlist.
    """
    for trigger in settings.triggers:
        for tree in _trees(trigger):
            if any(_of_processlist(name) for name in remembered(tree)):
                return True
            for name in names(tree):
                if _of_processlist(name) and not _is_announced(name):
                    return True
    return False


def _of_processlist(name: Named) -> bool:
    return not isinstance(name, Name) or name.name.startswith("processlist.")


def _is_announced(name: Named) -> bool:
    """Return whether the number cannot grow without Threads_running, or may be seen late: one of
    logins lasts for as long as what they wait for."""
    announced = ("processlist.running", "processlist.unauthenticated")
    return not isinstance(name, Name) or name.name in announced or name.name.startswith(STATE)


def _names(trigger: TriggerSettings) -> tuple[Named, ...]:
    return tuple(name for tree in _trees(trigger) for name in names(tree))


def _trees(trigger: TriggerSettings) -> tuple[Node, ...]:
    texts = (trigger.variable, trigger.threshold, trigger.clear)
    return tuple(parse(text) for text in texts if isinstance(text, str))


class Engine:
    """The triggers of one target.

    ``constants``: values that are in no sample (``host.cpus``).
    """

    def __init__(
        self, settings: AgentSettings, constants: Mapping[str, float] | None = None
    ) -> None:
        self._variables = [
            _VariableTrigger(t, settings.poll_interval)
            for t in settings.triggers
            if t.variable is not None
        ]
        self._waits = [_WaitTrigger(t) for t in settings.triggers if t.wait is not None]
        self._all: tuple[_Watched, ...] = (*self._variables, *self._waits)
        self._readings = Readings(
            [name for trigger in self._variables for name in trigger.names], constants
        )
        self._reads_waits = any(
            waiting.is_of_waits(name.name)
            for trigger in self._variables
            for name in trigger.names
            if isinstance(name, Name)
        )

    @property
    def breached(self) -> tuple[str, ...]:
        """Return the triggers that have fired and are not over: the incident goes on."""
        return tuple(t.settings.name for t in self._all if t.machine.phase is Phase.FIRED)

    @property
    def calm(self) -> bool:
        """Return whether no trigger counts breaches, or has fired and is not over."""
        return all(t.machine.phase is Phase.CALM for t in self._all)

    @property
    def counting(self) -> bool:
        """Return whether a trigger was breached, and not often enough in a row."""
        return any(t.machine.counting for t in self._all)

    @property
    def over_ns(self) -> int | None:
        """Return when the latest breach that had fired was over, by the clock of the samples."""
        found = [t.machine.over_ns for t in self._all if t.machine.over_ns is not None]
        return max(found, default=None)

    def statuses(self, now_ns: int) -> dict[str, tuple[Status, int | None]]:
        """Return of each trigger what is known at this time, and since when it is clear."""
        return {t.settings.name: (t.machine.status(now_ns), t.machine.clear_ns) for t in self._all}

    def follow(self, before: Engine) -> None:
        """Go on as an engine of earlier settings: what was breached is, until a value shows its
        end."""
        known = {t.settings.name: t for t in before._all}
        for trigger in self._all:
            if (old := known.get(trigger.settings.name)) is not None:
                trigger.machine.follow(old.machine)
        self._readings.follow(before._readings)
        self.restore_baselines(before.baselines())

    def feed(self, sample: Sample, *, hurried: bool = False) -> tuple[Fired, ...]:
        """Take a sample of any collector, a failed one too; return what fired. ``hurried``: a
        trigger that counts breaches takes the next one after CONFIRM of its interval.
        """
        found = self._readings.take(sample)
        incident = bool(self.breached)
        fired = []
        for trigger in self._variables:
            if trigger.leader in found:
                fired.append(trigger.evaluate(self._readings, sample, incident, hurried))
            elif not trigger.remembered.isdisjoint(found):
                trigger.remember(self._readings, sample, incident)
        return tuple(one for one in fired if one is not None)

    def feed_waits(self, line: WaitLine, time_ns: int, clock_ns: int) -> tuple[Fired, ...]:
        """Take a line of the wait programs as a sample."""
        fired = [trigger.evaluate(line, time_ns, clock_ns) for trigger in self._waits]
        found = tuple(one for one in fired if one is not None)
        if not self._reads_waits:
            return found
        return found + self.feed(waiting.sample_of(line, time_ns, clock_ns))

    def feed_wait(self, wait: Trigger, time_ns: int, clock_ns: int) -> Fired | None:
        """Take the wait that the probe captured; return what fired, None where no trigger may
        fire."""
        for trigger in self._waits:
            if fired := trigger.take(wait, time_ns, clock_ns):
                return fired
        return None

    def restarted(self) -> None:
        """Start again for another server process: values are not compared across a restart."""
        self._readings.restarted()
        for trigger in self._all:
            trigger.machine.restarted()

    def baselines(self) -> dict[str, list[tuple[float, ...]]]:
        """Return the baselines of each trigger, for restore_baselines() of a later engine."""
        found = {t.settings.name: [b.means for b in t.baselines] for t in self._variables}
        return {name: means for name, means in found.items() if means}

    def restore_baselines(self, saved: Mapping[str, Sequence[Sequence[float]]]) -> None:
        """Continue with the baselines of an earlier engine with the same settings."""
        for trigger in self._variables:
            means = saved.get(trigger.settings.name, ())
            if len(means) == len(trigger.baselines):
                for baseline, known in zip(trigger.baselines, means, strict=True):
                    baseline.recall(known)

    def states(self) -> tuple[TriggerState, ...]:
        """Return the state of each trigger."""
        return tuple(trigger.state() for trigger in self._all)


class _Watched:
    """The common part of both kinds of triggers."""

    def __init__(self, settings: TriggerSettings, cycles: int, interval_ns: int) -> None:
        self.settings = settings
        self.machine = Machine(cycles, settings.clear_cycles, int(settings.sleep * NS), interval_ns)
        self.samples = 0
        self.most_in_a_row = 0
        self.value: float | None = None
        self.threshold: float | None = None
        self.nearest: tuple[float, float] | None = None
        self.names: tuple[Named, ...] = ()
        self.seen: set[Named] = set()

    def state(self) -> TriggerState:
        nearest, threshold = self.nearest or (None, None)
        return TriggerState(
            name=self.settings.name,
            phase=self.machine.phase,
            samples=self.samples,
            value=self.value,
            threshold=self.threshold,
            fired=self.machine.fired,
            suppressed=self.machine.suppressed,
            most_in_a_row=self.most_in_a_row,
            nearest=nearest,
            nearest_threshold=threshold,
            never_seen=tuple(_text(name) for name in self.names if name not in self.seen),
        )

    def _count(self, breached: bool | None, cleared: bool | None, clock_ns: int) -> bool:
        before = self.machine.row if self.machine.phase is not Phase.FIRED else 0
        fires = self.machine.take(breached, cleared, clock_ns)
        counting = self.machine.phase is Phase.COUNTING
        row = before + 1 if fires else self.machine.row if counting else 0
        self.most_in_a_row = max(self.most_in_a_row, row)
        return fires


class _WaitTrigger(_Watched):
    def __init__(self, settings: TriggerSettings) -> None:
        # The threshold is its length already: breaches in a row are not counted.
        super().__init__(settings, 1, NS)
        assert isinstance(settings.threshold, float | int)
        self.threshold = float(settings.threshold)

    def evaluate(self, line: WaitLine, time_ns: int, clock_ns: int) -> Fired | None:
        self.samples += 1
        self._remember(self._longest(line))
        wait = waiting.longest(self.settings, line)
        cleared = not waiting.lasts(self.settings, line)
        if not self._count(wait is not None, cleared, clock_ns) or wait is None:
            return None
        return self._fired(wait, time_ns)

    def take(self, wait: Trigger, time_ns: int, clock_ns: int) -> Fired | None:
        length = wait.length_ms if wait.length_ms is not None else wait.threshold_ms or 0.0
        if not waiting.matches(self.settings, wait.kind, length, wait.waiters):
            return None
        self.samples += 1
        self._remember(length)
        return self._fired(wait, time_ns) if self._count(True, False, clock_ns) else None

    def _longest(self, line: WaitLine) -> float:
        assert self.settings.wait is not None
        kinds = kinds_of(self.settings.wait)
        return max((waiting.length_ms(k) for k in line.keys if k.kind in kinds), default=0.0)

    def _remember(self, length_ms: float) -> None:
        assert self.threshold is not None
        self.value = length_ms
        if self.nearest is None or length_ms > self.nearest[0]:
            self.nearest = (length_ms, self.threshold)

    def _fired(self, wait: Trigger, time_ns: int) -> Fired:
        return Fired(
            trigger=self.settings.name,
            why=waiting.sentence(self.settings, wait),
            time_ns=time_ns,
            value=wait.length_ms,
            threshold=self.threshold,
            wait=wait,
        )


class _VariableTrigger(_Watched):
    """It is evaluated whenever the first name of its expression is sampled."""

    def __init__(self, settings: TriggerSettings, poll: float) -> None:
        pace = max(settings.interval, poll)
        super().__init__(settings, settings.cycles, int(pace * NS))
        assert settings.variable is not None
        tree = parse(settings.variable)
        self._condition = is_condition(tree)
        self._variable = Evaluation(tree)
        self._threshold = _limit(settings.threshold)
        self._clear = _limit(settings.clear)
        self._above = settings.when == "above"
        faster = poll < settings.interval / 2
        self._interval_ns = int(settings.interval * EARLY * NS) if faster else 0
        self._stale_ns = STALE_NS + STALE_INTERVALS * int(pace * NS)
        self._latest: int | None = None
        self._remembered_ns = 0
        self._pace_ns = int(pace * EARLY * NS)
        self.remembered = frozenset(
            name
            for text in (settings.variable, settings.threshold, settings.clear)
            if isinstance(text, str)
            for name in remembered(parse(text))
        )
        """Names of which it needs earlier values, for a rate or a baseline."""
        limits = (self._threshold, self._clear)
        self.names = tuple(
            dict.fromkeys(
                name
                for part in (self._variable, *limits)
                if part is not None
                for name in part.names
            )
        )
        self.leader = self._variable.names[0]
        self.baselines = [
            means
            for part in (self._variable, *limits)
            if part is not None
            for means in part.baselines
        ]

    def evaluate(
        self, readings: Readings, sample: Sample, incident: bool, hurried: bool
    ) -> Fired | None:
        clock = sample.clock_ns
        share = CONFIRM if hurried and self.machine.counting else 1.0
        if self._latest is not None and 0 <= clock - self._latest < self._interval_ns * share:
            return None
        self._latest = clock
        moment = Moment(readings, clock, self._stale_ns, incident)
        self.seen |= {n for n in self.names if readings.reading(n, clock, self._stale_ns)}
        value = self._variable.value(moment)
        threshold = self._threshold.value(moment) if self._threshold else None
        clear = self._clear.value(moment) if self._clear else threshold
        self.value, self.threshold = value, threshold
        if self._condition:
            breached = None if value is None else bool(value)
            cleared = None if breached is None else not breached
        elif value is None or threshold is None:
            breached = cleared = None
        else:
            breached = value > threshold if self._above else value < threshold
            cleared = not breached and self._is_clear(value, clear)
            self._remember(value, threshold)
        self.samples += breached is not None
        if not self._count(breached, cleared, clock):
            return None
        return Fired(
            trigger=self.settings.name,
            why=self._sentence(),
            time_ns=sample.time_ns,
            value=None if self._condition else value,
            threshold=threshold,
        )

    def remember(self, readings: Readings, sample: Sample, incident: bool) -> None:
        """Take a sample without the first name: at rest the processlist is asked rarely, and what
        is usual must be known when it is asked again.
        """
        clock = sample.clock_ns
        if self._latest is not None and clock - self._latest < 2 * self._pace_ns:
            return  # the first name comes about as often
        if clock - self._remembered_ns < self._pace_ns:
            return
        self._remembered_ns = clock
        moment = Moment(readings, clock, self._stale_ns, incident)
        for part in (self._variable, self._threshold, self._clear):
            if part is not None:
                part.value(moment)

    def _is_clear(self, value: float, clear: float | None) -> bool:
        if clear is None:
            return True
        return value <= clear if self._above else value >= clear

    def _remember(self, value: float, threshold: float) -> None:
        """Keep the value that came nearest, by its difference from the threshold of that time."""
        far = value - threshold if self._above else threshold - value
        if self.nearest is not None:
            before = self.nearest[0] - self.nearest[1]
            if far <= (before if self._above else -before):
                return
        self.nearest = (value, threshold)

    def _sentence(self) -> str:
        settings, tree = self.settings, self._variable.tree
        if self._threshold is None:
            found = sentence.figures(tree, self._value_of)
        else:
            sign = ">" if self._above else "<"
            found = [sentence.beyond(tree, sign, self._threshold.tree, self._value_of)]
        return sentence.whole(settings.about, found, settings.cycles)

    def _value_of(self, part: Node) -> float | None:
        value = self._variable.latest(part)
        return self._threshold.latest(part) if value is None and self._threshold else value


def _limit(limit: float | str | None) -> Evaluation | None:
    return None if limit is None else Evaluation(parse(str(limit)))


def _text(name: Named) -> str:
    if isinstance(name, Name):
        return one_line(name.name, 80)
    return f'state("{one_line(name.pattern, 80)}")'
