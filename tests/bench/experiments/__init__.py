# SPDX-License-Identifier: Apache-2.0
"""The experiments of the seeds, run again: docs/experiments.md."""

from __future__ import annotations

from tests.bench.experiments.run import EXPERIMENTS, Places, sections

__all__ = ["EXPERIMENTS", "Places", "sections"]
