# SPDX-License-Identifier: Apache-2.0
"""Numbers that a program of the user prints, as with pt-stalk's ``trg_plugin``."""

from __future__ import annotations

import math
from typing import NoReturn

from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.collectors.collector import sample
from stallscope.collectors.programs import Program
from stallscope.collectors.triggers.settings import CommandSettings
from stallscope.model.samples import Sample

__all__ = ["CommandCollector"]

_GRACE = 0.5
"""Seconds that it needs to end a late program and report it."""


class CommandCollector:
    """A collector (stallscope.collectors.collector) of one ``[[command]]``: ``command.NAME``.

    The program is run without a shell, in its own process group, which is killed at its end.
    """

    def __init__(self, settings: CommandSettings) -> None:
        self.name = f"command.{settings.name}"
        self.thread = self.name
        self.deadline = settings.deadline + _GRACE
        self.interval = self.rest_interval = settings.interval
        self._settings = settings
        self._running: Program | None = None

    def collect(self) -> Sample:
        """Run it once. Raises: StallscopeError where it printed no number, or was late."""
        return sample(self.name, lambda clock_ns: {self.name: self._number(self._output())})

    def close(self) -> None:
        """End a program that still runs."""
        if (running := self._running) is not None:
            running.end()

    def _output(self) -> bytes:
        try:
            program = self._running = Program(self._settings.run, output=True)
        except OSError as error:
            self._fail(f"cannot be run: {error.strerror}; check its path and permissions")
        try:
            result = program.run(self._settings.deadline, leave_children=False)
        finally:
            self._running = None
        if result.code is None:
            self._fail(
                f"not finished within {self._settings.deadline:g} s; give it a longer deadline"
            )
        if result.code != 0:
            said = one_line(result.err.decode("utf-8", "replace"), 200) or "nothing"
            self._fail(f"exited with {result.code} and printed {said}")
        return result.out

    def _number(self, output: bytes) -> float:
        text = output.decode("utf-8", "replace").strip()
        try:
            value = float(text)
        except ValueError:
            self._fail(f"printed {one_line(text, 60)!r}; it must print one number")
        if not math.isfinite(value):
            self._fail(f"printed {text}, which is not a number to compare")
        return value

    def _fail(self, why: str) -> NoReturn:
        raise StallscopeError(f"command {self._settings.name!r}: {self._settings.run[0]} {why}")
