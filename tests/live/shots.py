# SPDX-License-Identifier: Apache-2.0
"""Take captures of real servers the way a user does, and prove that the server was not harmed."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from servers import SqlServer
from targets import trouble

from stallscope import capturefile
from stallscope.model import Capture, Label, Thread

__all__ = ["CHECKOUT", "Shot", "names", "run", "take", "threads_with", "unharmed"]

CHECKOUT = Path(__file__).resolve().parents[2]
SECONDS = 100

_numbers = itertools.count()


class Shot(NamedTuple):
    """What one ``stallscope snap`` said."""

    code: int
    analysis: dict[str, Any]
    capture: Capture
    stderr: str

    @property
    def signatures(self) -> list[str | None]:
        """Ids of the findings, the verdict first."""
        return [finding["signature"] for finding in self.analysis["findings"]]

    @property
    def named(self) -> set[str | None]:
        """Ids of the findings and of all links of their chains."""
        chains = [link["signature"] for f in self.analysis["findings"] for link in f["chain"]]
        return {*self.signatures, *chains}

    def verified(self) -> list[Thread]:
        return [thread for thread in self.capture.threads if thread.label is Label.VERIFIED]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the checkout's stallscope."""
    command = [sys.executable, "-m", "stallscope", *(str(argument) for argument in arguments)]
    return subprocess.run(
        command, cwd=CHECKOUT, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def take(folder: Path, *options: object) -> Shot:
    """Run ``stallscope snap`` with these options; it must succeed, at least in part."""
    file = folder / f"shot-{next(_numbers)}.jsonl"
    done = run("snap", *options, "--json", "--output", file)
    assert done.returncode in (0, 3), done.stderr
    return Shot(done.returncode, json.loads(done.stdout), capturefile.read(file), done.stderr)


def names(thread: Thread) -> list[str]:
    """Return the names of a thread's user frames, innermost first."""
    return [str(frame) for frame in thread.frames]


def threads_with(capture: Capture, *functions: str) -> list[Thread]:
    """Return the threads that have frames of all these functions, arguments left aside."""
    return [
        thread
        for thread in capture.threads
        if set(functions) <= {name.partition("(")[0] for name in names(thread)}
    ]


@contextmanager
def unharmed(server: SqlServer) -> Iterator[None]:
    """Check that what happens inside costs the server nothing.

    It answers on a new connection and on one that was idle, keeps every connection, aborts none,
    and has no thread that is stopped or traced.
    """
    with server.connect() as witness, witness.cursor() as cursor:
        before = server.settled_connection_ids()
        aborted = server.status("Aborted_clients")
        yield
        assert trouble(server.pid) == []
        assert server.answers()
        cursor.execute("SELECT 42")
        assert cursor.fetchall() == ((42,),)
        assert before - server.connection_ids() == frozenset()
        assert server.status("Aborted_clients") == aborted
