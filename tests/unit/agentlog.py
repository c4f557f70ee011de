# SPDX-License-Identifier: Apache-2.0
"""What the agent logs, for tests that assert on it."""

from __future__ import annotations

import logging

__all__ = ["Messages"]


class Messages(logging.Handler):
    """Keeps the messages that are logged below ``stallscope``, from any thread."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def __enter__(self) -> Messages:
        logger = logging.getLogger("stallscope")
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("stallscope").removeHandler(self)
