# SPDX-License-Identifier: Apache-2.0
"""The numbers of ``SHOW ENGINE INNODB STATUS``, under one name each wherever they are shown."""

from __future__ import annotations

import re

__all__ = ["NAMES", "numbers"]

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

NAMES = frozenset(
    {
        *_COUNTS,
        *_PLACES,
        "innodb.semaphore_waits",
        "innodb.semaphore_longest_s",
        "innodb.checkpoint_age",
    }
)
"""All that `numbers` can find."""


def numbers(text: str) -> dict[str, float]:
    """Return what a report says in numbers; what it does not say is left out."""
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
