# SPDX-License-Identifier: Apache-2.0
"""What the host says beside a server's status: the queue of its device, the speed of its link."""

from __future__ import annotations

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.collectors.host.disks import Disks
from stallscope.collectors.host.links import Links
from stallscope.collectors.processes import Server
from stallscope.server.status import StatusSample

__all__ = ["HostNumbers"]

_NOT_HERE = "the server's process is not known: give -p"
_OF_DEVICE = "disk.datadir."


class HostNumbers:
    """The numbers between two moments; ``server`` None: which process it is was not said."""

    def __init__(self, server: Server | None) -> None:
        self._disks: Disks | None = None
        self._links: Links | None = None
        self._why: str | None = None
        if server is not None:
            self._disks = Disks(server.main.pid, server.datadir)
            self._links = Links(server.main.pid, server.ports)

    def begin(self) -> None:
        """Take the first sample."""
        if self._disks is not None:
            try:
                self._disks.collect()
            except StallscopeError as error:
                self._why = str(error)

    def added(self, sample: StatusSample) -> StatusSample:
        """Return a status with the numbers since ``begin``, and why some are missing."""
        values, missing = dict(sample.values), dict(sample.missing)
        if self._disks is None or self._links is None:
            missing |= {"disk": _NOT_HERE, "link": _NOT_HERE}
            return msgspec.structs.replace(sample, values=values, missing=missing)
        try:
            found = self._disks.collect().values
            of_device = {n: v for n, v in found.items() if n.startswith(_OF_DEVICE)}
            values |= of_device
            missing |= _idle(of_device)
            if not of_device:
                missing["disk"] = self._why or self._disks.datadir_missing or "not known"
        except StallscopeError as error:
            missing["disk"] = str(error)
        try:
            values |= self._links.collect().values
            if self._links.missing is not None:
                missing["link"] = self._links.missing
        except (StallscopeError, OSError) as error:
            missing["link"] = str(error)
        return msgspec.structs.replace(sample, values=values, missing=missing)

    def close(self) -> None:
        """Close the files."""
        for collector in (self._disks, self._links):
            if collector is not None:
                collector.close()


def _idle(values: dict[str, float]) -> dict[str, str]:
    """Return why a device has no time of some kind of request."""
    if not values:
        return {}
    return {
        f"{_OF_DEVICE}{kind}_await_ms": f"no {kind} was completed in the interval"
        for kind in ("read", "write", "flush")
        if f"{_OF_DEVICE}{kind}_await_ms" not in values
    }
