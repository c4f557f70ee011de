# SPDX-License-Identifier: Apache-2.0
"""Pressure stall information, of the host and of the target's cgroup; /proc/pressure/*.

``psi.io.some_avg10`` is the share of the last 10 s, in percent, in which a task waited; ``full``,
in which all did. ``psi.io.some_us`` is a counter of microseconds. Those of the cgroup begin with
``psi.cgroup.``.
"""

from __future__ import annotations

from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.collectors.host.cgroups import groups
from stallscope.collectors.host.collecting import HostCollector, OpenedFile, as_number

__all__ = ["Pressure"]

RESOURCES = ("cpu", "io", "memory")


class Pressure(HostCollector):
    """``pid``: whose cgroup is read too; it is looked up once."""

    name = "psi"

    def __init__(self, pid: int | None = None, *, proc: Path = Path("/proc")) -> None:
        super().__init__()
        self._files_of: list[tuple[str, OpenedFile]] = [
            (f"psi.{resource}.", self.keep(proc / "pressure" / resource, 4096))
            for resource in RESOURCES
        ]
        self.cgroup_missing: str | None = None
        """Why the numbers of the cgroup are missing."""
        self._host_missing = (proc / "pressure").is_dir() is False
        if pid is not None:
            self._find_cgroup(pid, proc)

    def _find_cgroup(self, pid: int, proc: Path) -> None:
        try:
            folder = _cgroup_folder(pid, proc)
        except StallscopeError as error:
            self.cgroup_missing = str(error)
            return
        for resource in RESOURCES:
            file = self.keep(folder / f"{resource}.pressure", 4096)
            self._files_of.append((f"psi.cgroup.{resource}.", file))

    def read(self, clock_ns: int) -> dict[str, float]:
        values: dict[str, float] = {}
        failed: StallscopeError | None = None
        for prefix, file in self._files_of:
            try:
                text = file.read()
            except StallscopeError as error:
                failed = failed or error
                continue
            for line in text.splitlines():
                _parse(prefix, line, values)
        if values:
            return values
        if self._host_missing:
            raise StallscopeError(
                "no /proc/pressure: this kernel is older than 4.20, was built without CONFIG_PSI,"
                " or needs psi=1 on its command line"
            )
        raise failed or StallscopeError("/proc/pressure says nothing")


def _parse(prefix: str, line: bytes, values: dict[str, float]) -> None:
    """Parse ``some avg10=0.12 avg60=0.08 avg300=0.02 total=123456``."""
    words = line.split()
    if not words or words[0] not in (b"some", b"full"):
        return
    kind = words[0].decode()
    for word in words[1:]:
        key, _, value = word.partition(b"=")
        if key == b"total":
            values[f"{prefix}{kind}_us"] = as_number(value)
        elif key in (b"avg10", b"avg60", b"avg300"):
            values[f"{prefix}{kind}_{key.decode()}"] = as_number(value)


def _cgroup_folder(pid: int, proc: Path) -> Path:
    """Find the folder of the process in the unified hierarchy."""
    found = groups(pid, "", proc)
    if not found:
        raise StallscopeError(f"process {pid} is in the root cgroup: its pressure is the host's")
    folder = Path(found[0].folder)
    if not (folder / "cpu.pressure").exists():
        raise StallscopeError(f"the cgroup of process {pid}, {folder}, has no cpu.pressure")
    return folder
