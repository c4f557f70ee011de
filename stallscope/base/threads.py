# SPDX-License-Identifier: Apache-2.0
"""Threads that must not end: an error in one is logged, counted, and the work begins again. And
signs of life, so that one that hangs is noticed.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import FrameSummary

from stallscope.base.backoff import Backoff
from stallscope.base.text import one_line

__all__ = ["Pulse", "keep_running", "name_of_thread", "place_of", "server_of_thread", "traced"]

_log = logging.getLogger(__name__)

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 60.0
STEADY_SECONDS = 60.0
"""Work that went on for so long has begun well: the next pause is short again."""
_MOST_FRAMES = 12


class Pulse:
    """The sign of life of a thread."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def beat(self) -> None:
        """Show that the thread moves."""
        self._at = time.monotonic()

    @property
    def age(self) -> float:
        """Return the seconds since the last beat."""
        return time.monotonic() - self._at


def keep_running(
    what: str, work: Callable[[], None], failed: Callable[[str, str], None] | None = None
) -> threading.Thread:
    """Run ``work`` in a daemon thread until it returns; after an exception, begin it again.

    ``failed`` is called with each exception, in that thread: ``what``, and why.
    """

    def run() -> None:
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            begun = time.monotonic()
            try:
                return work()
            except Exception as error:
                why = traced(error)
                _log.error("the thread %s failed and begins again: %s", what, why)
                if failed is not None:
                    failed(what, why)
            if time.monotonic() - begun > STEADY_SECONDS:
                backoff.reset()
            time.sleep(backoff.next())

    # A daemon: work that hangs must not keep the agent from ending.
    thread = threading.Thread(target=run, name=name_of_thread(what), daemon=True)
    thread.start()
    return thread


def name_of_thread(what: str) -> str:
    """Return the name of a thread that works for the same server as this one: ``SERVER/what``."""
    server = server_of_thread(threading.current_thread().name)
    return what if server is None else f"{server}/{what}"


def server_of_thread(name: str | None) -> str | None:
    """Return for which server the thread of this name works; None: for none alone."""
    server, slash, _ = (name or "").rpartition("/")
    return server if slash else None


def traced(error: BaseException) -> str:
    """Return an exception with its traceback, in one line, innermost call last."""
    frames = _places(traceback.extract_tb(error.__traceback__))
    return one_line(f"{type(error).__name__}: {error} [{frames}]", 1500)


def place_of(thread: threading.Thread) -> str:
    """Return where a thread is now, in one line, innermost call last."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "it has ended" if frame is None else _places(traceback.extract_stack(frame))


def _places(frames: Sequence[FrameSummary]) -> str:
    return " > ".join(
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in frames[-_MOST_FRAMES:]
    )
