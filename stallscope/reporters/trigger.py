# SPDX-License-Identifier: Apache-2.0
"""Why a capture was triggered, in one line."""

from __future__ import annotations

from typing import Any

import msgspec

from stallscope.model.capture import Trigger

__all__ = ["render", "why"]


def why(trigger: Trigger) -> str:
    """Return which wait it was, and how late the capture is."""
    return "; ".join([_cause(trigger), *_lateness(trigger), *_suppressed(trigger)]) + "."


def render(trigger: Trigger) -> dict[str, Any]:
    """Return it in the form of ``stallscope.analysis/1``."""
    fields = msgspec.structs.asdict(trigger)
    address = trigger.address
    return {**fields, "address": None if address is None else f"{address:#x}"}


def _cause(trigger: Trigger) -> str:
    waited = f"thread {trigger.tid} waited"
    if trigger.length_ms is not None:
        waited += f" {trigger.length_ms:.1f} ms"
    what = trigger.name
    if what is None and trigger.address is not None:
        what = f"{trigger.address:#x}"
    for_what = f"{trigger.kind} {what}" if what is not None else trigger.kind
    others = f", as did {trigger.waiters - 1} more" if trigger.waiters > 1 else ""
    over = "a convoy; threshold" if trigger.reason == "convoy" else "threshold"
    limit = "" if trigger.threshold_ms is None else f" ({over} {trigger.threshold_ms:g} ms)"
    return f"Taken because {waited} for {for_what}{others}{limit}"


def _lateness(trigger: Trigger) -> list[str]:
    steps = (
        ("known", trigger.delay_ms),
        ("copied", trigger.copied_ms),
        ("finished", trigger.finished_ms),
    )
    parts = [f"{name} {value:.1f} ms" for name, value in steps if value is not None]
    return [f"{', '.join(parts)} after the threshold"] if parts else []


def _suppressed(trigger: Trigger) -> list[str]:
    if not trigger.suppressed:
        return []
    what = "1 capture" if trigger.suppressed == 1 else f"{trigger.suppressed} captures"
    return [f"{what} suppressed before it"]
