# SPDX-License-Identifier: Apache-2.0
"""What a destination is to those that deliver."""

from __future__ import annotations

from typing import Protocol

from stallscope.notify.alert import Alert, Event
from stallscope.notify.settings import Severity

__all__ = ["Receiver"]


class Receiver(Protocol):
    """A destination."""

    @property
    def name(self) -> str: ...

    @property
    def updates(self) -> bool:
        """Whether it keeps the alert, and wants to know what becomes known later. All want to know
        that it became critical."""

    @property
    def resolves(self) -> bool:
        """Whether it wants to know of the end."""

    @property
    def repeat(self) -> float | None:
        """Seconds after which an alert that fires is sent again."""

    @property
    def least_firing(self) -> float:
        """Seconds from the stall to its end, at least."""

    @property
    def least_severity(self) -> Severity: ...

    def send(self, event: Event, alert: Alert) -> None:
        """Send, in this thread. Raises: SendError, or any other error: it is tried again."""
