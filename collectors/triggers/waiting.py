# SPDX-License-Identifier: Apache-2.0
"""Triggers on waits: options of the probe for them, and how its lines are matched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stallscope.base.text import clean, end_of_name
from stallscope.collectors.triggers.settings import TriggerSettings
from stallscope.model.capture import Trigger
from stallscope.model.samples import Sample
from stallscope.model.waitkinds import kinds_of, thresholds_of
from stallscope.model.waitlines import Key, WaitLine

__all__ = [
    "WAITS",
    "is_counted",
    "is_of_waits",
    "lasts",
    "length_ms",
    "longest",
    "matches",
    "probe_options",
    "sample_of",
    "sentence",
]

WAITS = "waits"
"""The source name of samples that are made of the probe's lines."""


def probe_options(triggers: Iterable[TriggerSettings]) -> list[str]:
    """Return the options with which ``stallscope-probe serve`` captures for every trigger.

    The probe has one threshold for all locks and one size of convoys: where triggers differ it
    takes the lowest, and ``matches`` says which trigger, if any, a capture belongs to.
    """
    events: dict[str, float] = {}
    captures: dict[str, float] = {}
    convoys = []
    for trigger in triggers:
        if trigger.wait is None or not isinstance(trigger.threshold, float | int):
            continue
        wanted = captures if trigger.convoy is None else events
        if trigger.convoy is not None:
            convoys.append(trigger.convoy)
        for knob in thresholds_of(trigger.wait):
            wanted[knob] = min(trigger.threshold, wanted.get(knob, trigger.threshold))
    options = [f"--threshold={knob}={ms:g}" for knob, ms in sorted(events.items())]
    options += [f"--capture-threshold={knob}={ms:g}" for knob, ms in sorted(captures.items())]
    return [*options, f"--convoy={min(convoys)}"] if convoys else options


def matches(settings: TriggerSettings, kind: str, length_ms: float, waiters: int) -> bool:
    """Return whether a wait is one that a trigger waits for."""
    return (
        settings.wait is not None
        and isinstance(settings.threshold, float | int)
        and kind in kinds_of(settings.wait)
        and length_ms >= settings.threshold
        and (settings.convoy is None or waiters >= settings.convoy)
    )


def length_ms(key: Key) -> float:
    """Return the longest wait for a lock or file that threads still wait for.

    The longest that ended since the line before counts, too: a server that waits in steps (MariaDB
    for a metadata lock: of a second, as long as the time between two lines) would else show a long
    one only in lines that come late within a step, and for minutes there may be none.
    """
    return key.longest_ms if key.in_flight else 0.0


def longest(settings: TriggerSettings, line: WaitLine) -> Trigger | None:
    """Return the longest wait of a line that the trigger matches."""
    found = [key for key in line.keys if matches(settings, key.kind, length_ms(key), key.in_flight)]
    return max(map(_trigger, found), key=lambda t: t.length_ms or 0.0, default=None)


def lasts(settings: TriggerSettings, line: WaitLine) -> bool:
    """Return whether the interval of a line had waits as the trigger waits for, or has them still.

    A server that waits in steps has none in flight that is long in each line, while its threads
    wait. So what ended in the interval of a line does not begin a stall, and holds back its end.
    """
    return any(
        matches(settings, key.kind, key.longest_ms, max(key.in_flight, key.count))
        for key in line.keys
    )


def _trigger(key: Key) -> Trigger:
    return Trigger(
        reason="threshold",
        kind=key.kind,
        name=key.name,
        pid=key.pid or 0,
        length_ms=length_ms(key),
        waiters=key.in_flight,
    )


def sentence(settings: TriggerSettings, wait: Trigger) -> str:
    """Describe a wait with its numbers."""
    assert isinstance(settings.threshold, float | int)
    name = f" of {end_of_name(clean(wait.name), 80)}" if wait.name else ""
    length = f"{wait.length_ms or 0.0:,.0f} ms (threshold {settings.threshold:,g} ms)"
    if settings.convoy is None:
        return f"{wait.kind}{name} has waited {length}"
    name = name.replace(" of ", " ", 1)
    threads = f"{wait.waiters} threads wait for {wait.kind}{name} (threshold {settings.convoy})"
    return f"{threads}, one of them {length}"


def is_of_waits(name: str) -> bool:
    """Return whether ``sample_of`` has a value of this name."""
    return name.startswith(f"{WAITS}.")


def is_counted(name: str) -> bool:
    """Return whether a value of ``sample_of`` is of waits that are below their threshold too."""
    return is_of_waits(name) and not name.endswith(".in_flight")


def sample_of(line: WaitLine, time_ns: int, clock_ns: int) -> Sample:
    """Make the numbers of a line: ``waits.KIND.`` and ``count``, ``max_ms``, ``in_flight``,
    ``longest_ms`` (so far, in flight) and ``convoy`` (threads in flight for one lock or file).
    """
    values = dict(_values(line))
    return Sample(source=WAITS, time_ns=time_ns, clock_ns=clock_ns, values=values)


def _values(line: WaitLine) -> Iterator[tuple[str, float]]:
    for kind, waits in line.kinds.items():
        keys = [key for key in line.keys if key.kind == kind]
        head = f"waits.{kind}."
        yield f"{head}count", waits.count
        yield f"{head}max_ms", waits.max_ms
        yield f"{head}in_flight", waits.in_flight
        yield f"{head}longest_ms", max((key.longest_in_flight_ms for key in keys), default=0.0)
        yield f"{head}convoy", max((key.in_flight for key in keys), default=0)
