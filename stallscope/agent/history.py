# SPDX-License-Identifier: Apache-2.0
"""The history: the lines of the last minute, with which an incident begins."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

__all__ = ["History"]


class History:
    """Lines of the last ``seconds``, of at most ``max_bytes``; the oldest are removed first. They
    are kept as text: a dict of 500 numbers is five times as large.
    """

    def __init__(self, seconds: float, max_bytes: int) -> None:
        self._span_ns = round(seconds * 1e9)
        self._max_bytes = max_bytes
        self._lines: deque[tuple[int, bytes]] = deque()
        self.bytes = 0
        self.dropped = 0
        """How many lines were removed early."""

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, clock_ns: int, line: bytes) -> None:
        """Add a line without a newline; ``at`` is CLOCK_MONOTONIC."""
        self._lines.append((clock_ns, line))
        self.bytes += len(line)
        while self._lines and self._lines[0][0] < clock_ns - self._span_ns:
            self._drop()
        while self.bytes > self._max_bytes:
            self._drop()
            self.dropped += 1

    def _drop(self) -> None:
        _, line = self._lines.popleft()
        self.bytes -= len(line)

    def since(self, clock_ns: int) -> Iterator[bytes]:
        """Yield the lines from a moment on, oldest first."""
        return (line for at, line in tuple(self._lines) if at >= clock_ns)
