# SPDX-License-Identifier: Apache-2.0
"""From an analysis to what rows have of it. It loads the analyzers: the agent's loop must not."""

from __future__ import annotations

from stallscope.analyzers.analysis import Analysis
from stallscope.fleet.facts import Facts

__all__ = ["facts_of"]


def facts_of(analysis: Analysis) -> Facts:
    """Return what a fleet keeps of an analysis."""
    raise NotImplementedError
