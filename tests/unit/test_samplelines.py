# SPDX-License-Identifier: Apache-2.0
"""Samples as one line of text a measure."""

from __future__ import annotations

from stallscope.model.samples import Sample
from stallscope.reporters import samplelines

SECOND = 10**9


def shown(*, blocks: bool) -> list[str]:
    running = [1.0, 1.0, 50.0, 100.0, 1.0]
    samples = [
        Sample("status", at * SECOND, at * SECOND, {"Threads_running": value})
        for at, value in enumerate(running)
    ]
    text = samplelines.lines(samples, 2 * SECOND, 4 * SECOND, 56, blocks=blocks)
    return [line.text for line in text]


def test_blocks() -> None:
    line, scale = shown(blocks=True)
    assert line == "  threads running       ▁ ▁ |▄  █ |▁  1 to 100"
    assert scale.strip() == "over 4 s, the stall between | and |"


def test_digits_are_no_figures_of_threads() -> None:
    line, scale = shown(blocks=False)
    assert line == "  threads running       1 1 |4  8 |1  1 to 100"
    assert scale.endswith("; 1 is lowest, 8 highest")
