# SPDX-License-Identifier: Apache-2.0
"""Rows of incidents that an agent has not shipped, as it was killed: made by a child process of low
priority (stored_process.py), one incident after the other."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Sequence

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.base.package import module_command
from stallscope.base.text import one_line
from stallscope.fleet import batch
from stallscope.fleet.batch import Batch
from stallscope.store import layout

__all__ = ["Request", "StoredRows"]

SECONDS = 120.0
"""The longest time for one incident."""
_MODULE = "stallscope.fleet.shipping.stored_process"


class Request(msgspec.Struct, frozen=True):
    """What the process is asked: its only input."""

    folder: str
    """Of all incidents."""
    incidents: list[str]
    host: str = ""
    redact: bool = False
    signatures: list[str] = []
    """Folders of more signatures."""


class StoredRows:
    """Runs the process, in the caller's thread; ``close`` ends it from another one."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()

    def run(self, request: Request, done: Callable[[str, Batch | None, str], None]) -> None:
        """Call ``done`` for each incident: its id, its rows or None, and then why there are none.

        An incident at which the process ends or hangs has no rows; the others are made by the
        next process.
        """
        left = [name for name in request.incidents if layout.is_id(name)]
        while left and not self._closing.is_set():
            found = self._once(msgspec.structs.replace(request, incidents=left), done)
            if not found:  # it could not even begin: nor will another one
                return
            left = [name for name in left if name not in found]

    def close(self) -> None:
        """End the process."""
        self._closing.set()
        self._kill()

    def _kill(self) -> None:
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    def _once(self, request: Request, done: Callable[[str, Batch | None, str], None]) -> set[str]:
        """Run one process; return the incidents that need no other one."""
        argv, environment = module_command(_MODULE)
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # its low priority counts among all sessions
            )
        except OSError:
            return set()
        ended: set[str] = set()
        with process:
            self._process = process
            if self._closing.is_set():  # it was set before
                process.kill()
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.write(msgspec.json.encode(request) + b"\n")
                process.stdin.close()
            current = self._read(process, request.incidents, ended, done)
            process.kill()
            self._process = None
        if current is not None and not self._closing.is_set():
            done(current, None, "the analysis ended without an answer")
            ended.add(current)
        return ended

    def _read(
        self,
        process: subprocess.Popen[bytes],
        known: Sequence[str],
        ended: set[str],
        done: Callable[[str, Batch | None, str], None],
    ) -> str | None:
        """Take the answers; return the incident at which they end too early."""
        assert process.stdout is not None
        current: str | None = None
        timer = threading.Timer(self._seconds, self._kill)
        timer.daemon = True
        timer.start()
        try:
            while line := process.stdout.readline(200):
                name, _, rest = line.decode("ascii", "replace").rstrip("\n").partition(" ")
                if name not in known:
                    return current
                timer.cancel()
                timer = threading.Timer(self._seconds, self._kill)
                timer.daemon = True
                timer.start()
                if rest == "begin":
                    current = name
                    continue
                length = int(rest) if rest.isdigit() else -1
                if not 0 <= length <= batch.MAX_PACKED:
                    return current
                data = process.stdout.read(length)
                if len(data) < length:
                    return current
                current = None
                ended.add(name)
                self._answer(name, data, done)
        finally:
            timer.cancel()
        return current

    def _answer(
        self, name: str, data: bytes, done: Callable[[str, Batch | None, str], None]
    ) -> None:
        if not data:
            done(name, None, "it cannot be read")
            return
        try:
            found = batch.loads(data)
        except StallscopeError as error:
            done(name, None, one_line(str(error)))
            return
        done(name, found, "")
