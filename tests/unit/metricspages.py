# SPDX-License-Identifier: Apache-2.0
"""Metrics as the text that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric

from stallscope.reporters.exposition import MetricsPage

__all__ = ["text_of"]


def text_of(metrics: Iterable[Metric]) -> str:
    """Return one source's metrics in the text format."""
    page = MetricsPage()
    page.put("one", metrics)
    return page.text().decode()
