# SPDX-License-Identifier: Apache-2.0
"""What the agent prints: lines of incidents, and its log. Each stream has its own thread. Where
nobody reads a pipe, or a disk is full, lines are lost, and the agent continues without delay.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import IO

import msgspec

from stallscope.base.text import one_line
from stallscope.base.threads import keep_running

__all__ = ["LOG_FORMATS", "LOG_LEVELS", "LineWriter", "lines_to", "logging_to"]

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("info", "debug", "warning", "error")
MAX_LINES = 1000
"""The most lines that wait for a stream; more are dropped."""
MAX_MESSAGE = 4000
CLOSE_SECONDS = 0.5
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.DEBUG, 7))
"""Prefixes of sd-daemon(3)."""


class LineWriter:
    """Writes lines to a stream, in a thread of its own."""

    def __init__(self, stream: IO[str], lost: Callable[[int], str] | None = None) -> None:
        """``lost`` makes the line that says how many were lost, once it works again."""
        self.dropped = 0
        """How many lines were not written."""
        self._lost = lost
        self._said = 0
        self._stream = stream
        self._descriptor = _own_descriptor(stream)
        self._closing = threading.Event()
        self.on_closed: Callable[[], None] = lambda: None
        """Called in that thread when the reader of the lines is gone."""
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_LINES)
        self._thread = keep_running("output", self._work)

    def put(self, line: str) -> None:
        """Queue a line. It never waits, and never fails."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.dropped += 1

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write the queued lines, within the time limit."""
        self._closing.set()
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(seconds)

    def _work(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                if self._lost is not None and self.dropped > self._said:
                    self._write(self._lost(self.dropped - self._said))
                    self._said = self.dropped
                self._write(line)
            except OSError as error:
                self.dropped += 1
                if error.errno == errno.EPIPE:
                    self.on_closed()
            if self._closing.is_set() and self._lines.empty():
                break
        if self._descriptor is not None:
            os.close(self._descriptor)

    def _write(self, line: str) -> None:
        if self._descriptor is None:
            self._stream.write(f"{line}\n")
            return
        # Without the stream's buffer: the interpreter would flush it at its exit, and hang.
        data = f"{line}\n".encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(self._descriptor, data) :]


def _own_descriptor(stream: IO[str]) -> int | None:
    """Return a descriptor that stays open for as long as a write hangs; None: it is no file."""
    with contextlib.suppress(OSError, ValueError):
        return os.dup(stream.fileno())
    return None


class _LogFormat(logging.Formatter):
    """One line for each record, whatever its message holds."""

    def __init__(self, log_format: str, *, to_journal: bool) -> None:
        super().__init__()
        self._json = log_format == "json"
        self._to_journal = to_journal

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message += "; " + " | ".join(self.formatException(record.exc_info).splitlines())
        message = one_line(message, MAX_MESSAGE)
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        time = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        level = record.levelname.lower()
        if self._json:
            value = {"time": time, "level": level, "logger": record.name, "message": message}
            return msgspec.json.encode(value).decode()
        if self._to_journal:  # it adds a time to each line, and knows levels
            return f"<{_priority(record.levelno)}>stallscope: {message}"
        mark = "" if record.levelno <= logging.INFO else f"{level}: "
        return f"{time} stallscope: {mark}{message}"


class _LogHandler(logging.Handler):
    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.put(self.format(record))
        except Exception:  # a record with wrong arguments: lost, and counted
            self._writer.dropped += 1


def _priority(level: int) -> int:
    return next((number for least, number in _PRIORITIES if level >= least), 7)


def _is_journal(stream: IO[str]) -> bool:
    """Return whether a stream leads to systemd's journal (systemd.exec(5), JOURNAL_STREAM)."""
    with contextlib.suppress(OSError, ValueError):
        found = os.fstat(stream.fileno())
        return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
    return False


@contextlib.contextmanager
def logging_to(
    stream: IO[str], log_format: str = "text", level: str = "info"
) -> Iterator[LineWriter]:
    """Send the log of ``stallscope`` there."""
    formatter = _LogFormat(log_format, to_journal=_is_journal(stream))

    def lost(count: int) -> str:
        message = f"{count} lines of the log were lost: nobody read them, or the disk was full"
        fields = (__name__, logging.WARNING, __file__, 0, message, None, None)
        return formatter.format(logging.LogRecord(*fields))

    writer = LineWriter(stream, lost)
    handler = _LogHandler(writer)
    handler.setFormatter(formatter)
    logger = logging.getLogger("stallscope")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    try:
        yield writer
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        writer.close()


@contextlib.contextmanager
def lines_to(stream: IO[str]) -> Iterator[LineWriter]:
    """Yield the writer of results; queued lines are written at the end, within a time limit."""
    writer = LineWriter(stream)
    try:
        yield writer
    finally:
        writer.close()
