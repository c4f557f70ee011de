# SPDX-License-Identifier: Apache-2.0
"""The process that makes rows of stored incidents for an agent, which loads no analyzers:
``python -m stallscope.fleet.shipping.stored_process``.

The first line of standard input is a request. For each incident, standard output has the line
``ID LENGTH``, once before its work (``ID begin``), and the content of a batch's file.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import msgspec

from stallscope.analyzers import catalog
from stallscope.base.errors import StallscopeError
from stallscope.base.priority import be_expendable
from stallscope.base.text import one_line
from stallscope.fleet import batch
from stallscope.fleet.shipping.stored import Request
from stallscope.fleet.stored import rows_of_stored
from stallscope.store import layout
from stallscope.store.reading import read_incident

__all__ = ["main"]

NICE = 19
MAX_MEMORY = 2 << 30


def main() -> int:
    """Answer the request."""
    _lower_priority()
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=Request)
    out = sys.stdout.buffer
    try:
        signatures = catalog.load([Path(folder) for folder in request.signatures])
    except StallscopeError as error:
        print(one_line(str(error), 1000), file=sys.stderr)
        return int(error.exit_code)
    for name in filter(layout.is_id, request.incidents):
        out.write(f"{name} begin\n".encode())
        out.flush()
        data = b""
        try:
            stored = read_incident(Path(request.folder) / name)
            rows = rows_of_stored(stored, signatures, host=request.host, redact=request.redact)
            data = batch.dumps(batch.make(rows))
        except (StallscopeError, MemoryError) as error:
            print(one_line(str(error) or "out of memory", 1000), file=sys.stderr)
        out.write(f"{name} {len(data)}\n".encode())
        out.write(data)
        out.flush()
    return 0


def _lower_priority() -> None:
    """Get less CPU time than all others, and be killed first when memory runs out."""
    be_expendable(NICE, MAX_MEMORY)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


if __name__ == "__main__":
    sys.exit(main())
