# SPDX-License-Identifier: Apache-2.0
"""Numbers that were sampled with a capture, under the names that they have in triggers.

They say what no stack shows: that a login was refused, that an applier is stopped. A number that
was not sampled is not there: it is unknown, and never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from stallscope.model.capture import Capture

__all__ = ["PREFIX", "add", "names", "of"]

PREFIX = "sampled."
"""Of keys of ``Process.strings`` of the first process."""
MAX_VALUES = 500
MAX_NAME = 200
NAMED = "named."
"""Of keys of what the numbers are about: a control group, a file system."""


def add(
    capture: Capture, values: Mapping[str, float], about: Mapping[str, str] | None = None
) -> Capture:
    """Return the capture, and all later ones of its burst, with these numbers. ``about``: what they
    are about, ``{"cgroup.cpu": "/db.slice"}``."""
    more = {f"{PREFIX}{name}": repr(value) for name, value in values.items()}
    more |= {f"{NAMED}{name}": text for name, text in (about or {}).items()}
    if not (more and capture.processes):
        return capture
    later = tuple(_with(moment, more) for moment in capture.later)
    return msgspec.structs.replace(_with(capture, more), later=later)


def names(capture: Capture) -> dict[str, str]:
    """Return what the numbers of a capture are about; texts are not escaped."""
    return {
        key.removeprefix(NAMED): text[:MAX_NAME]
        for process in capture.processes[:1]
        for key, text in process.strings.items()
        if key.startswith(NAMED)
    }


def _with(capture: Capture, more: Mapping[str, str]) -> Capture:
    if not capture.processes:
        return capture
    first, *others = capture.processes
    first = msgspec.structs.replace(first, strings={**first.strings, **more})
    return msgspec.structs.replace(capture, processes=(first, *others))


def of(capture: Capture) -> dict[str, float]:
    """Return the numbers of a capture; what is none is left out."""
    found: dict[str, float] = {}
    for process in capture.processes[:1]:
        for key, text in process.strings.items():
            if key.startswith(PREFIX) and len(found) < MAX_VALUES:
                value = _number(text)
                if value is not None:
                    found[key.removeprefix(PREFIX)] = value
    return found


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
