# SPDX-License-Identifier: Apache-2.0
"""What all kinds of destinations have in common."""

from __future__ import annotations

from typing import Generic, TypeVar

from stallscope.notify.settings import Destination, Severity, named

__all__ = ["Base"]

S = TypeVar("S", bound=Destination)


class Base(Generic[S]):
    """Sends each stall once, and its end once. A kind that keeps alerts has more."""

    updates = False
    repeat: float | None = None
    least_firing = 0.0

    def __init__(self, settings: S) -> None:
        self.settings = settings
        self.name = named(settings)

    @property
    def resolves(self) -> bool:
        """Whether it wants to know of the end."""
        return self.settings.resolve

    @property
    def least_severity(self) -> Severity:
        return self.settings.least_severity
