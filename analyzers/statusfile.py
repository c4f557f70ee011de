# SPDX-License-Identifier: Apache-2.0
"""Saved outputs of SHOW GLOBAL STATUS: ``mysqladmin ext``, pt-stalk's, tables, tabs, ``\\G``.

A file can hold many samples, as ``mysqladmin ext -i 1`` and pt-stalk write them. With ``-r`` all
but the first are differences: they are added up here.
"""

from __future__ import annotations

import re

__all__ = ["MAX_SAMPLES", "parse"]

MAX_SAMPLES = 100_000
MAX_VARIABLES = 5000

_TABLE = re.compile(r"\|\s*([A-Za-z][\w.\-]{0,99})\s*\|\s*(-?\d{1,24}(?:\.\d{1,12})?)\s*\|\s*$")
_TABS = re.compile(r"([A-Za-z][\w.\-]{0,99})\t(-?\d{1,24}(?:\.\d{1,12})?)\s*$")
_NAME = re.compile(r"\s{0,20}Variable_name: ([A-Za-z][\w.\-]{0,99})\s*$")
_VALUE = re.compile(r"\s{0,20}Value: (-?\d{1,24}(?:\.\d{1,12})?)\s*$")
_HEAD = re.compile(r"\|\s*Variable_name\s*\|\s*Value\s*\||Variable_name\t+Value\s*$")


def parse(text: str) -> list[dict[str, float]]:
    """Return the samples of one file, in its order, as absolute numbers."""
    samples: list[dict[str, float]] = []
    current: dict[str, float] = {}
    name = ""
    for line in text.splitlines():
        if _HEAD.match(line):
            current = _next(samples, current)
            continue
        if match := _NAME.match(line):
            name = match.group(1)
            continue
        if name and (match := _VALUE.match(line)):
            key, value = name, match.group(1)
        elif match := _TABLE.match(line) or _TABS.match(line):
            key, value = match.group(1), match.group(2)
        else:
            continue
        name = ""
        if key in current:
            current = _next(samples, current)
        if len(current) < MAX_VARIABLES:
            current[key] = float(value)
    _next(samples, current)
    return _absolute(samples)


def _next(samples: list[dict[str, float]], current: dict[str, float]) -> dict[str, float]:
    if current and len(samples) < MAX_SAMPLES:
        samples.append(current)
    return {}


def _absolute(samples: list[dict[str, float]]) -> list[dict[str, float]]:
    """Add differences up, where all but the first are such."""
    if len(samples) < 2 or not all(map(_is_difference, samples[1:])):
        return samples
    whole = [samples[0]]
    for sample in samples[1:]:
        last = whole[-1]
        whole.append({name: last.get(name, 0.0) + value for name, value in sample.items()})
    return whole


def _is_difference(sample: dict[str, float]) -> bool:
    """The size of a page never changes, and the connection that asks is always there."""
    if "Innodb_page_size" in sample:
        return sample["Innodb_page_size"] == 0
    return sample.get("Threads_running", 1.0) <= 0
