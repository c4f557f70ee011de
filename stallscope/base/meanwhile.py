# SPDX-License-Identifier: Apache-2.0
"""A call that runs in a thread of its own while its caller waits for something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Meanwhile"]

T = TypeVar("T")


class Meanwhile(Generic[T]):
    """A call that has begun, and its result."""

    def __init__(self, call: Callable[[], T], name: str) -> None:
        self._call = call
        self._found: list[T] = []
        self._error: Exception | None = None
        # A daemon: an error of the caller must not wait for it.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def result(self) -> T:
        """Return what the call returned, as soon as it has, or raise what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found[0]

    def _run(self) -> None:
        try:
            self._found.append(self._call())
        except Exception as error:  # raised where the result is asked for
            self._error = error
