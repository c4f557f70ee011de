# SPDX-License-Identifier: Apache-2.0
"""Block devices, and which of them holds the data; /proc/diskstats.

``disk.sda.reads`` and similar are counters; ``util`` (0 to 1), ``queue`` (requests in flight, on
average), ``read_await_ms`` and ``write_await_ms`` are of the time since the previous sample.
``disk.datadir.…`` are the numbers of the device that the data directory lies on. ``util`` of a
device that handles several requests at once says little: at 1.0 it can still handle many more.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from stallscope.collectors.host.collecting import HostCollector, as_number
from stallscope.collectors.paths import asking

__all__ = ["SECTOR", "Disks", "mounted_from"]

MAX_DISKS = 64
SECTOR = 512
"""Bytes, whatever the size of a device's own sectors is: Documentation/admin-guide/iostats.rst."""
_MAX_TABLE = 1 << 20
_NAMELESS = ("ram", "zram", "fd", "sr")

Counters = tuple[float, ...]


class Disks(HostCollector):
    """``pid`` and ``datadir`` (as the server sees it): whose device ``disk.datadir`` is."""

    name = "disks"

    def __init__(
        self,
        pid: int | None = None,
        datadir: str | None = None,
        *,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
    ) -> None:
        super().__init__()
        self._stats = self.keep(proc / "diskstats", 1 << 20)
        self._sys = sys
        self._whole: dict[str, bool] = {}
        self._last: dict[str, Counters] = {}
        self._last_ns = 0
        self._device: tuple[int, int] | None = None
        self._source: str | None = None
        self.datadir_missing: str | None = "the data directory is not known"
        """Why ``disk.datadir`` is missing."""
        if pid is not None and datadir is not None:
            self._find_device(proc / str(pid), datadir)

    def _find_device(self, process: Path, datadir: str) -> None:
        try:
            device = asking.status(f"{process}/root{datadir}").st_dev
        except OSError as error:
            self.datadir_missing = f"cannot read {datadir}: {error.strerror}"
            return
        self._device = (os.major(device), os.minor(device))
        # A file system on several devices (btrfs, overlay) has a device number of its own.
        if self._device[0] == 0:
            self._source = mounted_from(process / "mountinfo", self._device)
        self.datadir_missing = f"{datadir} is not on a block device of this host"

    def read(self, clock_ns: int) -> dict[str, float]:
        values: dict[str, float] = {}
        now: dict[str, Counters] = {}
        seconds = (clock_ns - self._last_ns) / 1e9
        for line in self._stats.read().splitlines():
            words = line.split()
            if len(words) < 14 or len(now) >= MAX_DISKS:
                continue  # partitions before Linux 2.6.25 have four numbers
            name = words[2].decode("utf-8", "backslashreplace")
            holds_data = self._holds_data(words, name)
            if not holds_data and (words[3] == b"0" == words[7] or not self._is_whole(name)):
                continue
            now[name] = tuple(map(as_number, words[3:20]))
            numbers = _numbers(now[name], self._last.get(name), seconds)
            values |= {f"disk.{name}.{key}": value for key, value in numbers.items()}
            if holds_data:
                self.datadir_missing = None
                values |= {f"disk.datadir.{key}": value for key, value in numbers.items()}
        self._last, self._last_ns = now, clock_ns
        return values

    def _holds_data(self, words: list[bytes], name: str) -> bool:
        if self._source is not None:
            return name == self._source
        return self._device is not None and words[:2] == [b"%d" % n for n in self._device]

    def _is_whole(self, name: str) -> bool:
        """Return whether it is a disk: requests of partitions are counted for their disk
        already."""
        known = self._whole.get(name)
        if known is None:
            known = not name.startswith(_NAMELESS) and (self._sys / "block" / name).exists()
            self._whole[name] = known
        return known


def _numbers(now: Counters, last: Counters | None, seconds: float) -> dict[str, float]:
    values = {
        "reads": now[0],
        "read_bytes": now[2] * SECTOR,
        "writes": now[4],
        "write_bytes": now[6] * SECTOR,
        "in_flight": now[8],
    }
    if len(now) > 15:
        values["flushes"] = now[15]
    if last is None or seconds <= 0 or any(a < b for a, b in zip(now[:8], last, strict=False)):
        return values
    values["util"] = min(1.0, max(0.0, (now[9] - last[9]) / (seconds * 1000)))
    if now[10] >= last[10]:
        values["queue"] = (now[10] - last[10]) / (seconds * 1000)
    values["iops"] = (now[0] - last[0] + now[4] - last[4]) / seconds
    # A device that finished no request has no such time: 0 would mean that it was fast.
    if now[0] > last[0]:
        values["read_await_ms"] = (now[3] - last[3]) / (now[0] - last[0])
    if now[4] > last[4]:
        values["write_await_ms"] = (now[7] - last[7]) / (now[4] - last[4])
    if len(now) > 16 and len(last) > 16 and now[15] > last[15]:
        values["flush_await_ms"] = (now[16] - last[16]) / (now[15] - last[15])
    return values


def mounted_from(mountinfo: Path, device: tuple[int, int]) -> str | None:
    """Return the kernel's name of the device that a file system says it is mounted from."""
    number = f"{device[0]}:{device[1]}"
    with contextlib.suppress(OSError), mountinfo.open("rb") as file:
        for line in file.read(_MAX_TABLE).decode("utf-8", "backslashreplace").splitlines():
            before, _, after = line.partition(" - ")
            words = after.split()
            if before.split()[2:3] == [number] and len(words) > 1 and words[1].startswith("/dev/"):
                return os.path.basename(_without_links(words[1]))
    return None


def _without_links(path: str) -> str:
    """Return where a path leads; the path itself where that cannot be said, as in a container."""
    try:
        return asking.real(path)
    except OSError:
        return path
