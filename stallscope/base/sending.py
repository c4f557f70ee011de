# SPDX-License-Identifier: Apache-2.0
"""What goes wrong when something is sent: to a destination of notifications, or to a fleet."""

from __future__ import annotations

from stallscope.base.text import one_line

__all__ = ["SendError"]


class SendError(Exception):
    """Something was not taken.

    ``refused``: the destination will never take it as it is; ``unreachable``: it gave no answer, so
    nothing else can be sent to it now either; ``after``: seconds for which it wants to be left
    alone.
    """

    def __init__(
        self, why: str, *, refused: bool = False, unreachable: bool = False, after: float = 0.0
    ) -> None:
        super().__init__(one_line(why, 300))
        self.refused = refused
        self.unreachable = unreachable
        self.after = after
