# SPDX-License-Identifier: Apache-2.0
"""What the loop says to the fleet of its server: fleet/shipping/ does the rest."""

from __future__ import annotations

from stallscope.agent.metrics import AgentMetrics
from stallscope.agent.target import Target
from stallscope.base.meanwhile import Meanwhile
from stallscope.fleet.shipping.shipper import Shipper
from stallscope.fleet.shipping.watched import Watched
from stallscope.notify.delivery import Delivery

__all__ = ["FleetNews", "close_both"]


class FleetNews:
    """Of one server; used by the loop's thread."""

    def __init__(self, shipper: Shipper, target: Target, metrics: AgentMetrics) -> None:
        self.shipper = shipper
        self._target = target
        self._metrics = metrics
        self._version = (0, "")
        """Pid, and version as the server said it last."""

    def begin(self) -> None:
        """Begin to ship."""
        self.shipper.start()
        self.publish("")

    def publish(self, version: str) -> None:
        """Say which server is watched, and take how its destinations are. ``version``: "" where
        it is not known now."""
        entry, counts = self._target.entry(), self._metrics
        if version or self._version[0] != entry.pid:
            self._version = (entry.pid, version)
        self.shipper.watch(
            Watched(
                entry.host or "",
                entry.name,
                entry.pid,
                server=entry.server or "",
                version=self._version[1],
                runs=self._target.running,
                captures_lost=counts.captures["failed"] + counts.captures["suppressed"],
            )
        )
        counts.shipping = self.shipper.numbers()
        counts.failures["ship"] = self.shipper.failed

    def recover(self) -> None:
        """Ship what agents before this one could not, as they were killed, but for incidents of
        servers that have an agent of their own."""
        self.shipper.recover(lambda entry: not self._target.is_another(entry))


def close_both(delivery: Delivery, shipper: Shipper, seconds: float) -> None:
    """Deliver and ship what can be in that time, and end."""
    shipped = Meanwhile(lambda: shipper.close(seconds), "close shipper")
    delivery.close(seconds)
    shipped.result()
