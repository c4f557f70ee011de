# SPDX-License-Identifier: Apache-2.0
"""The numbers of ``SHOW ENGINE INNODB STATUS``, each with one name in all outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["NAMES", "latest_deadlock", "numbers", "with_share"]

# By single patterns: reading the whole report costs a thousand times as much, and is for analyzers.
_COUNTS = {
    "innodb.history_list_length": re.compile(r"^History list length (\d{1,18})", re.M),
    "innodb.pending_log_writes": re.compile(r"^(\d{1,9}) pending log (?:writes|flushes)", re.M),
    "innodb.pending_reads": re.compile(r"^Pending reads {1,40}(\d{1,9})", re.M),
    "innodb.queries_inside": re.compile(r"^(\d{1,9}) queries inside InnoDB", re.M),
    "innodb.queries_queued": re.compile(r"inside InnoDB, (\d{1,9}) queries in queue", re.M),
}
# MySQL before 5.5 printed the two halves of a log sequence number.
_PLACES = {
    "innodb.log_sequence": re.compile(
        r"^Log sequence number +(?:(\d{1,10}) )?(\d{1,20})\s*$", re.M
    ),
    "innodb.log_flushed": re.compile(r"^Log flushed up to +(?:(\d{1,10}) )?(\d{1,20})\s*$", re.M),
    "innodb.checkpoint": re.compile(r"^Last checkpoint at +(?:(\d{1,10}) )?(\d{1,20})\s*$", re.M),
}
_SEMAPHORES = re.compile(r"^SEMAPHORES\s*$", re.M)
_SEMAPHORE_WAIT = re.compile(
    r"^--Thread \d{1,20} has waited at \S{1,200} line \d{1,7} for"
    r" (\d{1,9}(?:\.\d{1,9})?) seconds",
    re.M,
)

_DEADLOCK = re.compile(
    r"^LATEST DETECTED DEADLOCK\n-+\n(\d{2,4}-?\d\d-?\d\d +\d{1,2}:\d\d:\d\d)", re.M
)

NAMES = frozenset(
    {
        *_COUNTS,
        *_PLACES,
        "innodb.semaphore_waits",
        "innodb.semaphore_longest_s",
        "innodb.checkpoint_age",
    }
)
"""All names that `numbers` can return."""


def numbers(text: str) -> dict[str, float]:
    """Return the numbers of a report, as far as it has them."""
    found: dict[str, float] = {}
    for name, pattern in _COUNTS.items():
        if match := pattern.search(text):
            found[name] = float(match.group(1))
    for name, pattern in _PLACES.items():
        if match := pattern.search(text):
            found[name] = float((int(match.group(1) or 0) << 32) + int(match.group(2)))
    waits = [float(match.group(1)) for match in _SEMAPHORE_WAIT.finditer(text)]
    if waits or _SEMAPHORES.search(text):
        found["innodb.semaphore_waits"] = float(len(waits))
        found["innodb.semaphore_longest_s"] = max(waits, default=0.0)
    if "innodb.log_sequence" in found and "innodb.checkpoint" in found:
        age = found["innodb.log_sequence"] - found["innodb.checkpoint"]
        found["innodb.checkpoint_age"] = max(0.0, age)
    return found


def with_share(text: str, variables: Mapping[str, str]) -> dict[str, float]:
    """Return the numbers of SHOW ENGINE INNODB STATUS; ``variables`` has the size of the log."""
    values = numbers(text)
    age, capacity = values.get("innodb.checkpoint_age"), _log_capacity(variables)
    if age is not None and capacity:
        values["innodb.checkpoint_share"] = age / capacity
    return values


def latest_deadlock(text: str) -> str | None:
    """Return the time of the latest deadlock in SHOW ENGINE INNODB STATUS."""
    match = _DEADLOCK.search(text)
    return match.group(1) if match else None


def _log_capacity(variables: Mapping[str, str]) -> int:
    def number(name: str, default: int = 0) -> int:
        text = variables.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else default

    capacity = number("innodb_redo_log_capacity")
    # From 8.0.30 on the old two still exist, but have no effect unless they were set.
    return capacity or number("innodb_log_file_size") * number("innodb_log_files_in_group", 1)
