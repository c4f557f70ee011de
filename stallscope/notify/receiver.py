# SPDX-License-Identifier: Apache-2.0
"""What a destination is to those that deliver."""

from __future__ import annotations

from typing import Protocol

from stallscope.base.text import one_line
from stallscope.notify.alert import Alert, Event
from stallscope.notify.settings import Severity

__all__ = ["Receiver", "SendError"]


class SendError(Exception):
    """A notification was not delivered. ``refused``: the destination is there, and does not want
    this one; ``after``: seconds for which it wants to be left alone.
    """

    def __init__(self, why: str, *, refused: bool = False, after: float = 0.0) -> None:
        super().__init__(one_line(why, 300))
        self.refused = refused
        self.after = after


class Receiver(Protocol):
    """A destination."""

    @property
    def name(self) -> str: ...

    @property
    def updates(self) -> bool:
        """Whether it keeps the alert, and wants to know what becomes known later."""

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
