# SPDX-License-Identifier: Apache-2.0
"""Take captures of real servers the way a user does, and prove that the server was not harmed."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stallscope.analyzers import engine
from stallscope.analyzers.catalog import Catalog
from stallscope.collectors import probe
from stallscope.model import capturefile
from stallscope.model.capture import Capture, Label, Thread
from tests.support.servers import PATIENCE, Late, SqlServer, wait_until
from tests.support.servers.tasks import at_rest, held_up
from tests.support.targets import trouble

__all__ = [
    "CHECKOUT",
    "ON_ONE_SERVER",
    "Captured",
    "names",
    "names_lock_open",
    "run",
    "serve_command",
    "served",
    "take",
    "threads_with",
    "unharmed",
]

CHECKOUT = Path(__file__).resolve().parents[2]
ON_ONE_SERVER = pytest.mark.parametrize(
    "server",
    [
        "mariadb",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("mysql55", "mysql97")),
    ],
    indirect=True,
)
"""For a test of what is not the server's: on the others it is nightly."""
STOOD_BY = 0.5
"""Confidence from which on a finding is more than a hint: docs/verdict.md."""
AT_REST = 1.0
LONGEST_SQL = 60
"""Seconds: the most that ``--sql-deadline`` takes."""

Runner = Callable[..., subprocess.CompletedProcess[str]]

_numbers = itertools.count()


class Captured(NamedTuple):
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
        command, cwd=CHECKOUT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def take(folder: Path, *options: object, runner: Runner = run) -> Captured:
    """Run ``stallscope snap`` with these options; it must succeed, at least in part."""
    file = folder / f"shot-{next(_numbers)}.jsonl"
    if "-p" in options and not {"--no-sql", "--sql-deadline"} & set(options):
        options += ("--sql-deadline", LONGEST_SQL)
    done = runner("snap", *options, "--json", "--output", file)
    assert done.returncode in (0, 3), done.stderr
    return Captured(done.returncode, json.loads(done.stdout), capturefile.read(file), done.stderr)


def serve_command(server: SqlServer) -> Sequence[object]:
    """Return the command line of a probe that takes captures as ``snap`` does."""
    return (probe.find(), "serve", "--pid", server.pid, "--read-string", "server_version")


def served(
    command: Sequence[object], folder: Path, count: int, env: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """Yield capture files that a serving probe writes, one each some ten milliseconds."""
    with subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=None if env is None else {**os.environ, **env},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline())["type"] == "ready"
            for _ in range(count):
                file = folder / f"served-{next(_numbers)}.jsonl"
                print(f"snap {file}", file=process.stdin, flush=True)
                answer = json.loads(process.stdout.readline())
                assert answer["type"] == "written", answer
                yield file
                file.unlink()
        finally:
            process.kill()


def names_lock_open(files: Iterator[Path], signatures: Catalog, enough: int) -> bool:
    """Return whether so many captures name LOCK_open first, and one of them its owner."""
    named = owned = 0
    for file in files:
        analysis = engine.analyze(capturefile.read(file), signatures)
        assert analysis.cycles == ()
        first = analysis.findings[0] if analysis.findings else None
        if first is None or first.signature != "table-open-lock" or first.confidence < STOOD_BY:
            continue
        named += 1
        (lock,) = [lock for lock in analysis.capture.locks if lock.symbol == "LOCK_open"]
        assert lock.waiters > 1
        if lock.stable and lock.owner_tid:  # and not between two owners
            assert lock.owner_tid in {thread.tid for thread in analysis.capture.threads}
            owned += first.blocker is not None and first.blocker.tid == lock.owner_tid
        if named >= enough and owned:
            return True
    return False


def names(thread: Thread) -> list[str]:
    """Return the names of a thread's user frames, innermost first."""
    return [str(frame) for frame in thread.frames]


def threads_with(capture: Capture, *functions: str) -> list[Thread]:
    """Return the threads that have frames of all these functions, without arguments."""
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
        # A connection that was cut may count as aborted only when its thread has seen it.
        with suppress(Late):  # a busy server never rests
            wait_until(lambda: at_rest(server.pid) or held_up(server.pid), "rest", AT_REST)
        before = server.held_connection_ids()
        aborted = server.status("Aborted_clients")
        yield
        assert trouble(server.pid) == []
        assert server.answers()
        cursor.execute("SELECT 42")
        assert cursor.fetchall() == ((42,),)
        lost = before - server.connection_ids()
        assert not lost, f"connections {sorted(lost)} are gone"
        assert server.status("Aborted_clients") == aborted
