# SPDX-License-Identifier: Apache-2.0
"""Write the agent's files in one thread, in order: a disk that hangs delays nothing else."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from typing import TypeVar

from stallscope.agent.events import Callback, Put, ThreadFailed
from stallscope.base.errors import StallscopeError
from stallscope.base.threads import keep_running

__all__ = ["MAX_JOBS", "Writer"]

_log = logging.getLogger(__name__)

MAX_JOBS = 1000
"""The most jobs that wait for the disk. Of more, those that are not needed are dropped."""

T = TypeVar("T")


class Writer:
    """Does jobs one after the other. The callbacks of a job are called in the loop's thread."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._logged = ""
        self._begun: float | None = None
        """When the job that is being done was begun."""
        self.failed = 0
        self.dropped = 0
        self._thread = keep_running(
            "writer", self._work, lambda what, why: put(ThreadFailed(what, why))
        )

    @property
    def busy_seconds(self) -> float:
        """Return for how long the job that is being done has taken; 0: there is none."""
        begun = self._begun
        return 0.0 if begun is None else time.monotonic() - begun

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """How many jobs wait for the disk."""
        return self._jobs.qsize()

    def submit(
        self,
        job: Callable[[], T],
        then: Callable[[T], None] | None = None,
        otherwise: Callable[[str], None] | None = None,
        *,
        needed: bool = True,
    ) -> None:
        """Do a job; ``then`` gets its result, ``otherwise`` its error. A job that is not ``needed``
        is dropped where too many wait.
        """
        if not needed and self._jobs.qsize() > MAX_JOBS:
            self.dropped += 1
            return

        def work() -> None:
            try:
                value = job()
            except StallscopeError as error:
                self._fail(str(error), otherwise)
            except Exception as error:
                self._fail(f"internal error: {type(error).__name__}: {error}", otherwise)
            else:
                if then is not None:
                    follow = then
                    self._put(Callback(lambda: follow(value)))

        self._jobs.put(work)

    def close(self, seconds: float) -> bool:
        """Do the waiting jobs, and end; return whether that was done in time."""
        self._jobs.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _fail(self, why: str, otherwise: Callable[[str], None] | None) -> None:
        self.failed += 1
        if why != self._logged:
            _log.error("%s", why)
        self._logged = why
        if otherwise is not None:
            follow = otherwise
            self._put(Callback(lambda: follow(why)))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._begun = time.monotonic()
            try:
                job()
            finally:
                self._begun = None
