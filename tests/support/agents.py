# SPDX-License-Identifier: Apache-2.0
"""``stallscope watch``, for tests and benchmarks: what it prints, and what it keeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stallscope.model.incident import Incident
from stallscope.store import listing, read_incident
from tests.support.servers import PATIENCE, SqlServer
from tests.support.usage import process_tree

__all__ = ["BRIEF_TRIGGER", "CHECKOUT", "AgentProcess", "agent", "incidents"]

CHECKOUT = Path(__file__).resolve().parents[2]
READY = "ready to capture"
BRIEF_TRIGGER = """\
[[trigger]]
name = "metadata-lock"
variable = 'state("Waiting for * metadata lock")'
threshold = 2
cycles = 2
clear = 0
clear-cycles = 2
sleep = 2
run-time = 1
"""
"""The default of this name, which is over soon: its stalls can follow each other."""


class AgentProcess:
    """The process, the JSON lines it printed, and what it said on standard error."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self.said: list[str] = []
        self._news = threading.Condition()
        self._open = 2
        """Streams that have not come to their end."""
        self._readers = [
            threading.Thread(target=self._read, args=(stream, take), daemon=True)
            for stream, take in (
                (process.stdout, lambda data: self.events.append(json.loads(data))),
                (process.stderr, lambda data: self.said.append(data.decode().rstrip())),
            )
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def of(self, event: str) -> list[dict[str, Any]]:
        """Return the incidents of these events, oldest first."""
        return [line["incident"] for line in list(self.events) if line["event"] == event]

    def wait(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
        """Wait until what it has printed fulfils a condition."""
        with self._news:
            met = self._news.wait_for(lambda: condition() or not self._open, seconds)
        assert met, f"no {what}; {self.outline()}"
        assert condition(), f"no {what}, and it has ended; {self.outline()}"

    def outline(self) -> str:
        """Return what it printed in few words: of a failure, a report shows only the end."""
        events = [_event_line(line["event"], line["incident"]) for line in list(self.events)]
        return "\n".join(("on standard error:", *self.said, "events:", *events))

    def wait_said(self, text: str, count: int = 1) -> None:
        """Wait until it has said this on standard error, so many times."""
        self.wait(lambda: sum(text in line for line in list(self.said)) >= count, text)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it cleanly; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self._join()
        return code

    def kill(self) -> None:
        """End it at once, and read all that it has printed; it may have ended before."""
        self.process.kill()
        self.process.wait()
        self._join()

    def _join(self) -> None:
        """Come to the end of its streams: a reader of one that is closed dies of that."""
        for reader in self._readers:
            reader.join(PATIENCE)

    def members(self) -> list[int]:
        """Return its process and all below it: the probe and the probe's worker."""
        return process_tree(self.pid)

    def _read(self, stream: Any, take: Callable[[bytes], None]) -> None:
        for data in stream:
            if not data.endswith(b"\n"):
                break  # it was killed within a line
            with self._news:
                take(data)
                self._news.notify_all()
        with self._news:
            self._open -= 1
            self._news.notify_all()


def _event_line(event: str, incident: dict[str, Any]) -> str:
    verdict = incident.get("verdict") or {}
    fired = ", ".join(one["trigger"] for one in incident.get("triggers", ()))
    notes = ", ".join(one["code"] for one in incident.get("notes", ()))
    return (
        f"{event} {incident.get('start_ns')}..{incident.get('end_ns')}"
        f" {verdict.get('signature')} ({verdict.get('title')}) by {fired}; notes: {notes}"
    )


@contextmanager
def agent(
    server: SqlServer | int | str,
    dest: Path,
    *options: object,
    ready: str | None = READY,
    env: dict[str, str] | None = None,
    command: str = "watch",
    python: Sequence[str] = (sys.executable,),
) -> Iterator[AgentProcess]:
    """Watch a server until the block ends."""
    pid = server if isinstance(server, int | str) else server.pid
    words = [*python, "-m", "stallscope", command, "-p", pid, "--dest", dest, "--json"]
    process = subprocess.Popen(
        [str(word) for word in (*words, *options)],
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(env or {})},
        start_new_session=True,  # as a service
    )
    with process:
        found = AgentProcess(process)
        try:
            if ready is not None:
                found.wait_said(ready)
            yield found
            found.stop()
        finally:
            found.kill()


def incidents(dest: Path) -> list[Incident]:
    """Return all incidents of a store, oldest first."""
    found = listing(dest).incidents
    return [read_incident(dest / "incidents" / summary.id).incident for summary in found]
