# SPDX-License-Identifier: Apache-2.0
"""The folder and version of this package, and how to run one of its modules."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

from stallscope.base.childenv import child_environment

__all__ = ["FOLDER", "checkout", "module_command", "version"]

FOLDER = Path(__file__).resolve().parents[1]
"""The folder ``stallscope``, installed or of a checkout."""


def checkout() -> Path | None:
    """Return the checkout of this code; None where it is installed."""
    return FOLDER.parent if (FOLDER.parent / "meson.build").is_file() else None


@functools.cache
def version() -> str:
    """Return the version of the installed package, or of the checkout."""
    import importlib.metadata

    root = checkout()
    if root is not None:
        return (root / "VERSION").read_text("ascii").strip()
    try:
        return importlib.metadata.version("stallscope")
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"


def module_command(module: str) -> tuple[list[str], dict[str, str]]:
    """Return the command line and environment that run a module in a process of its own."""
    path = os.pathsep.join(filter(None, (str(FOLDER.parent), os.environ.get("PYTHONPATH", ""))))
    return [sys.executable, "-P", "-m", module], {**child_environment(), "PYTHONPATH": path}
