# SPDX-License-Identifier: Apache-2.0
"""All that the agent writes, in one thread and in order: a disk that hangs delays nothing else."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from stallscope.agent.news import Done, Put
from stallscope.base.errors import StallscopeError

__all__ = ["MAX_JOBS", "Keeper"]

MAX_JOBS = 1000
"""Jobs that may wait for the disk. What can be left out is, from then on."""

T = TypeVar("T")


class Keeper:
    """Does jobs one after the other. What follows from a job is called in the loop's thread.

    ``tell`` is given a sentence where a job failed.
    """

    def __init__(self, put: Put, tell: Callable[[str], None]) -> None:
        self._put = put
        self._tell = tell
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="keeper", daemon=True)
        self._thread.start()
        self._said = ""
        self.failed = 0
        self.left_out = 0

    def do(
        self,
        job: Callable[[], T],
        then: Callable[[T], None] | None = None,
        otherwise: Callable[[str], None] | None = None,
        *,
        needed: bool = True,
    ) -> None:
        """Do a job; ``then`` is given what it returned, ``otherwise`` why it failed.

        One that is not ``needed`` is left out where too many wait.
        """
        if not needed and self._jobs.qsize() > MAX_JOBS:
            self.left_out += 1
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
                    self._put(Done(lambda: follow(value)))

        self._jobs.put(work)

    def close(self, seconds: float) -> bool:
        """Do what waits, and end; say whether that was done in time."""
        self._jobs.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _fail(self, why: str, otherwise: Callable[[str], None] | None) -> None:
        self.failed += 1
        if why != self._said:
            self._tell(why)
        self._said = why
        if otherwise is not None:
            follow = otherwise
            self._put(Done(lambda: follow(why)))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
