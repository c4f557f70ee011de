# SPDX-License-Identifier: Apache-2.0
"""``stallscope top`` ends with its terminal, also where that takes nothing any more."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.support.servers import PATIENCE

pytestmark = pytest.mark.large

ROOT = Path(__file__).resolve().parents[2]
REPLAYED = ROOT / "tests" / "data" / "top" / "metadata-lock.jsonl.zst"
ARGV = [sys.executable, "-P", "-m", "stallscope", "top", "--replay", str(REPLAYED)]
LEADS = ("setsid", "--ctty")
"""Makes it lead a session whose terminal is its own; setsid becomes it, without a fork."""


def environment() -> dict[str, str]:
    return {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}


def wait_until_shown(master: IO[bytes]) -> None:
    seen = b""
    while b"Who waits on what" not in seen:
        assert select.select([master], [], [], PATIENCE)[0], seen
        seen += master.read(1 << 16)


@contextlib.contextmanager
def started(*prefix: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Run it in a session of its own; give the process and the other end of its terminal."""
    master, slave = os.openpty()
    terminal = os.fdopen(master, "r+b", buffering=0)
    try:
        process = subprocess.Popen(
            [*prefix, *ARGV],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(),
            start_new_session=not prefix,
        )
    finally:
        os.close(slave)
    with process, terminal:
        try:
            wait_until_shown(terminal)
            yield process, terminal
        finally:
            process.kill()


def test_a_terminal_that_is_gone() -> None:
    with started(*LEADS) as (top, terminal):
        terminal.close()  # the kernel sends SIGHUP, and every write fails
        top.wait(PATIENCE)


def test_a_terminal_that_went_without_a_signal() -> None:
    """As where another program has led the session, and is gone."""
    with started() as (top, terminal):
        terminal.close()
        top.wait(PATIENCE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminal_that_takes_nothing(number: signal.Signals) -> None:
    with started(*LEADS) as (top, terminal):
        for _ in range(200):  # more redrawing than the terminal and Textual's queue hold
            terminal.write(b"?\x1b")
        top.send_signal(number)
        top.wait(PATIENCE)
