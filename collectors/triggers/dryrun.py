# SPDX-License-Identifier: Apache-2.0
"""What triggers would do with given samples, and how close the others came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from stallscope.collectors.triggers.engine import Engine, TriggerState
from stallscope.collectors.triggers.recording import Record
from stallscope.collectors.triggers.sentence import number
from stallscope.collectors.triggers.settings import AgentSettings, TriggerSettings
from stallscope.collectors.triggers.state import Phase
from stallscope.model.incident import Fired

__all__ = ["DryRun", "TriggerRun", "dry_run", "sentence"]


class TriggerRun(msgspec.Struct, frozen=True):
    """One trigger."""

    settings: TriggerSettings
    state: TriggerState
    fired: tuple[Fired, ...] = ()


class DryRun(msgspec.Struct, frozen=True):
    """All of them, in the order of the settings."""

    triggers: tuple[TriggerRun, ...]
    samples: int
    seconds: float
    """From the first sample to the last."""


def dry_run(
    settings: AgentSettings, records: Iterable[Record], constants: Mapping[str, float] | None = None
) -> DryRun:
    """Feed the triggers with records, without captures or notifications."""
    engine = Engine(settings, constants)
    fired: list[Fired] = []
    clocks: list[int] = []
    for record in records:
        if record.sample is not None:
            fired += engine.feed(record.sample)
        elif record.line is not None:
            fired += engine.feed_waits(record.line, record.time_ns, record.clock_ns)
        else:
            continue
        clocks.append(record.clock_ns)
    states = {state.name: state for state in engine.states()}
    tried = (
        TriggerRun(t, states[t.name], tuple(one for one in fired if one.trigger == t.name))
        for t in settings.triggers
    )
    return DryRun(
        triggers=tuple(tried),
        samples=len(clocks),
        seconds=(max(clocks) - min(clocks)) / 1e9 if clocks else 0.0,
    )


def sentence(tried: TriggerRun) -> str:
    """Return what became of a trigger that did not fire, or of the first time that one did."""
    if tried.fired:
        again = f", {len(tried.fired)} times in total" if len(tried.fired) > 1 else ""
        return f"would fire: {tried.fired[0].why}{again}"
    state = tried.state
    if not state.samples:
        if state.never_seen:
            return f"cannot fire: no sample has {', '.join(state.never_seen)}"
        return "cannot fire yet: its value is not known yet (rates, windows, baselines)"
    return f"would not fire: {_distance(tried)}"


def _distance(tried: TriggerRun) -> str:
    state, settings = tried.state, tried.settings
    row = f"{state.most_in_a_row} of {settings.cycles} samples in a row"
    if state.phase is Phase.COUNTING:
        row += ", ongoing"
    if state.nearest is None or state.nearest_threshold is None:
        return f"it was true for {row}" if state.most_in_a_row else "it was never true"
    side, unit = ("", " ms") if settings.wait else ("> " if settings.when == "above" else "< ", "")
    came, fires = number(state.nearest), number(state.nearest_threshold)
    reached = f"came to {came}{unit}, and {side}{fires}{unit} fires"
    if state.most_in_a_row and settings.wait is None:
        return f"{reached}; breached in {row}"
    return reached
