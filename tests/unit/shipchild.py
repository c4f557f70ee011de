# SPDX-License-Identifier: Apache-2.0
"""A process in place of that which makes rows of stored incidents: it fails as their pids say."""

from __future__ import annotations

import os
import sys
import time

import msgspec

from stallscope.fleet import batch
from stallscope.fleet.shipping.stored import Request
from tests.unit.shipfakes import stacks

__all__ = ["main"]


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=Request)
    out = sys.stdout.buffer
    for name in request.incidents:
        how = name.rpartition("-")[2]
        out.write(f"{name} begin\n".encode())
        out.flush()
        if how == "13":
            os._exit(1)
        if how == "17":
            time.sleep(600)
        data = {"19": b"", "23": b"garbage"}.get(how, batch.dumps(stacks(name)))
        if how == "29":
            out.write(b"nonsense 99999999999999\n")
            out.flush()
        out.write(f"{name} {len(data)}\n".encode() + data)
        out.flush()


if __name__ == "__main__":
    main()
