# SPDX-License-Identifier: Apache-2.0
"""Control groups with limits, of version 1 or 2, whichever this machine has the controller in."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.servers import wait_until

__all__ = ["Cgroup", "cgroups_missing", "io_controller", "limited"]

ROOT = Path("/sys/fs/cgroup")
_NAME = "stallscope-test"


class Cgroup(NamedTuple):
    """One group; ``old`` is version 1."""

    folder: Path
    old: bool

    @property
    def wrapper(self) -> tuple[str, ...]:
        """What to put before a command so that it runs in the group."""
        return ("sh", "-c", f'echo $$ >{self.folder}/cgroup.procs && exec "$@"', "sh")

    def limit_cpu(self, quota_us: int, period_us: int) -> None:
        if self.old:
            self._write("cpu.cfs_period_us", period_us)
            self._write("cpu.cfs_quota_us", quota_us)
        else:
            self._write("cpu.max", f"{quota_us} {period_us}")

    def limit_memory(self, size: int) -> None:
        self._write("memory.limit_in_bytes" if self.old else "memory.max", size)

    def limit_io(
        self,
        device: int,
        reads: int | None,
        writes: int | None,
        read_bytes: int | None,
        write_bytes: int | None = None,
    ) -> None:
        """Let so much a second reach the disk of this ``st_dev``; None is no limit."""
        disk = f"{os.major(device)}:{os.minor(device)}"
        if self.old:
            self._write("blkio.throttle.read_iops_device", f"{disk} {reads or 0}")
            self._write("blkio.throttle.write_iops_device", f"{disk} {writes or 0}")
            self._write("blkio.throttle.read_bps_device", f"{disk} {read_bytes or 0}")
            self._write("blkio.throttle.write_bps_device", f"{disk} {write_bytes or 0}")
        else:
            limits = {"riops": reads, "wiops": writes, "rbps": read_bytes, "wbps": write_bytes}
            texts = [f"{name}={limit or 'max'}" for name, limit in limits.items()]
            self._write("io.max", f"{disk} {' '.join(texts)}")

    def add(self, pid: int) -> None:
        """Move a process into the group, with all its threads."""
        self._write("cgroup.procs", pid)

    def remove(self, pid: int) -> None:
        """Move a process back to where groups are made."""
        with contextlib.suppress(ProcessLookupError):
            (self.folder.parent / "cgroup.procs").write_text(f"{pid}\n")

    def throttled(self) -> int:
        """Return how often a quota of CPU was used up."""
        return self._number("cpu.stat", "nr_throttled")

    def reclaimed(self) -> int:
        """Return how often the limit of memory was met."""
        if self.old:
            return int((self.folder / "memory.failcnt").read_text())
        return self._number("memory.events", "max")

    def killed(self) -> int:
        """Return how many processes were killed because memory was short."""
        name = "memory.oom_control" if self.old else "memory.events"
        return self._number(name, "oom_kill")

    def _write(self, name: str, value: object) -> None:
        (self.folder / name).write_text(f"{value}\n")

    def _number(self, name: str, key: str) -> int:
        lines = (self.folder / name).read_text().splitlines()
        (found,) = [line.split()[1] for line in lines if line.split()[0] == key]
        return int(found)


def _parent(controller: str) -> tuple[Path, bool] | None:
    """Return where groups of the controller are made, and whether it is version 1."""
    if (ROOT / controller / "cgroup.procs").exists():
        return ROOT / controller, True
    for folder in (ROOT, ROOT / "unified"):
        enabled = folder / "cgroup.subtree_control"
        if not enabled.exists() or controller not in (folder / "cgroup.controllers").read_text():
            continue
        with contextlib.suppress(OSError):
            enabled.write_text(f"+{controller}\n")
            return folder, False
    return None


def io_controller() -> str | None:
    """Return the controller that can make a disk slow, if this machine has one."""
    return next((name for name in ("blkio", "io") if _parent(name) is not None), None)


def cgroups_missing() -> str | None:
    """Return why no group can be limited here."""
    if os.geteuid() != 0:
        return "not root"
    for controller in ("cpu", "memory"):
        found = _parent(controller)
        if found is None:
            return f"no cgroup controller {controller} in {ROOT}"
        probe = found[0] / f"{_NAME}-probe-{os.getpid()}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            return f"no group can be made in {found[0]}: {error.strerror}"
    return None


@contextlib.contextmanager
def limited(controller: str) -> Iterator[Cgroup]:
    """Make a group that ``controller`` can limit; at the end, kill what is left in it."""
    found = _parent(controller)
    assert found is not None, f"no cgroup controller {controller}"
    group = Cgroup(found[0] / f"{_NAME}-{os.getpid()}", found[1])
    group.folder.mkdir()
    try:
        yield group
    finally:
        for pid in (group.folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        wait_until(
            lambda: not (group.folder / "cgroup.procs").read_text(), "the group is empty again"
        )
        group.folder.rmdir()
