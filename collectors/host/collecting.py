# SPDX-License-Identifier: Apache-2.0
"""What the collectors of /proc share: files kept open, and a limit on how often expensive files are
read."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.collectors.collector import sample
from stallscope.model.samples import Sample

__all__ = ["HostCollector", "OpenedFile", "Pace", "as_number"]

MAX_FILE = 1 << 20
"""Bytes of one file of /proc that are read; /proc/stat of 1,000 CPUs has 200 KB."""
REST_SECONDS = 5.0
"""From one sample to the next while the server is at rest."""
SHARE = 0.001
"""The share of one core that an expensive read may cost on average."""
REST_SHARE = 0.0002
"""The same while the server is at rest."""

_WHY = {
    errno.ENOENT: "it does not exist",
    errno.ESRCH: "the process has ended",
    errno.EACCES: "not permitted; run it as root or as the owner of the process",
    errno.EPERM: "not permitted; run it as root or as the owner of the process",
    errno.EOPNOTSUPP: "disabled in this kernel",
}


class OpenedFile:
    """A file of /proc that is opened once; each read from its start gets the current text."""

    def __init__(self, path: Path | str, limit: int = 65_536) -> None:
        self.path = str(path)
        self._limit = min(limit, MAX_FILE)
        self._lock = threading.Lock()
        self._fd = -1
        self._closed = False

    def read(self) -> bytes:
        """Return its text, cut at the limit. Raises: StallscopeError."""
        try:
            with self._lock:
                if self._closed:
                    raise StallscopeError(f"{self.path} was closed")
                if self._fd < 0:
                    self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                return self._all()
        except OSError as error:
            why = _WHY.get(error.errno or 0, error.strerror or str(error))
            raise StallscopeError(f"cannot read {self.path}: {why}") from error

    def _all(self) -> bytes:
        data = os.pread(self._fd, self._limit, 0)
        # A file of /proc that consists of many records returns one page for each read.
        while data and len(data) < self._limit:
            more = os.pread(self._fd, self._limit - len(data), len(data))
            if not more:
                break
            data += more
        return data

    def close(self) -> None:
        """Close it for good; a read that hangs in another thread keeps it open."""
        if self._lock.acquire(blocking=False):
            try:
                self._closed = True
                if self._fd >= 0:
                    os.close(self._fd)
                self._fd = -1
            finally:
                self._lock.release()


class Pace:
    """Spaces expensive reads so that they cost at most a share of one core on average."""

    def __init__(self) -> None:
        self._latest_ns: int | None = None
        self._took_ns = 0
        self._begun = 0

    def due(self, clock_ns: int, share: float = SHARE) -> bool:
        """Return whether the read may be made now; its duration counts from here."""
        if self._latest_ns is not None and clock_ns - self._latest_ns < self._took_ns / share:
            return False
        self._begun = time.thread_time_ns()
        return True

    def done(self, clock_ns: int) -> None:
        """Count the CPU time of the read."""
        self._latest_ns = clock_ns
        self._took_ns = time.thread_time_ns() - self._begun


class HostCollector(ABC):
    """A collector (stallscope.collectors.collector) that reads files of the kernel."""

    name: str
    deadline: float = 0.5
    interval: float = 0.0
    rest_interval: float = REST_SECONDS

    def __init__(self) -> None:
        # A thread of its own: a file of /proc can hang, that of a process with mmap_lock held.
        self.thread = self.name
        self._files: list[OpenedFile] = []
        self.at_rest = False
        self.latest: tuple[Sample, ...] = ()
        """The two latest samples, the earlier one first."""

    @property
    def share(self) -> float:
        """The share of one core that an expensive read may cost now."""
        return REST_SHARE if self.at_rest else SHARE

    def collect(self) -> Sample:
        """Take a sample. Raises: StallscopeError, a sentence."""
        found = sample(self.name, self.read)
        self.latest = (*self.latest[-1:], found)
        return found

    @abstractmethod
    def read(self, clock_ns: int) -> dict[str, float]:
        """Return numbers by name."""

    def names(self) -> dict[str, str]:
        """Return what the latest numbers are about: ``{"cgroup.cpu": "/db.slice"}``."""
        return {}

    def keep(self, path: Path | str, limit: int = 65_536) -> OpenedFile:
        """Return a file that is closed with the collector."""
        file = OpenedFile(path, limit)
        self._files.append(file)
        return file

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


def as_number(text: bytes) -> float:
    """Return a text of the kernel as a number, 0 where it is none."""
    with contextlib.suppress(ValueError):
        return float(text)
    return 0.0
