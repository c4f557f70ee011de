# SPDX-License-Identifier: Apache-2.0
"""The folder and version of this package, and how to run one of its modules."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

from stallscope.base.childenv import child_environment

__all__ = ["FOLDER", "checkout", "commit", "module_command", "owns", "version"]

FOLDER = Path(__file__).resolve().parents[1]
"""The folder ``stallscope``, installed or of a checkout."""
_GIT_SECONDS = 10.0


def checkout() -> Path | None:
    """Return the checkout of this code; None where it is installed."""
    return FOLDER.parent if (FOLDER.parent / "meson.build").is_file() else None


def owns(path: Path) -> bool:
    """Return whether a file is a part of this package, or of its checkout."""
    return path.resolve().is_relative_to(checkout() or FOLDER)


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


def commit() -> str | None:
    """Return what this was built from, with ``-dirty`` where files differ; None where nobody
    knows. Of a checkout it is what git says."""
    root = checkout()
    if root is None:
        try:
            return (FOLDER / "_commit").read_text("ascii").strip()
        except OSError:
            return None
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *describe],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            env=child_environment(),
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def module_command(module: str) -> tuple[list[str], dict[str, str]]:
    """Return the command line and environment that run a module in a process of its own."""
    path = os.pathsep.join(filter(None, (str(FOLDER.parent), os.environ.get("PYTHONPATH", ""))))
    return [sys.executable, "-P", "-m", module], {**child_environment(), "PYTHONPATH": path}
