# SPDX-License-Identifier: Apache-2.0
"""A probe that is asked for captures, over its standard input."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from stallscope.collectors import probe
from stallscope.model import capturefile
from stallscope.model.capture import Capture
from tests.support.servers import PATIENCE

__all__ = ["ask", "ask_snap", "serving"]


@contextmanager
def serving(pid: int, backend: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``stallscope-probe serve`` until the block ends, with its standard input."""
    argv = [str(probe.find()), "serve", "--pid", str(pid), "--backend", backend, *options]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"type": "ready"}
        try:
            yield process
        finally:
            process.stdin.close()
            process.stdin = None
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()


def ask(process: subprocess.Popen[bytes], command: str) -> list[bytes]:
    """Send one line and return the answer's lines."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(command.encode() + b"\n")
    process.stdin.flush()
    lines: list[bytes] = []
    while not lines or json.loads(lines[-1])["type"] not in ("end", "error", "written"):
        line = process.stdout.readline()
        assert line, f"the probe ended ({process.wait(PATIENCE)}) after {lines[-1:]}"
        lines.append(line)
    return lines


def ask_snap(process: subprocess.Popen[bytes]) -> Capture:
    return capturefile.loads(b"".join(ask(process, "snap")), "serve")
