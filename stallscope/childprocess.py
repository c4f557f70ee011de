# SPDX-License-Identifier: Apache-2.0
"""Run a module of this package in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["module_command"]


def module_command(module: str) -> tuple[list[str], dict[str, str]]:
    """Return the command line and environment that run a module of this very package."""
    package = Path(__file__).resolve().parents[1]
    root = package if (package / "stallscope").is_dir() else package.parent
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH", ""))))
    return [sys.executable, "-P", "-m", module], {**os.environ, "PYTHONPATH": path}
