# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics, by its client library, which is loaded when the first of them is made.

A ``Families`` makes the metrics of one server from numbers that its caller keeps. A ``MetricsPage``
has the latest ones of all servers, and renders them: as text for the textfile collector, as text or
OpenMetrics for a scrape.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from stallscope.base.text import clean

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

__all__ = ["Families", "Labels", "MetricsPage"]

_PREFIX = "stallscope_"
_LABEL_LIMIT = 256

Labels = tuple[tuple[str, str], ...]


class Families:
    """Makes metrics; every sample has ``labels``, which distinguish this server from others.

    The values of a metric are by its other labels, whose names are the same in each.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels: Labels = tuple((name, _safe(value)) for name, value in labels.items())

    def counter(self, name: str, text: str, values: Mapping[Labels, float]) -> Iterator[Metric]:
        """Yield a counter, whose name is without ``_total``; nothing where there is no value."""
        from prometheus_client.metrics_core import CounterMetricFamily

        if values:
            names = self._names(values)
            yield self._filled(CounterMetricFamily(_PREFIX + name, text, labels=names), values)

    def gauge(self, name: str, text: str, values: Mapping[Labels, float]) -> Iterator[Metric]:
        """Yield a gauge; nothing where there is no value."""
        from prometheus_client.metrics_core import GaugeMetricFamily

        if values:
            names = self._names(values)
            yield self._filled(GaugeMetricFamily(_PREFIX + name, text, labels=names), values)

    def info(self, name: str, text: str, values: Mapping[str, str]) -> Iterator[Metric]:
        """Yield facts as labels of a metric that is 1; its name is without ``_info``."""
        from prometheus_client.metrics_core import InfoMetricFamily

        family = InfoMetricFamily(_PREFIX + name, text, labels=[of for of, _ in self._labels])
        facts = {of: _safe(value) for of, value in values.items()}
        family.add_metric([value for _, value in self._labels], facts)
        yield family

    def histogram(
        self,
        name: str,
        text: str,
        bounds: Sequence[float],
        values: Mapping[Labels, tuple[Sequence[int], float]],
    ) -> Iterator[Metric]:
        """Yield histograms. Of each: counts by bucket, one more than ``bounds``, and the sum."""
        from prometheus_client.metrics_core import HistogramMetricFamily

        if not values:
            return
        family = HistogramMetricFamily(_PREFIX + name, text, labels=self._names(values))
        ends = [*map(repr, bounds), "+Inf"]
        for labels, (counts, total) in sorted(values.items()):
            buckets = list(zip(ends, map(float, accumulate(counts)), strict=True))
            family.add_metric(self._values(labels), buckets, total)
        yield family

    def _names(self, values: Iterable[Labels]) -> list[str]:
        return [name for name, _ in (*self._labels, *next(iter(values)))]

    def _values(self, labels: Labels) -> list[str]:
        own = [value for _, value in self._labels]
        return [*own, *(_safe(value) for _, value in labels)]

    def _filled(self, family: Metric, values: Mapping[Labels, float]) -> Metric:
        for labels, value in sorted(values.items()):
            family.add_metric(self._values(labels), value)  # type: ignore[attr-defined]
        return family


class MetricsPage:
    """The latest metrics of each server. One thread replaces them, another one renders them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[Hashable, tuple[Metric, ...]] = {}

    def put(self, key: Hashable, metrics: Iterable[Metric]) -> None:
        """Replace the metrics of one source, which are never changed later."""
        made = tuple(metrics)
        with self._lock:
            self._parts[key] = made

    def collect(self) -> Iterator[Metric]:
        """Yield each metric once, with the samples of all sources."""
        from prometheus_client import Metric

        with self._lock:
            parts = list(self._parts.values())
        families: dict[str, Metric] = {}
        for one in (one for part in parts for one in part):
            family = families.get(one.name)
            if family is None:
                family = families[one.name] = Metric(one.name, one.documentation, one.type)
            family.samples += one.samples
        yield from families.values()

    def text(self) -> bytes:
        """Return the text format, version 0.0.4."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry())

    def scraped(self, accept: str) -> tuple[bytes, str]:
        """Return what a scrape gets, with the agent's own process, and its content type.

        ``accept``: the header of that name, which says whether OpenMetrics is understood.
        """
        from prometheus_client import ProcessCollector
        from prometheus_client.exposition import choose_encoder

        registry = self._registry()
        ProcessCollector(registry=registry)
        try:
            encode, kind = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is none
            encode, kind = choose_encoder("")
        return encode(registry), kind

    def _registry(self) -> CollectorRegistry:
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry()
        registry.register(self)
        return registry


def _safe(value: str) -> str:
    """Return a label's value, without control characters, which are no text."""
    return clean(value[:_LABEL_LIMIT])
