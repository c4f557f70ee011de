# SPDX-License-Identifier: Apache-2.0
"""What a check is, and how checks run so that none delays the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.collectors.processes import Server

__all__ = ["Check", "CheckFunction", "Place", "Status", "Task", "run"]

Status = Literal["ok", "degraded", "missing", "unknown"]


class Check(msgspec.Struct, frozen=True):
    """One line of the doctor."""

    name: str
    status: Status
    what: str
    """What was found, or what is lost."""
    fix: str | None = None
    """A command to type, or what to do."""
    why: str | None = None
    """Why it matters."""
    permanent: str | None = None
    """What keeps the change after a restart of the host or the server."""
    risk: str | None = None
    """What it costs: ``loss`` (of committed data), ``speed`` or ``space``."""
    sources: tuple[str, ...] = ()
    """Files, calls and variables that it is from."""


class Place(msgspec.Struct, frozen=True):
    """What to check: ``root`` is / except in tests."""

    root: Path = Path("/")
    server: Server | None = None
    """None: no server was named."""
    dest: Path | None = None
    """The folder of the store; None: the default one."""

    def text(self, path: str) -> str | None:
        """Return the beginning of a small file, stripped; None where it cannot be read."""
        try:
            with (self.root / path.lstrip("/")).open("rb") as file:
                return file.read(65536).decode("utf-8", "replace").strip()
        except OSError:
            return None

    def link(self, path: str) -> str | None:
        """Return the target of a symbolic link; None where it cannot be read."""
        try:
            return str((self.root / path.lstrip("/")).readlink())
        except OSError:
            return None


CheckFunction = Callable[[], Iterable[Check]]


class Task(msgspec.Struct, frozen=True):
    """A function that makes checks, and how long it may take."""

    name: str
    function: CheckFunction
    seconds: float = 5.0


def run(tasks: Sequence[Task]) -> Iterator[Check]:
    """Run the tasks in parallel; yield their checks in order. A task that is late or fails becomes
    a check that says so.
    """
    running = [(task, _Running(task)) for task in tasks]
    for task, work in running:
        if work.done.wait(task.seconds):
            yield from work.checks
        else:
            what = f"no answer within {task.seconds:g} s"
            yield Check(task.name, "degraded", what, "try again when the host is less busy")


class _Running:
    def __init__(self, task: Task) -> None:
        self.checks: list[Check] = []
        self.done = threading.Event()
        self._task = task
        threading.Thread(target=self._work, name=task.name, daemon=True).start()

    def _work(self) -> None:
        try:
            self.checks = list(self._task.function())
        except (StallscopeError, OSError) as error:
            self.checks = [Check(self._task.name, "degraded", one_line(f"not known: {error}"))]
        finally:
            self.done.set()
