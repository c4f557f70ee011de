# SPDX-License-Identifier: Apache-2.0
"""Send one batch: a row that the engine refuses must not keep the others from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from stallscope.base.sending import SendError
from stallscope.fleet.batch import Batch
from stallscope.fleet.destination import Destination

__all__ = ["Delivered", "deliver", "merged"]

MOST_REFUSED = 20
"""Where so many rows were refused one by one and none was taken, the rest is not tried."""

Line = tuple[str, bytes]


class Delivered(msgspec.Struct, frozen=True):
    """What became of a batch."""

    sent: int
    """Rows."""
    refused: int = 0
    why: str = ""
    """Why the latest one was refused."""


def deliver(destination: Destination, batch: Batch) -> Delivered:
    """Send a batch; one that is refused is sent in halves, until the bad rows are found.

    Raises: SendError, where it can be tried again: with the whole batch, since rows that the engine
    has change nothing.
    """
    todo = [_lines(batch)]
    sent = refused = 0
    why = ""
    while todo:
        part = todo.pop()
        try:
            destination.send(_batch(part))
        except SendError as error:
            if not error.refused:
                raise
            why = str(error)
            if len(part) == 1 or (not sent and refused >= MOST_REFUSED):
                refused += len(part)
            else:
                half = len(part) // 2
                todo += (part[half:], part[:half])
        else:
            sent += len(part)
    return Delivered(sent, refused, why)


def merged(batches: Sequence[Batch]) -> Batch:
    """Return one batch of the rows of several, in their order."""
    return _batch([line for batch in batches for line in _lines(batch)])


def _lines(batch: Batch) -> list[Line]:
    return [(table, line) for table, lines in batch.lines.items() for line in lines]


def _batch(lines: Sequence[Line]) -> Batch:
    found: dict[str, list[bytes]] = defaultdict(list)
    for table, line in lines:
        found[table].append(line)
    return Batch({table: tuple(of) for table, of in found.items()})
