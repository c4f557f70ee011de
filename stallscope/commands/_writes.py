# SPDX-License-Identifier: Apache-2.0
"""Saved reports of ``storage writes``, for diff and report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stallscope.base.errors import Exit, StallscopeError

if TYPE_CHECKING:
    from stallscope.model.storagewrites import WritesReport

__all__ = ["both", "compare", "saved"]

_HEAD = 4096


def both(before: str, after: str) -> tuple[WritesReport, WritesReport] | None:
    """Return the two reports where both are such; None where neither is. Raises: StallscopeError
    where one is."""
    found = [_is_saved(word) for word in (before, after)]
    if not any(found):
        return None
    if not all(found):
        one, other = (before, after) if found[0] else (after, before)
        raise StallscopeError(f"{one} is a report of storage writes, and {other} is not")
    return _read(before), _read(after)


def saved(words: Sequence[str]) -> WritesReport | None:
    """Return the report where the one word names a saved one. Raises: StallscopeError where one of
    several does."""
    found = [word for word in words if _is_saved(word)]
    if not found:
        return None
    if len(words) > 1:
        raise StallscopeError(f"{found[0]} is a report of storage writes: name only that")
    return _read(found[0])


def compare(
    reports: tuple[WritesReport, WritesReport],
    names: tuple[str, str],
    args: argparse.Namespace,
) -> Exit:
    """Print what changed from one report to the other."""
    from stallscope.analyzers import storagewritesdiff
    from stallscope.reporters import lines
    from stallscope.reporters import storagewritesdiff as reporter

    found = storagewritesdiff.diff(*reports)
    if args.json:
        print(reporter.dumps(found))
        return Exit.DONE
    width = lines.width_of(sys.stdout)
    lines.print_lines(reporter.render(found, width=width, names=names), sys.stdout)
    return Exit.DONE


def _is_saved(word: str) -> bool:
    from stallscope.model import storagewrites

    path = Path(word)
    if word == "-" or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return storagewrites.is_saved(file.read(_HEAD))
    except OSError:
        return False  # who reads it says why


def _read(word: str) -> WritesReport:
    from stallscope.model import storagewrites

    try:
        with Path(word).open("rb") as file:
            data = file.read(storagewrites.MAX_BYTES + 1)
    except OSError as error:
        raise StallscopeError(f"cannot read {word}: {error.strerror}") from error
    return storagewrites.loads(data, word)
