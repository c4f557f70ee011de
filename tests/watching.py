# SPDX-License-Identifier: Apache-2.0
"""A serving probe that watches waits: its lines as they come, and what it leaves attached."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servers import PATIENCE, program

from stallscope import capturefile, probe
from stallscope.model import Capture

__all__ = ["Line", "Watcher", "attached", "loaded", "watcher"]

Line = dict[str, Any]


class Watcher:
    """``stallscope-probe serve`` and all that it has said so far."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.lines: list[Line] = []
        self.captures: list[Capture] = []
        """Those that are among the lines, without a file."""
        self._records: list[bytes] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, command: str) -> None:
        """Send one command."""
        assert self.process.stdin is not None
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, command: str, *types: str) -> Line:
        """Send one command and return the first line of these types that follows."""
        start = len(self.lines)
        self.say(command)
        return self.line(lambda line: line["type"] in types, command, start=start)

    def line(self, wanted: Callable[[Line], bool], what: str, *, start: int = 0) -> Line:
        """Return the first line, from number ``start`` on, that is wanted; wait for it.

        Each line is looked at once: whoever is slower than a storm holds the probe up.
        """
        at = start
        deadline = time.monotonic() + PATIENCE
        with self._news:
            while True:
                for line in self.lines[at:]:
                    if wanted(line):
                        return line
                at = max(at, len(self.lines))
                left = deadline - time.monotonic()
                assert not self._ended, f"it ended without {what}: {self.lines[start:][-5:]}"
                assert left > 0, f"no {what}; last lines: {self.lines[start:][-5:]}"
                self._news.wait(left)

    def event(self, wanted: Callable[[Line], bool], what: str) -> Line:
        """Return the first event that is wanted; wait for it."""
        line = self.line(lambda line: line["type"] == "event" and wanted(line["event"]), what)
        event = line["event"]
        assert isinstance(event, dict)
        return event

    def events(self) -> list[Line]:
        return [line["event"] for line in self.lines if line["type"] == "event"]

    def capture(self, number: int = 0) -> Capture:
        """Return one of the captures that went without a file; wait for it."""
        with self._news:
            self._news.wait_for(lambda: len(self.captures) > number or self._ended, PATIENCE)
            assert len(self.captures) > number, f"{len(self.captures)} captures"
            return self.captures[number]

    def quit(self) -> int:
        """Let it end by itself; return its exit code."""
        assert self.process.stdin is not None
        if self.process.poll() is None:
            self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def kill(self) -> None:
        """End it at once; it may have ended before.

        All that it has said is read before the pipe is closed: who reads from one that is closed
        dies of that.
        """
        self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for data in self.process.stdout:
            self._take(data)
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _take(self, data: bytes) -> None:
        if self._records or data.startswith(b'{"type":"capture",'):
            self._records.append(data)  # parsed as a whole: whoever reads slowly holds the probe up
            if data.startswith(b'{"type":"end",'):
                capture = capturefile.loads(b"".join(self._records), "serve")
                self._records = []
                with self._news:
                    self.captures.append(capture)
                    self._news.notify_all()
        else:
            line = json.loads(data)
            with self._news:
                self.lines.append(line)
                self._news.notify_all()


@contextmanager
def watcher(*pids: int, options: tuple[str, ...] = ("--watch", "--events")) -> Iterator[Watcher]:
    """Run a serving probe on these processes until the block ends."""
    argv = [str(probe.find()), "serve", *options]
    for pid in pids:
        argv += ["--pid", str(pid)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        found = Watcher(process)
        try:
            found.line(lambda line: line["type"] == "ready", "line that it is ready")
            yield found
            found.quit()
        finally:
            found.kill()


def attached(pid: int) -> set[str]:
    """Return the BPF programs and links that a process holds: ``prog 17``, ``link 23``."""
    found = set()
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            for line in file.read_text().splitlines():
                name, _, value = line.partition(":")
                if name in ("prog_id", "link_id"):
                    found.add(f"{name.removesuffix('_id')} {value.strip()}")
    return found


def loaded() -> set[str]:
    """Return the BPF programs and links that the kernel has, of whomever."""
    return {f"{kind} {one['id']}" for kind in ("prog", "link") for one in bpftool(kind)}


def bpftool(kind: str) -> list[Line]:
    command = [str(program("bpftool")), "--json", kind, "list"]
    done = subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    listed = json.loads(done.stdout)
    assert isinstance(listed, list)
    return listed
