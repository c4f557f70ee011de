# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text format (version 0.0.4), line by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from stallscope.base.text import clean

__all__ = ["Exposition", "Labels"]

_PREFIX = "stallscope_"
_LABEL_LIMIT = 256

Labels = tuple[tuple[str, str], ...]


class Exposition:
    """Makes the lines of metrics; every line has ``labels``, which distinguish this server from
    others."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels: Labels = tuple(labels.items())

    def samples(
        self, name: str, kind: str, text: str, values: Mapping[Labels, float]
    ) -> Iterator[str]:
        """Yield a counter or gauge with its heading; nothing where there is no value."""
        if not values:
            return
        yield from _header(name, kind, text)
        for labels, value in sorted(values.items()):
            yield f"{_PREFIX}{name}{self._text_of(labels)} {_value(value)}"

    def histogram(
        self,
        name: str,
        text: str,
        bounds: Sequence[float],
        values: Mapping[Labels, tuple[Sequence[int], float]],
    ) -> Iterator[str]:
        """Yield histograms. Of each: counts by bucket, one more than ``bounds``, and the sum."""
        if not values:
            return
        yield from _header(name, "histogram", text)
        texts = [*map(repr, bounds), "+Inf"]
        for labels, (counts, total) in sorted(values.items()):
            for bound, count in zip(texts, accumulate(counts), strict=True):
                le = self._text_of((*labels, ("le", bound)))
                yield f"{_PREFIX}{name}_bucket{le} {count}"
            yield f"{_PREFIX}{name}_sum{self._text_of(labels)} {_value(total)}"
            yield f"{_PREFIX}{name}_count{self._text_of(labels)} {sum(counts)}"

    def _text_of(self, labels: Labels) -> str:
        pairs = [f'{name}="{_escape(value)}"' for name, value in (*self._labels, *labels)]
        return f"{{{','.join(pairs)}}}" if pairs else ""


def _header(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{name} {text}"
    yield f"# TYPE {_PREFIX}{name} {kind}"


def _value(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(value)


def _escape(value: str) -> str:
    """Return a label's value, without control characters, which are no text."""
    return clean(value[:_LABEL_LIMIT]).replace("\\", r"\\").replace('"', r"\"")
